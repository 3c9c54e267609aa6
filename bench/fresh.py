"""Structures that were never seen, beside known ones: ``python -m bench.fresh``, QM9 and the Tree-LSTM.

    known     records of a pool that the model has been trained on, in another order in every turn
    fresh     records with structures that this process has not met; their scores are worked out as they come

What an instance computes (its score) follows from its structure, and is kept. An epoch after the first finds all scores
known; a stream without end, or data that is augmented, finds none. Records are generated outside of the timed part;
instances are made of them inside, for both alike. Turns alternate in this process, on one thread, and the best of each
counts. Asked for: fresh structures at 0.7 of the speed of known ones, or faster.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ampnet import Inline, Update
from bench.batch import Record
from bench.contender import on_device
from bench.machine import describe
from bench.workload import Data, Workload, compiled
from bench.workloads import BY_NAME, qm9, sentiment

BOUND = 0.7
KNOWN = 500
"""Records of the pool."""


def trees() -> Iterator[Record]:
    """Trees without end."""
    for seed in itertools.count():
        yield from sentiment.generated(100, 1_000 + seed)


def molecules() -> Iterator[Record]:
    """Molecules without end."""
    rng = np.random.default_rng(7)
    while True:
        yield qm9.arguments(qm9.molecule(rng), 0.0, 1.0)


def shape_of(record: Record) -> bytes:
    """What two records have in common when one's score is the other's: parents of a tree, or bonds with their kinds."""
    first = record[0]
    if len(record) == 1:
        return bytes(np.ascontiguousarray(first._parents).tobytes())
    nodes, edges, *_ = record
    parts = (np.array([len(nodes)]), edges._source, edges._target, edges._columns["kind"])
    return b"|".join(np.ascontiguousarray(part).tobytes() for part in parts)


def unseen(records: Iterator[Record]) -> Iterator[Record]:
    """Those with a structure that has not come before."""
    seen: set[bytes] = set()
    for record in records:
        shape = shape_of(record)
        if shape not in seen:
            seen.add(shape)
            yield record


SOURCES: dict[str, tuple[Callable[[], Iterator[Record]], dict[str, float]]] = {
    "qm9": (molecules, {}),
    "sentiment": (trees, {"vocabulary": sentiment.VOCABULARY}),
}
"""By workload: where records come from, and what the model needs to know."""


class Race:
    """A runtime, the pool that it knows, and records that it does not."""

    def __init__(self, workload: Workload, known: int = KNOWN) -> None:
        source, facts = SOURCES[workload.name]
        self._fresh = unseen(source())
        self.pool = list(itertools.islice(self._fresh, known))
        self._order = np.random.default_rng(0)
        ours = workload.ours["ours"]
        self.graph: Any = compiled(workload, Data("generated", [self.pool[:1]], [], facts), ours)
        updates = {
            node: Update(on_device(make, "cpu"), ours.every, "instances") for node, make in workload.optimizers.items()
        }
        update = Update(workload.optimizer, ours.every, "instances")
        self.runtime = Inline(
            self.graph, update=update, updates=updates, max_active_keys=ours.in_flight, **dict(ours.settings)
        )
        for _ in range(2):
            self.turn(self.known(known))

    def known(self, count: int) -> list[Record]:
        """Records of the pool, in a drawn order."""
        return [self.pool[i] for i in itertools.islice(itertools.cycle(self._order.permutation(len(self.pool))), count)]

    def fresh(self, count: int) -> list[Record]:
        """Records that never came before."""
        return list(itertools.islice(self._fresh, count))

    def turn(self, records: Sequence[Record]) -> float:
        """Instances a second; instances are made of records as they are asked for."""
        began = time.perf_counter()
        stats = self.runtime.train(self.graph.instances(records))
        return int(stats.records) / (time.perf_counter() - began)


def measure(name: str, seconds: float, turns: int, known: int = KNOWN) -> dict[str, Any]:
    """The best turn of known and of fresh records."""
    race = Race(BY_NAME[name], known)
    with race.runtime:
        count = max(20, int(seconds * race.turn(race.known(known))))
        speeds: dict[str, list[float]] = {"known": [], "fresh": []}
        for _ in range(turns):
            speeds["known"].append(race.turn(race.known(count)))
            speeds["fresh"].append(race.turn(race.fresh(count)))
    best = {row: max(found) for row, found in speeds.items()}
    ratio = best["fresh"] / best["known"]
    return {"workload": name, "records_of_a_turn": count, "best": best, "ratio": ratio, "turns": speeds}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each workload; 1 where the bound was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.fresh", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(SOURCES)}")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, about (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="of each; the best counts (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in SOURCES]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are: {', '.join(SOURCES)}")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    results = []
    try:
        for name in given.names or SOURCES:
            found = measure(name, given.seconds, given.turns)
            results.append(found)
            mark = "ok  " if found["ratio"] >= BOUND else "MISS"
            rates = ", ".join(f"{row} {rate:,.0f}/s" for row, rate in found["best"].items())
            print(f"{mark}  {name:16} fresh {found['ratio']:.2f} x known; {rates}", flush=True)
    finally:
        torch.set_num_threads(threads)
    if given.json is not None:
        settings = {"seconds": given.seconds, "turns": given.turns, "known": KNOWN, "bound": BOUND}
        out = {"settings": settings, "machine": describe(), "workloads": results}
        given.json.write_text(json.dumps(out, indent=1) + "\n")
    return int(any(found["ratio"] < BOUND for found in results))


if __name__ == "__main__":
    sys.exit(main())
