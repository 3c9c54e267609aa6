"""A long run on worker processes: memory, file descriptors and shared memory stay where they are after warm-up.

    python -m bench.soak --minutes 10 --workers 2

Trains list reduction, epoch after epoch with a validation after each, and looks at all processes of the run every few
seconds. The first third is warm-up (allocators and rings reach their size); of the rest, the last half must not be
above the first one by more than `GROWTH`. Exit code 1 if anything grew.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path

import torch

from ampnet import Instance, Processes, Stream, Update
from ampnet.controller import Progress
from ampnet.data.list_reduction import generate
from ampnet.events.staleness import StalenessMeter
from ampnet.models import list_reduction

MIB = 1 << 20
GROWTH = {"private": 0.02, "shared": 0.02}
"""By how much memory may differ, as a share of it, and a MiB for each process: pages come and go."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What all processes of the run have at a time."""

    private: float
    """MiB of memory that each has for itself, together."""
    shared: float
    """MiB of shared memory touched, by the process that has touched most of it."""
    descriptors: int
    """Open file descriptors, together."""
    named: int
    """Named shared memory and semaphores on the machine."""
    processes: int
    """How many there are."""


def look(pids: list[int]) -> Sample:
    """Look at some processes."""
    private, shared, descriptors = 0.0, 0.0, 0
    for pid in pids:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        private += int(status["RssAnon"].split()[0]) / 1024
        shared = max(shared, int(status["RssShmem"].split()[0]) / 1024)
        descriptors += len(os.listdir(f"/proc/{pid}/fd"))
    named = len(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else 0
    return Sample(private, shared, descriptors, named, len(pids))


def soak(seconds: float, workers: int, every: float) -> tuple[list[Sample], int]:
    """Train for so long; what was seen, and how many sequences were trained."""
    graph = list_reduction.build(64, seed=0)
    train, valid = generate(4_000, 0), generate(1_000, 1)
    samples: list[Sample] = []
    began = due = time.monotonic()
    update = Update(partial(torch.optim.Adam, lr=1e-3, fused=True), 1, "instances")
    meter = StalenessMeter()
    with Processes(graph, workers=workers, update=update, max_active_keys=4, listeners=[meter]) as runtime:

        def turn(progress: Progress) -> None:
            nonlocal due
            now = time.monotonic()
            if now >= due:
                due = now + every
                samples.append(look([os.getpid(), *runtime.pids]))
            if now - began > seconds:
                runtime.stop()

        def instances(data: object) -> Iterator[Instance]:
            return list_reduction.instances(graph, data, 50)  # type: ignore[arg-type]

        streams = itertools.chain.from_iterable(
            (Stream(instances(train), True, f"train {n}"), Stream(instances(valid), False, f"valid {n}"))
            for n in itertools.count(1)
        )
        stats = runtime.run(streams, on_turn=turn)
        held = runtime.held()
        if held:
            raise AssertionError(f"held at rest: {held}")
    return samples, sum(s.records for s in stats if s.train)


def grown(samples: list[Sample]) -> list[str]:
    """What has grown after warm-up, in words."""
    steady = samples[len(samples) // 3 :]
    half = len(steady) // 2
    if half < 2:
        return [f"{len(samples)} samples are too few to tell"]
    faults = []
    for item in fields(Sample):
        before, after = (
            statistics.median(getattr(s, item.name) for s in part) for part in (steady[:half], steady[half:])
        )
        allowed = GROWTH.get(item.name, 0.0) * before + (steady[0].processes if item.name in GROWTH else 0)
        if after > before + allowed:
            faults.append(f"{item.name} grew from {before:.1f} to {after:.1f}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default: 10)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: 2)")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks (default: 2)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    samples, records = soak(60 * args.minutes, args.workers, args.every)
    print(f"{records:,} sequences trained; {len(samples)} looks")
    print(f"{'':10}" + "".join(f"{item.name:>13}" for item in fields(Sample)))
    places = sorted({0, len(samples) // 3, 2 * len(samples) // 3, len(samples) - 1})
    for place in places:
        row = "".join(
            f"{value:13,.1f}" if isinstance(value, float) else f"{value:13}" for value in astuple(samples[place])
        )
        print(f"{place * args.every:8.0f} s{row}")
    faults = grown(samples)
    for fault in faults:
        print(f"  MISS  {fault}")
    if not faults:
        print("  ok    nothing grew after warm-up")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
