"""One instance in flight, an update for each: ``python -m bench.single`` beside eager torch, instance by instance.

    ours           `Inline`, max_active_keys=1, an update after every instance
    torch ...      the eager programs of `bench.peers` on batches of one record: as recursion, level by level,
                   sparse ... whatever an ordinary user would write; the fastest of them counts

This is where nothing can be batched between instances, so it shows what the runtime costs by itself. The rows take
turns in this process, on one thread; the best turn of each counts. Instances and collated batches are made beforehand.
Asked for: at least 0.8 of the fastest eager program on each of the paper's five tasks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet import Instance
from ampnet.graph import Graph
from ampnet.lang import Compiled
from bench.batch import Batch, Bucket
from bench.contender import Contender, OurRuntime, TorchPeer, lasting
from bench.machine import describe
from bench.peers.foreign import missing
from bench.workload import Wanted, Workload, row_of
from bench.workloads import BY_NAME

NAMES = ("mnist", "list-reduction", "sentiment", "babi15", "qm9")
BOUND = 0.8
RECORDS = 200
"""Different ones; lists come in every length."""


def one(graph: Graph, batch: Batch) -> list[Instance]:
    """The only record of a batch, as an instance by itself."""
    assert isinstance(graph, Compiled)
    return [graph.instance(*(row_of(batch.arguments) if isinstance(batch, Bucket) else batch[0]))]


def alone(workload: Workload) -> Workload:
    """The workload with batches of one record."""
    ours = replace(workload.ours["ours"], in_flight=1, every=1, instances=one)
    eager = {
        name: kind
        for name, kind in workload.peers.items()
        if name.startswith("torch") and not kind.compiled and missing((kind.needs,) if kind.needs else ()) is None
    }
    calm = partial(_calmer, by=workload.batch)
    makes = {name: calm(make) for name, make in workload.optimizers.items()}
    return replace(
        workload, batch=1, ours={"ours": ours}, peers=eager, optimizer=calm(workload.optimizer), optimizers=makes
    )


def _calmer(make: Any, by: int) -> Any:
    """The same optimizer with a lower learning rate: that of a mean over many is too high for a single record."""
    return partial(make.func, *make.args, **{**make.keywords, "lr": make.keywords["lr"] / by})


def contenders(workload: Workload, records: int = RECORDS) -> dict[str, Contender]:
    """Ours and the eager programs, on the same records from the same weights."""
    data = workload.data(Wanted(1, "generated", None if workload.name == "list-reduction" else records))
    data = replace(data, train=data.train[:records], valid=data.valid[:1])
    rows: dict[str, Contender] = {"ours": OurRuntime(workload, data, workload.ours["ours"])}
    return rows | {name: TorchPeer(workload, data, kind) for name, kind in workload.peers.items()}


def speed(contender: Contender, places: Iterator[int], seconds: float) -> float:
    """Instances a second."""
    began = time.perf_counter()
    records = contender.train(lasting(places, seconds)).records
    return records / (time.perf_counter() - began)


def measure(name: str, seconds: float, turns: int, records: int = RECORDS) -> dict[str, Any]:
    """The best turn of each row, and ours to the fastest eager program."""
    rows = contenders(alone(BY_NAME[name]), records)
    places = {row: itertools.cycle(range(records)) for row in rows}
    found: dict[str, list[float]] = {row: [] for row in rows}
    try:
        for row, contender in rows.items():
            contender.train(itertools.islice(places[row], records))  # an epoch: all structures are known from here on
        for _ in range(turns):
            for row, contender in rows.items():
                found[row].append(speed(contender, places[row], seconds))
    finally:
        for contender in rows.values():
            contender.close()
    return summary(name, found)


def summary(name: str, turns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    best = {row: max(speeds) for row, speeds in turns.items()}
    fastest = max((row for row in best if row != "ours"), key=best.__getitem__)
    return {"workload": name, "best": best, "than": fastest, "ratio": best["ours"] / best[fastest], "turns": turns}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each task; 1 where the bound was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.single", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of each row; the best counts (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        parser.error(f"no task {', '.join(unknown)}; there are: {', '.join(NAMES)}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = []
    try:
        for name in given.names or NAMES:
            found = measure(name, given.seconds, given.turns)
            results.append(found)
            rates = ", ".join(f"{row} {rate:,.0f}/s" for row, rate in found["best"].items())
            mark = "ok  " if found["ratio"] >= BOUND else "MISS"
            print(f"{mark}  {name:16} {found['ratio']:5.2f} x '{found['than']}'; {rates}", flush=True)
    finally:
        torch.set_num_threads(threads)
    if given.json is not None:
        settings = {"seconds": given.seconds, "turns": given.turns, "records": RECORDS, "bound": BOUND}
        out = {"settings": settings, "machine": describe(), "tasks": results}
        given.json.write_text(json.dumps(out, indent=1) + "\n")
    return int(any(found["ratio"] < BOUND for found in results))


if __name__ == "__main__":
    sys.exit(main())
