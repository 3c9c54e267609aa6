"""Torch's pipelines: `Schedule1F1B` and `ScheduleGPipe` on four processes over gloo.

Every stage has its own optimizer and steps when the schedule has ended there. "Busy" are the forward and backward of
microbatches, the loss, and the optimizer's step; the rest of the time a stage sends, receives or waits.
"""

from __future__ import annotations

import inspect
import json
import multiprocessing
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from examples.gpt.data import Corpus
from examples.gpt.model import next_character, stages
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from bench.gpt.cores import sets_for
from bench.gpt.orphans import end_with
from bench.gpt.settings import Setting, Trace

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
PATIENCE = timedelta(seconds=120)


def run(setting: Setting, corpus: Corpus) -> Trace:
    """Trains for all updates."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("fork")
        workers = [
            context.Process(target=_stage, args=(rank, setting, corpus, Path(folder), os.getpid()))
            for rank in range(setting.stages)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the stages do not use
            for worker in workers:
                worker.start()
        for worker in workers:
            worker.join()
        failed = [rank for rank, worker in enumerate(workers) if worker.exitcode]
        if failed:
            raise RuntimeError(f"{setting.contender}: stages {failed} failed")
        told = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(setting.stages)]
        found = [load_file(Path(folder) / f"{rank}.safetensors") for rank in range(setting.stages)]
    weights = [
        [one[f"{mark}.{i}"] for one, has in zip(found, told, strict=True) for i in range(has["parameters"])]
        for mark in range(len(setting.marks()))
    ]
    return Trace(told[0]["seconds"], [one["busy"] for one in told], weights)


class Stopwatch:
    """Adds up the seconds of some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function with its time added up."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def _stage(rank: int, setting: Setting, corpus: Corpus, folder: Path, parent: int) -> None:
    """One process: trains its stage, then writes its times and snapshots."""
    end_with(parent)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sets_for(setting.stages)[rank])
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=setting.stages, timeout=PATIENCE
    )
    module = nn.Sequential(*(part for _, part in stages(setting.model(), setting.stages)[rank]))
    parameters, watch = list(module.parameters()), Stopwatch()
    optimizer = setting.optimizer(parameters)
    rate = setting.schedule(optimizer)
    stage = PipelineStage(module, rank, setting.stages, torch.device("cpu"))
    stage.forward_one_chunk = watch.around(stage.forward_one_chunk)  # type: ignore[method-assign]
    stage.backward_one_chunk = watch.around(stage.backward_one_chunk)  # type: ignore[method-assign]
    schedule = SCHEDULES[setting.contender](stage, setting.microbatches, loss_fn=watch.around(_loss))
    # The last stage is not to keep the scores of a step, where torch can be told so.
    quiet = {"return_outputs": False} if "return_outputs" in inspect.signature(schedule.step).parameters else {}
    step, marks = watch.around(optimizer.step), set(setting.marks())
    seconds: list[float] = []
    kept: dict[str, Tensor] = {}
    batches = corpus.microbatches(
        setting.updates * setting.microbatches, setting.sequences, setting.sizes.context, setting.seed
    )
    for number in range(1, setting.updates + 1):
        some = list(islice(batches, setting.microbatches))
        if rank == 0:
            schedule.step(torch.cat([tokens for tokens, _ in some]), **quiet)
        elif rank == setting.stages - 1:
            schedule.step(target=torch.cat([targets for _, targets in some]), **quiet)
        else:
            schedule.step(**quiet)
        step()
        rate.step()
        optimizer.zero_grad()
        if number in marks:
            if number == setting.warm:
                watch.seconds = 0.0
            kept |= {f"{len(seconds)}.{i}": p.detach().clone() for i, p in enumerate(parameters)}
            seconds.append(time.perf_counter())
    told = {"seconds": [t - seconds[0] for t in seconds], "busy": watch.seconds, "parameters": len(parameters)}
    save_file(kept, folder / f"{rank}.safetensors")
    (folder / f"{rank}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


def _loss(scores: Tensor, targets: Tensor) -> Tensor:
    return next_character(scores, targets).mean()
