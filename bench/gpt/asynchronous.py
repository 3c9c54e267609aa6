"""Ours: the GPT on four worker processes, microbatches in flight all the time.

The source of microbatches is read whenever one has retired, so it knows how far the run is: at a mark it copies the
weights, which are in shared memory, while the workers go on. A mark at n updates counts all microbatches pumped up to
then, although some of them are still in flight: the curve shows ours a little later than it is.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from typing import Any

from examples.gpt.data import Corpus
from examples.gpt.model import affinity, microbatch
from torch import Tensor

import ampnet
from ampnet.events.staleness import StalenessMeter
from ampnet.update.remedies import LoweredMomentum
from bench.gpt.cores import sets_for
from bench.gpt.settings import Setting, Trace


def run(setting: Setting, corpus: Corpus) -> Trace:
    """Trains for all updates."""
    model, cores, context = setting.model(), sets_for(setting.stages), setting.sizes.context
    plain, meter = list(model.plain().parameters()), StalenessMeter()
    busy = memoryview(mmap.mmap(-1, 8 * setting.stages)).cast("d")
    times: list[float] = []
    weights: list[list[Tensor]] = []
    began: list[float] = []

    def mark() -> None:
        times.append(time.perf_counter())
        weights.append([p.detach().clone() for p in plain])
        if not began:
            began.extend(busy)

    def settle(host: Any) -> None:
        """In a worker: bind it to its cores, and publish its busy seconds."""
        os.sched_setaffinity(0, cores[host.number])
        step = host.player.step

        def published(most: int) -> bool:
            moved: bool = step(most)
            busy[host.number] = host.player.busy
            return moved

        host.player.step = published

    def instances() -> Iterator[ampnet.Instance]:
        left = setting.marks()[:-1]
        count = setting.updates * setting.microbatches
        for number, batch in enumerate(corpus.microbatches(count, setting.sequences, context, setting.seed)):
            if left and number == left[0] * setting.microbatches:
                left.pop(0)
                mark()
            yield microbatch(graph, *batch)

    graph = ampnet.compile(model, *(rows[0] for rows in corpus.held_out(1, context)))
    update = ampnet.Update(
        setting.optimizer,
        setting.microbatches,
        "instances",
        schedule=setting.schedule,
        schedule_every="update",
        weights="stash",
        # Without a remedy for staleness, steps are those of synchronous pipelines.
        remedies=(LoweredMomentum(),) if setting.contender == "ours-momentum" else (),
    )
    with ampnet.Processes(
        graph,
        workers=setting.stages,
        affinity=affinity(model, setting.stages),
        update=update,
        max_active_keys=setting.in_flight,
        wave_size=1,
        max_restarts=0,
        listeners=[meter],
    ) as runtime:
        runtime.on_worker = settle
        runtime.train(instances())
        mark()
        ended = list(busy)
    stages = [b - a for a, b in zip(began, ended, strict=True)]
    return Trace([t - times[0] for t in times], stages, weights, meter.overall().mean)
