"""Training while workers are killed: ``python -m bench.kills --minutes 30 --every 20``.

    disturbed      trainings one after the other, each with another seed, until the time is over. A random worker of the
                   training at hand gets SIGKILL every so many seconds
    undisturbed    the first of these trainings again, and nobody is killed

Each training is list reduction to its target on two workers: in turns one model parted over both, and two replicas that
share their weights. Every epoch must have counted every instance once. Shown: epochs to the target and the last
accuracy of both kinds, and the seconds from a kill to the next instance that retires.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ampnet.errors import RestartWarning
from ampnet.events.log import Event, Retire
from ampnet.experiments.catalog import WORKLOADS
from ampnet.experiments.kept import Kept
from ampnet.experiments.running import make_graph, make_runtime
from ampnet.fitting import Callback, fit
from ampnet.instance import StreamStats
from ampnet.runtime.processes import Processes
from bench.machine import describe

EVERY = 20.0
LIMIT = 30
"""Epochs after which a training is given up."""


class _Recovered:
    """A listener that notes when the first instance retires after a kill."""

    kinds = (Retire,)

    def __init__(self) -> None:
        self.killed: float | None = None
        self.seconds: list[float] = []

    def __call__(self, event: Event) -> None:
        # An instance that was complete already may retire just after the kill: those of the next tenth do not count.
        if self.killed is not None and event.time > self.killed + 0.1:
            self.seconds.append(event.time - self.killed)
            self.killed = None


class _Counts(Callback):
    """Raises an error if an epoch has not counted every instance once."""

    def __init__(self, train: int, valid: int) -> None:
        self.train, self.valid = train, valid

    def on_train_end(self, epoch: int, stats: StreamStats) -> None:
        if stats.records != self.train:
            raise AssertionError(f"epoch {epoch}: {stats.records} records counted, and there are {self.train}")

    def on_valid_end(self, epoch: int, stats: StreamStats) -> None:
        if stats.records != self.valid:
            raise AssertionError(f"validation {epoch}: {stats.records} records counted, and there are {self.valid}")


def trial(seed: int, every: float | None, size: int, until: float = float("inf")) -> dict[str, Any]:
    """One training. ``every``: seconds between two kills; None: nobody is killed. Ends early at ``until``."""
    workload = WORKLOADS["list-reduction"]
    parted = seed % 2 == 0
    how = {"workers": 2} if parted else {"replicas": 2, "workers": 2}
    settings = replace(
        workload.settings(), seed=seed, train_size=size, max_restarts=10**6, epochs=LIMIT, **how
    ).complete()
    data = workload.load(settings, None)
    facts = workload.facts(settings, data)
    graph = make_graph(workload, settings, facts)
    recovered, over = _Recovered(), threading.Event()
    kept = Kept(workload, settings, data, facts, graph)
    kills = 0
    began = time.perf_counter()
    with make_runtime(graph, settings, [recovered]) as runtime:
        assert isinstance(runtime, Processes)

        def kill() -> None:
            nonlocal kills
            draw = random.Random(seed)
            while every is not None and not over.wait(every):
                pids = runtime.pids
                if pids and recovered.killed is None:
                    recovered.killed = time.perf_counter()
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    kills += 1

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RestartWarning)
                result = fit(
                    runtime,
                    train=lambda epoch: kept.instances("train", epoch),
                    valid=lambda epoch: kept.instances("valid"),
                    epochs=LIMIT,
                    metric=workload.metric,
                    target=workload.paper_target,
                    callbacks=[_Clocked(runtime, until), _Counts(len(data.train), len(data.valid))],
                )
        finally:
            over.set()
            killer.join()
        stats = runtime.stats()
    return {
        "seed": seed,
        "model": "parted" if parted else "replicas",
        "kills": kills,
        "restarts": stats.restarts,
        "computed_again": stats.replayed,
        "epochs": result.epochs,
        "reached": result.reached,
        "accuracy": result.value,
        "seconds": time.perf_counter() - began,
        "recovered_after": recovered.seconds,
    }


class _Clocked(Callback):
    """Stops the training when the time is over."""

    def __init__(self, runtime: Processes, until: float) -> None:
        self.runtime, self.until = runtime, until

    def on_turn(self, progress: Any) -> None:
        if time.monotonic() > self.until:
            self.runtime.stop()


def run(minutes: float, every: float, size: int, beside: int) -> dict[str, Any]:
    """Returns the results of both kinds of trainings. ``beside``: how many are repeated undisturbed."""
    torch.set_num_threads(1)
    until = time.monotonic() + 60 * minutes
    disturbed: list[dict[str, Any]] = []
    while time.monotonic() < until:
        disturbed.append(trial(len(disturbed), every, size, until))
        print(_line("disturbed", disturbed[-1]), flush=True)
    undisturbed = []
    for seed in range(min(beside, len(disturbed))):
        undisturbed.append(trial(seed, None, size))
        print(_line("undisturbed", undisturbed[-1]), flush=True)
    seconds = [one for trained in disturbed for one in trained["recovered_after"]]
    return {
        "machine": describe(),
        "minutes": minutes,
        "every": every,
        "train_size": size,
        "kills": sum(one["kills"] for one in disturbed),
        "restarts": sum(one["restarts"] for one in disturbed),
        "recovered_after": {"median": statistics.median(seconds), "most": max(seconds)} if seconds else None,
        "disturbed": disturbed,
        "undisturbed": undisturbed,
    }


def _line(kind: str, one: dict[str, Any]) -> str:
    slow = f", at most {max(one['recovered_after']):.1f} s" if one["recovered_after"] else ""
    return (
        f"{kind:12} seed {one['seed']:2} {one['model']:8} accuracy {one['accuracy']:.4f} after {one['epochs']} epochs, "
        f"{one['seconds']:.0f} s; {one['kills']} kills, {one['restarts']} restarts{slow}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="of disturbed training")
    parser.add_argument("--every", type=float, default=EVERY, help="seconds between two kills")
    parser.add_argument("--size", type=int, default=100_000, help="sequences of an epoch")
    parser.add_argument("--beside", type=int, default=6, help="trainings that are repeated undisturbed")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    found = run(args.minutes, args.every, args.size, args.beside)
    print(json.dumps({name: found[name] for name in ("kills", "restarts", "recovered_after")}))
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
