"""What checkpoints cost: ``python -m bench.checkpoints``. Asked for: one every 30 seconds costs under 2 %.

    without   ████████████████████████████████        records a second of a stream of --seconds
    with      ██████ckpt██████ckpt██████ckpt██        the same, with a checkpoint every --every seconds

Both take turns in one run. The cost of one checkpoint (the instances in flight complete, the snapshot, the files with
fsync, filling up again) follows from the ratio of the medians, and from it the share at one every 30 seconds. With
``--every 30 --seconds 120`` that share is measured directly; it needs a quiet machine. Data are generated.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ampnet import Callback, Checkpoint, Instance, fit
from bench.contender import OurRuntime
from bench.engine import RECORDS
from bench.workload import Wanted
from bench.workloads import BY_NAME

WORKLOADS = ("list-reduction", "qm9", "mnist")
WANTED = 30.0
"""The seconds between two checkpoints that the share is reported for."""


class Written(Callback):
    """Counts checkpoints, and the time that writing them took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_checkpoint(self, path: Path, seconds: float) -> None:
        self.seconds.append(seconds)


class Row:
    """A runtime on a workload."""

    def __init__(self, name: str, workers: int) -> None:
        workload = BY_NAME[name]
        data = workload.data(Wanted(workload.batch, "generated", None, RECORDS.get(name, 1_600)))
        ours = replace(workload.ours["ours"], workers=workers)
        self.made = OurRuntime(workload, data, ours, "cpu")
        self._instances = [one for batch in self.made._train for one in batch]

    def turn(self, seconds: float, checkpoint: Checkpoint | None, written: Written) -> float:
        """Records a second of a stream of so many seconds."""

        def instances(epoch: int) -> Iterator[Instance]:
            until = time.monotonic() + seconds
            for one in itertools.cycle(self._instances):
                if time.monotonic() >= until:
                    return
                yield one

        result = fit(self.made.runtime, train=instances, epochs=1, checkpoint=checkpoint, callbacks=[written])
        return result.train_records_per_second


def measure(
    name: str, workers: int, seconds: float, every: float, repeats: int, at: Literal["drained", "flying"]
) -> dict[str, float]:
    """Speeds with and without, and the cost of a checkpoint."""
    row, written = Row(name, workers), Written()
    speeds: dict[bool, list[float]] = {False: [], True: []}
    row.turn(1.0, None, written)
    with tempfile.TemporaryDirectory(dir=".") as folder:  # on a disk, where fsync takes its time
        for number in range(repeats):
            for kept in (False, True) if number % 2 else (True, False):
                checkpoint = Checkpoint(Path(folder) / f"{number}", every=f"{every} s", at=at) if kept else None
                speeds[kept].append(row.turn(seconds, checkpoint, written))
        size = sum(path.stat().st_size for path in Path(folder).glob("0/checkpoint-*/*") if path.is_file())
        count = len(list(Path(folder).glob("0/checkpoint-*")))
    row.made.close()
    ratio = statistics.median(speeds[True]) / statistics.median(speeds[False])
    each = max(0.0, 1 - ratio) * every
    return {
        "without/s": statistics.median(speeds[False]),
        "with/s": statistics.median(speeds[True]),
        "ratio": ratio,
        "MB": size / max(1, count) / 1e6,
        "write ms": 1e3 * statistics.median(written.seconds),
        "checkpoint ms": 1e3 * each,
        "every 30 s: %": 100 * each / WANTED,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoints", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn (default: 10)")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two checkpoints (default: 1)")
    parser.add_argument("--repeats", type=int, default=5, help="turns with and without (default: 5)")
    parser.add_argument("--workers", type=int, default=1, help="worker processes; 1: this process (default: 1)")
    parser.add_argument("--at", choices=("drained", "flying"), default="drained", help="(default: drained)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in given.names:
        found[name] = measure(name, given.workers, given.seconds, given.every, given.repeats, given.at)
        print(f"{name:16}", "  ".join(f"{what} {value:,.3g}" for what, value in found[name].items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
