"""Still learning: the loss per epoch of many replicas beside that of one: ``python -m bench.learning --replicas 16``.

    one core       `Inline`, several seeds of the data's order: their spread is the noise
    N replicas     copies of the whole model with shared weights, on N workers, with the remedies that are the default

Replicas are fast because nobody waits for anybody, and gradients are stale for the same reason. A speed of replicas is
worth something only where they learn as one does. Both have updates of the same size and go through the same records;
every epoch is in a drawn order. The losses of an epoch agree where the replicas' mean is not above one replica's by
more than the spread of its seeds, or `SLACK` of it, whichever is more; it is told for each epoch and kept for the last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.contender import OurRuntime
from bench.machine import describe
from bench.rows import ours_of
from bench.workload import Data, Wanted, Workload
from bench.workloads import BY_NAME

EPOCHS = {"mnist": 6, "list-reduction": 6, "sentiment": 4, "qm9": 8}
"""By workload."""
SLACK = 0.1
"""Of one replica's loss: where seeds hardly differ, this much is noise, too."""


def losses(workload: Workload, data: Data, row: str, epochs: int, seed: int) -> list[dict[str, float]]:
    """Training and validation loss of each epoch, and the records a second."""
    contender = OurRuntime(workload, data, ours_of(workload, row))
    try:
        return [_epoch(contender, data, np.random.default_rng((seed, epoch))) for epoch in range(epochs)]
    finally:
        contender.close()


def _epoch(contender: OurRuntime, data: Data, rng: np.random.Generator) -> dict[str, float]:
    order = rng.permutation(len(data.train)).tolist()
    stats = contender.runtime.train(one for place in order for one in contender.instances_of(place))
    valid = contender.valid(range(len(data.valid)))
    return {"train": stats.loss, "valid": valid.loss, "metric": valid.metric, "rate": stats.records_per_second}


def compare(name: str, replicas: int, epochs: int, seeds: int, most: int | None) -> dict[str, Any]:
    """Losses by epoch of both, and whether they agree at the end."""
    workload = BY_NAME[name]
    data = workload.data(Wanted(workload.batch, most=most))
    rows = {"one": "ours", f"{replicas} replicas": f"ours {replicas} replicas"}
    found = {row: [losses(workload, data, of, epochs, seed) for seed in range(seeds)] for row, of in rows.items()}
    return {"workload": name, "data": data.kind, "rows": found, **verdict(*found.values())}


def verdict(one: Sequence[Any], many: Sequence[Any]) -> dict[str, Any]:
    """Mean training losses by epoch, the noise of one replica's seeds, and whether the last epochs agree."""
    means = {
        row: [statistics.fmean(run[i]["train"] for run in runs) for i in range(len(runs[0]))]
        for row, runs in (("one", one), ("many", many))
    }
    ends = [run[-1]["train"] for run in one]
    noise = max(max(ends) - min(ends), SLACK * means["one"][-1])
    return {"loss": means, "noise": noise, "kept": means["many"][-1] <= means["one"][-1] + noise}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the losses by epoch; 1 where they do not agree."""
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all by default: {', '.join(EPOCHS)}")
    parser.add_argument("--replicas", type=int, help="(default: as many as there are cores)")
    parser.add_argument("--epochs", type=int, help=f"(default: {EPOCHS})")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row (default: %(default)s)")
    parser.add_argument("--batches", type=int, help="of an epoch (default: all of the workload)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.names if name not in EPOCHS]
    if unknown:
        parser.error(f"no workload {', '.join(unknown)}; there are: {', '.join(EPOCHS)}")
    replicas = given.replicas or len(os.sched_getaffinity(0))
    torch.set_num_threads(1)
    results = []
    for name in given.names or EPOCHS:
        found = compare(name, replicas, given.epochs or EPOCHS[name], given.seeds, given.batches)
        results.append(found)
        for row, by_epoch in found["loss"].items():
            print(f"{name:16} {row:5} {' '.join(f'{loss:8.4f}' for loss in by_epoch)}", flush=True)
        print(
            f"{'ok  ' if found['kept'] else 'MISS'}  {name}, {replicas} replicas; noise {found['noise']:.4f}",
            flush=True,
        )
    if given.json is not None:
        settings = {"replicas": replicas, "seeds": given.seeds, "batches": given.batches, "slack": SLACK}
        out = {"settings": settings, "machine": describe(), "workloads": results}
        given.json.write_text(json.dumps(out, indent=1) + "\n")
    return int(not all(found["kept"] for found in results))


if __name__ == "__main__":
    sys.exit(main())
