"""A run: some seeds of one command, which are one line of a table.

    sync          ampnet train W --max-active-keys K             one process, one wave in flight: nothing is stale
    interleaved   ... --schedule fifo --wave-size 1              one process, waves take turns: stale, and deterministic
    workers       ... --workers N                                one model parted over N processes: the paper's way
    replicas      ... --replicas N                               N copies with shared weights, a process each
    both          ... --workers N --replicas R                   R copies, each parted over N / R processes
    torch         python -m bench.paper.baseline W --threads N   plain torch, synchronous

A run belongs to a class of machines, with 2 cores or with 16. If its seconds are reported (``timed``), it runs alone.
`bench.paper.plan` has the list of all runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from bench.paper.baseline import BASELINES, usual_batch

Way = Literal["sync", "interleaved", "workers", "replicas", "both", "torch"]
Study = Literal["table", "grid", "frequency", "staleness", "best"]
Cores = Literal[2, 16]

BATCH = {name: usual_batch(name) for name in BASELINES}
"""Records in a batch of the baseline."""
INTERLEAVED = ("--schedule", "fifo", "--wave-size", "1")


@dataclass(frozen=True, slots=True)
class Run:
    """Some seeds of one command."""

    name: str
    """The start of the names of its result files: it does not change."""
    workload: str
    way: Way
    max_active_keys: int | None
    """None for the baseline."""
    seeds: tuple[int, ...]
    study: Study = "table"
    replicas: int = 1
    workers: int = 1
    """Worker processes in all; for the baseline, threads."""
    target: float | None = None
    epochs: int = 1
    args: tuple[str, ...] = ()
    """Further options."""
    cores: Cores = 2
    """Class of machines."""
    timed: bool = True
    """Whether its seconds are reported."""

    def command(self, seed: int) -> list[str]:
        """Returns the arguments of ``python -m``."""
        goal = [] if self.target is None else ["--target", f"{self.target:g}"]
        end = ["--epochs", str(self.epochs), *goal, "--seed", str(seed), *self.args]
        if self.way == "torch":
            size = ["--batch", str(BATCH[self.workload]), "--threads", str(self.workers)]
            return ["bench.paper.baseline", self.workload, *size, *end]
        workers, replicas = ["--workers", str(self.workers)], ["--replicas", str(self.replicas)]
        how = {
            "sync": [],
            "interleaved": [*INTERLEAVED],
            "workers": workers,
            "replicas": replicas,
            "both": [*workers, *replicas],
        }[self.way]
        return ["ampnet", "train", self.workload, "--max-active-keys", str(self.max_active_keys), *how, *end]

    def typed(self, seed: int) -> str:
        """Returns the command line as a user would type it."""
        return " ".join([*(["python", "-m"] if self.way == "torch" else []), *self.command(seed)])

    @property
    def on_gpu(self) -> bool:
        """Whether it needs a GPU."""
        return "cuda" in self.args

    @property
    def width(self) -> int:
        """Cores that it can keep busy."""
        return min(self.cores, max(self.workers, self.replicas))

    def label(self) -> str:
        """Returns the way as text: ``2 replicas``."""
        if self.way == "torch":
            return f"torch, {self.workers} thread{'s' * (self.workers > 1)}"
        return {
            "sync": "synchronous",
            "interleaved": "interleaved",
            "workers": f"{self.workers} workers",
            "replicas": f"{self.replicas} replicas",
            "both": f"{self.replicas} replicas of {self.workers // self.replicas} parts",
        }[self.way]

    def title(self) -> str:
        """Returns the way and the number in flight: ``2 replicas, 8 in flight``."""
        return self.label() if self.max_active_keys is None else f"{self.label()}, {self.max_active_keys} in flight"

    def option(self, name: str) -> str | None:
        """Returns the value of one of the further options."""
        return self.args[self.args.index(name) + 1] if name in self.args else None


def chosen(patterns: Sequence[str] | None, runs: Sequence[Run]) -> list[Run]:
    """Returns the runs whose name matches one of the patterns; all of them without patterns."""
    return [run for run in runs if not patterns or any(fnmatchcase(run.name, pattern) for pattern in patterns)]
