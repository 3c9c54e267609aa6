"""Runs: what is trained for Table 1 and for the studies of the appendix, and the command line of each.

    waves      ampnet train W --max-active-keys N                instances in flight computed together: the default
    messages   ... --no-waves                                    message by message in one process, as the paper does
    workers    ... --workers 2                                   one model, its nodes on two processes
    replicas   ... --replicas 2                                  copies of the model with shared weights, a process each
    torch      python -m bench.paper.baseline W --threads N      plain torch, synchronous

A name is for good: it is that of the files of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from bench.paper.baseline import BASELINES, usual_batch
from bench.paper.figures import PAPER

Way = Literal["waves", "messages", "workers", "replicas", "torch"]
Study = Literal["table", "frequency", "staleness", "best"]

EPOCHS = {"mnist": 8, "list-reduction": 16, "sentiment": 10, "babi15": 20, "qm9": 60}
"""Epochs at most, of runs to a target."""
BATCH = {name: usual_batch(name) for name in BASELINES}
"""Records in a batch of the baseline."""
FREQUENCIES = (50, 1600, 3200, 12_800)
EMBEDDING = 1000
"""Gradients in an update of the embedding, in the paper."""
GREEDY = {"mnist": ("--schedule", "fifo")}
"""Options of runs by messages. In one process the usual schedule lets a bucket of images, which fills a node, go
all the way before the next begins: whatever the number in flight, nothing is stale. First come, first served is the
paper's greedy pump."""
BEST_TARGET = 4.0
BEST_IN_FLIGHT = 128
BEST = (
    *("--min-update-frequency", "128", "--hidden", "300", "--steps", "6", "--loss", "absolute"),
    *("--learning-rate", "0.001", "--decay", "0.89", "--weight-decay", "0.03", "--device", "cuda"),
)
"""Options of the run that brings QM9 to `BEST_TARGET`: a wider model with more steps, on a GPU. They were chosen among
more than a hundred settings, by the same validation molecules."""


@dataclass(frozen=True, slots=True)
class Run:
    """One line of a table: some seeds of one command."""

    name: str
    workload: str
    way: Way
    max_active_keys: int | None
    """None: the baseline, which has no such thing."""
    seeds: tuple[int, ...]
    study: Study = "table"
    replicas: int = 1
    workers: int = 1
    """Processes; of the baseline, threads."""
    target: float | None = None
    epochs: int = 1
    args: tuple[str, ...] = ()
    """Further options."""

    def command(self, seed: int) -> list[str]:
        """What is typed after ``python -m``."""
        goal = [] if self.target is None else ["--target", f"{self.target:g}"]
        end = ["--epochs", str(self.epochs), *goal, "--seed", str(seed), *self.args]
        if self.way == "torch":
            size = ["--batch", str(BATCH[self.workload]), "--threads", str(self.workers)]
            return ["bench.paper.baseline", self.workload, *size, *end]
        how = {
            "waves": [],
            "messages": ["--no-waves"],
            "workers": ["--workers", str(self.workers)],
            "replicas": ["--replicas", str(self.replicas)],
        }[self.way]
        return ["ampnet", "train", self.workload, "--max-active-keys", str(self.max_active_keys), *how, *end]

    @property
    def on_gpu(self) -> bool:
        """Whether it needs one."""
        return "cuda" in self.args

    def typed(self, seed: int) -> str:
        """The same, as people type it."""
        return " ".join([*(["python", "-m"] if self.way == "torch" else []), *self.command(seed)])

    def label(self) -> str:
        """For people: ``2 replicas``."""
        if self.way == "torch":
            return f"torch, {self.workers} thread{'s' * (self.workers > 1)}"
        return {"workers": f"{self.workers} workers", "replicas": f"{self.replicas} replicas"}.get(self.way, self.way)

    def title(self) -> str:
        """With the number in flight: ``2 replicas, 8 in flight``."""
        return self.label() if self.max_active_keys is None else f"{self.label()}, {self.max_active_keys} in flight"


