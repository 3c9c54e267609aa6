"""A contender's turn, in a process of its own: ``python -m bench.turn ROW_AS_JSON`` prints what came of it, as JSON.

A process of its own has its own number of threads and its own memory, and what an earlier contender left behind (warm
caches of allocators, compiled kernels, half a gigabyte of batches) is gone.

    made ready ── first updates ── warm-up ── [timed training] ── last updates ── [timed validation]
                   └ loss_first                                    └ loss_last
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench import cores, gemm
from bench.contender import Contender, OurRuntime, Part, TorchPeer, lasting
from bench.rows import GEMM, OURS, Settings, ours_of
from bench.workload import Data, Wanted, Workload
from bench.workloads import BY_NAME

FEW = 20
"""Updates whose mean loss is told, at the beginning and at the end; fewer where they take too long."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of a turn."""

    train: float
    """Records a second."""
    valid: float
    """Likewise, in inference."""
    loss_first: float
    """Mean of the first updates."""
    loss_last: float
    """Mean of the updates after the timed part."""
    updates: float | None
    """For as many records as the workload has in an update; below 1, updates were larger than they should be."""
    data: str
    """"real" or "generated"."""
    flops: float
    """Of a record, in training."""


@dataclass(frozen=True, slots=True)
class Race:
    """What came of a run to the target."""

    reached: bool
    seconds: float
    """Of training and validation, until the end of the validation that reached it."""
    epochs: int
    metric: str
    value: float
    target: float
    data: str


def make(workload: Workload, row: str, settings: Settings) -> tuple[Contender, Data]:
    """The contender of a row, and its data."""
    data = workload.data(Wanted(workload.batch, settings.data, _folder(settings), settings.most))
    if row.startswith(OURS):
        return OurRuntime(workload, data, ours_of(workload, row), settings.device), data
    if row in workload.foreign:
        from bench.jax_contender import JaxRow  # not before: a process that measures torch has no JAX in it

        return JaxRow(workload, data, workload.foreign[row].load()), data
    return TorchPeer(workload, data, workload.peers[row], settings.device), data


def _folder(settings: Settings) -> Path | None:
    return None if settings.data_dir is None else Path(settings.data_dir)


def measure(contender: Contender, data: Data, settings: Settings, workload: Workload) -> Turn:
    """See the head of this file."""
    train, valid = (itertools.cycle(range(len(part))) for part in (data.train, data.valid))
    contender.warm()
    first = contender.train(lasting(train, settings.seconds, FEW))
    contender.train(lasting(train, settings.warmup))
    before = contender.updates()
    fast, trained = timed(contender.train, train, settings.seconds)
    after = contender.updates()
    last = contender.train(lasting(train, settings.seconds, FEW))
    contender.valid(lasting(valid, settings.warmup / 4))
    faster, _ = timed(contender.valid, valid, settings.valid_seconds)
    updates = None if before is None or after is None else (after - before) * workload.batch / trained.records
    return Turn(fast, faster, first.loss, last.loss, updates, data.kind, workload.flops(data))


def timed(go: Callable[[Iterable[int]], Part], places: Iterator[int], seconds: float) -> tuple[float, Part]:
    """Records a second, and what came of it."""
    began = time.perf_counter()
    part = go(lasting(places, seconds))
    return part.records / (time.perf_counter() - began), part


def race(contender: Contender, data: Data, workload: Workload) -> Race:
    """Epochs, each in an order of its own, until a validation is at the target."""
    target = workload.target
    contender.warm()
    began, value = time.perf_counter(), float("nan")
    for epoch in itertools.count(1):
        order = np.random.default_rng((0, epoch)).permutation(len(data.train))
        contender.train(order[: target.batches].tolist())
        part = contender.valid(range(len(data.valid)))
        value = part.loss if target.metric == "loss" else part.metric
        seconds = time.perf_counter() - began
        if target.reached(value) or seconds > target.seconds:
            break
    return Race(target.reached(value), seconds, epoch, target.metric, value, target.value, data.kind)


def run(given: dict[str, Any]) -> dict[str, Any]:
    settings = Settings(**given["settings"])
    if settings.device == "cpu":
        torch.set_num_threads(given["threads"])
    if given["row"] == GEMM:
        return {"gflops": gemm.peak(settings.device)}
    workload = BY_NAME[given["workload"]]
    if given["row"] in workload.foreign and settings.device == "cpu":
        cores.keep(given["threads"])
    contender, data = make(workload, given["row"], settings)
    try:
        if settings.to_target:
            return asdict(race(contender, data, workload))
        return asdict(measure(contender, data, settings, workload))
    finally:
        contender.close()


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