def _to_target(workload: str, way: Way, number: int, seeds: int, *, of: int = 1) -> Run:
    """A run of the table: ``number`` in flight, on ``of`` replicas, workers or threads."""
    name = f"{workload}-{way}{of if way in ('workers', 'replicas') else ''}-{of if way == 'torch' else number}"
    return Run(
        name,
        workload,
        way,
        None if way == "torch" else number,
        tuple(range(seeds)),
        replicas=of if way == "replicas" else 1,
        workers=of if way != "replicas" else 1,
        target=PAPER[workload].target,
        epochs=EPOCHS[workload],
        args=GREEDY.get(workload, ()) if way == "messages" else (),
    )


def _table() -> Iterable[Run]:
    for way in ("waves", "messages"):
        for number in (1, 4):
            yield _to_target("mnist", way, number, 3 if way == "waves" else 1)
    yield _to_target("mnist", "workers", 4, 3, of=2)
    yield _to_target("mnist", "replicas", 8, 3, of=2)
    yield from (_to_target("mnist", "torch", 0, 3, of=threads) for threads in (1, 2))

    yield from (_to_target("list-reduction", "waves", number, 5) for number in (1, 4, 16))
    yield from (_to_target("list-reduction", "messages", number, 3) for number in (1, 16))
    yield from (_to_target("list-reduction", "replicas", number, 5, of=of) for of, number in ((2, 4), (4, 8)))
    yield from (_to_target("list-reduction", "torch", 0, 3, of=threads) for threads in (1, 2))

    yield from (_to_target("sentiment", "waves", number, 3 if number == 16 else 1) for number in (1, 4, 16))
    yield _to_target("sentiment", "messages", 16, 1)
    yield _to_target("sentiment", "replicas", 32, 3, of=2)
    yield from (_to_target("sentiment", "torch", 0, 1, of=threads) for threads in (1, 2))

    yield from (_to_target("babi15", "waves", number, 5) for number in (1, 16))
    yield from (_to_target("babi15", "messages", number, 5) for number in (1, 16))
    yield _to_target("babi15", "workers", 16, 5, of=2)
    yield _to_target("babi15", "replicas", 32, 5, of=2)
    yield _to_target("babi15", "torch", 0, 5, of=1)

    yield from (_to_target("qm9", "waves", number, 1) for number in (1, 4, 16))
    yield _to_target("qm9", "replicas", 32, 1, of=2)
    yield _to_target("qm9", "torch", 0, 1, of=1)


def _frequency() -> Iterable[Run]:
    """How many gradients make an update; the embedding has the paper's number, or as many as the others."""
    for number in FREQUENCIES:
        args = ("--min-update-frequency", f"{number}", "--update-after", f"embedding={max(EMBEDDING, number)}")
        name = f"sentiment-frequency-{number}"
        yield Run(name, "sentiment", "waves", 16, (0,), "frequency", epochs=8, args=args)


def _staleness() -> Iterable[Run]:
    for workload, epochs, numbers in (("mnist", 3, (1, 2, 4, 8)), ("list-reduction", 6, (1, 4, 16, 64))):
        for number in numbers:
            name = f"{workload}-staleness-{number}"
            args = GREEDY.get(workload, ())
            yield Run(name, workload, "messages", number, (0,), "staleness", epochs=epochs, args=args)


BEST_RUN = Run(
    "qm9-best", "qm9", "waves", BEST_IN_FLIGHT, (0,), "best", target=BEST_TARGET, epochs=EPOCHS["qm9"], args=BEST
)

RUNS: tuple[Run, ...] = (*_table(), *_frequency(), *_staleness(), BEST_RUN)


def chosen(patterns: Sequence[str] | None, runs: Sequence[Run] = RUNS) -> list[Run]:
    """Those whose name fits one of the patterns; all without patterns."""
    return [run for run in runs if not patterns or any(fnmatchcase(run.name, pattern) for pattern in patterns)]
