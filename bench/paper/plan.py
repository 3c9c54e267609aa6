"""The plan: all runs behind the page of results.

    on 2 cores     Table 1: each task at the paper's max_active_keys, synchronous, on two workers, on replicas, in torch
                   how many gradients make an update (sentiment, two workers)
                   accuracy against instances in flight, for each of `REMEDIES` (one process, waves take turns)
    on 16 cores    time to the target: parts, replicas, both, and torch with 1 to 16 threads
                   the asynchrony grid: 8 replicas, max_active_keys x min_update_frequency
                   QM9 with the best settings that are known, on a GPU

Names of 16-core runs begin with ``c16-``. `QUICK` is a part of the 2-core list, with one seed and fewer epochs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench.paper.figures import PAPER
from bench.paper.runs import Cores, Run, Way

EPOCHS = {"mnist": 8, "list-reduction": 16, "sentiment": 10, "babi15": 20, "qm9": 60}
"""Largest number of epochs of a run to the paper's target."""
SEEDS = {"mnist": 3, "list-reduction": 3, "sentiment": 3, "babi15": 5, "qm9": 1}
"""Seeds of the runs of Table 1."""
FILES = {"sync": "waves"}
"""The word in the names of result files, where it is not that of the way: it is older than the way's name."""


def _run(
    workload: str, way: Way, number: int, seeds: int, *, workers: int = 1, replicas: int = 1, cores: Cores = 2
) -> Run:
    """Returns a run to the paper's target with ``number`` instances in flight; of torch, with that many threads."""
    size = {"workers": f"{workers}", "replicas": f"{replicas}", "both": f"{replicas}x{workers // replicas}"}
    prefix = "" if cores == 2 else f"c{cores}-"
    torch = way == "torch"
    return Run(
        f"{prefix}{workload}-{FILES.get(way, way)}{size.get(way, '')}-{number}",
        workload,
        way,
        None if torch else number,
        tuple(range(seeds)),
        replicas=replicas,
        workers=number if torch else workers,
        target=PAPER[workload].target,
        epochs=EPOCHS[workload],
        cores=cores,
    )


# -- Table 1, on 2 cores

REPLICAS = {"mnist": 8, "list-reduction": 4, "sentiment": 32, "babi15": 32, "qm9": 32}
"""Instances in flight of two replicas. The paper has them for list reduction only."""


def _table() -> Iterable[Run]:
    for workload, paper in PAPER.items():
        seeds = SEEDS[workload]
        numbers = [row.max_active_keys for row in paper.rows if row.replicas == 1]
        yield from (_run(workload, "sync", number, seeds) for number in numbers)
        yield from (_run(workload, "workers", number, seeds, workers=2) for number in numbers)
        yield _run(workload, "replicas", REPLICAS[workload], seeds, replicas=2)
        yield from (_run(workload, "torch", threads, seeds) for threads in (1, 2))


# -- studies, on 2 cores

FREQUENCIES = (50, 1600, 3200, 12_800)
EMBEDDING = 1000
"""Gradients in an update of the embedding, in the paper."""


def _frequency() -> Iterable[Run]:
    """Sentiment on two workers; the embedding has the paper's number, or that of the other nodes if it is larger."""
    for number in FREQUENCIES:
        args = ("--min-update-frequency", f"{number}", "--update-after", f"embedding={max(EMBEDDING, number)}")
        name = f"sentiment-frequency-{number}"
        yield Run(name, "sentiment", "workers", 16, (0,), "frequency", workers=2, epochs=8, args=args, timed=False)


REMEDIES: tuple[tuple[str, ...], ...] = (
    ("--weights", "current", "--stale-rate", "full"),
    ("--weights", "stash", "--stale-rate", "full"),
    ("--weights", "estimate", "--stale-rate", "full"),
    ("--weights", "predict", "--stale-rate", "full"),
    ("--weights", "stash", "--stale-rate", "annealed"),
    ("--weights", "stash", "--stale-rate", "inverse"),
    ("--weights", "stash", "--stale-rate", "full", "--stale-momentum", "lowered"),
)
"""Options against staleness that are compared; the first is to do nothing, the second the default on workers."""
STALENESS = {
    "mnist": (3, (4, 8), 3),
    "list-reduction": (6, (1, 4, 16, 64), 3),
    "babi15": (6, (1, 4, 16), 5),
}
"""Epochs, instances in flight and seeds. MNIST diverges at its rate with 16 and more, sentiment is slow one by one."""


def remedy_name(args: Sequence[str]) -> str:
    """Returns the values of the options, and the names of those without one, fit for a file: ``stash``."""
    words = []
    for word, after in zip(args, [*args[1:], "--"], strict=True):
        if not word.startswith("--"):
            words.append(word)
        elif after.startswith("--"):
            words.append(word[2:])
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


def _staleness() -> Iterable[Run]:
    for workload, (epochs, numbers, seeds) in STALENESS.items():
        for remedy in REMEDIES:
            for number in numbers:
                name = f"{workload}-staleness-{remedy_name(remedy)}-{number}"
                yield Run(
                    name,
                    workload,
                    "interleaved",
                    number,
                    tuple(range(seeds)),
                    "staleness",
                    epochs=epochs,
                    args=remedy,
                    timed=False,
                )


# -- time to the target, on 16 cores

THREADS = (1, 2, 4, 8, 16)
LAYOUTS: dict[str, tuple[tuple[Way, int, int, int], ...]] = {
    "mnist": (
        ("workers", 4, 1, 8),
        ("workers", 8, 1, 16),
        *(("replicas", 1, copies, 2 * copies) for copies in (4, 8, 16)),
        ("both", 16, 4, 16),
    ),
    "list-reduction": (
        ("workers", 4, 1, 16),
        *(("replicas", 1, copies, 2 * copies) for copies in (2, 4, 8, 16)),
        ("both", 16, 8, 32),
    ),
    "sentiment": (
        ("workers", 8, 1, 64),
        ("replicas", 1, 8, 128),
        ("replicas", 1, 16, 128),
        ("replicas", 1, 16, 256),
        ("both", 16, 8, 128),
    ),
    "qm9": (("workers", 8, 1, 128), ("replicas", 1, 8, 128), ("replicas", 1, 16, 256), ("both", 16, 8, 256)),
}
"""Way, workers in all, replicas, instances in flight."""
MOST_EPOCHS = {"qm9": 20}
"""Fewer than in `EPOCHS`: a run that misses its target should not take all the time there is."""
SPEED_ONLY = {("qm9", 1), ("qm9", 2)}
"""Workload and torch threads of runs of one epoch without a target: to the target they would take longer than a lease
of that machine, and their speed shows that they are not the fastest."""


def _sixteen() -> Iterable[Run]:
    for workload, layouts in LAYOUTS.items():
        seeds = min(3, SEEDS[workload])
        runs = [
            _run(workload, way, number, seeds, workers=workers, replicas=replicas, cores=16)
            for way, workers, replicas, number in layouts
        ]
        runs += [_run(workload, "torch", threads, seeds, cores=16) for threads in THREADS]
        for run in runs:
            if run.way == "torch" and (workload, run.workers) in SPEED_ONLY:
                yield replace(run, target=None, epochs=1)
            else:
                yield replace(run, epochs=MOST_EPOCHS.get(workload, run.epochs))


# -- the asynchrony grid, on 16 cores

GRID_REPLICAS = 8
GRID_KEYS = (8, 16, 32, 64)
GRID_FREQUENCIES = (1, 2, 4, 8)
"""Instances in an update of a replica. An instance is a bucket of `BUCKET` sequences."""
BUCKET = 100
GRID_TARGET = 0.96
GRID = ("--learning-rate", "0.002", "--decay", "0.93", "--clip-norm", "1")
"""Options of all cells. The rate falls slowly: with few and late updates, training takes more epochs."""


def _grid() -> Iterable[Run]:
    for frequency in GRID_FREQUENCIES:
        for keys in GRID_KEYS:
            yield Run(
                f"c16-grid-{keys}-{frequency}",
                "list-reduction",
                "replicas",
                keys,
                (0, 1, 2),
                "grid",
                replicas=GRID_REPLICAS,
                target=GRID_TARGET,
                epochs=30,
                args=("--min-update-frequency", f"{frequency}", *GRID),
                cores=16,
            )


# -- QM9, further down, on a GPU

BEST_TARGET = 3.8
BEST_IN_FLIGHT = 128
CHOSEN_ON, REPORTED_ON = 0, 1
"""Seeds of the split on which the settings were chosen, and of that on which they are reported. The bound is judged
only if these differ."""
BEST = (
    *("--min-update-frequency", "128", "--hidden", "300", "--steps", "6", "--loss", "absolute"),
    *("--hydrogens", "counts"),
    *("--learning-rate", "0.001", "--decay", "0.89", "--weight-decay", "0.03", "--device", "cuda"),
    *("--split", f"{REPORTED_ON}"),
)
"""A wider model with more steps, the absolute error as its loss, and hydrogens as features: half the work."""


def _best() -> Iterable[Run]:
    yield Run(
        "c16-qm9-best",
        "qm9",
        "sync",
        BEST_IN_FLIGHT,
        (0,),
        "best",
        target=BEST_TARGET,
        epochs=EPOCHS["qm9"],
        args=BEST,
        cores=16,
        timed=False,
    )


RUNS: tuple[Run, ...] = (*_table(), *_frequency(), *_staleness(), *_sixteen(), *_grid(), *_best())


# -- a part of it in ten minutes

QUICK_SECONDS = 480.0
"""No run of the quick part starts later than this."""
QUICK_EPOCHS = {
    "mnist-waves-4": 4,
    "mnist-workers2-4": 4,
    "mnist-torch-1": 4,
    "list-reduction-waves-16": 9,
    "list-reduction-workers2-16": 9,
    "list-reduction-replicas2-4": 9,
    "list-reduction-torch-1": 9,
    "babi15-waves-16": 8,
    "babi15-workers2-16": 8,
    "babi15-torch-1": 8,
    "sentiment-waves-16": 3,
    "sentiment-workers2-16": 3,
    "list-reduction-staleness-current-full-4": 2,
    "list-reduction-staleness-current-full-16": 2,
    "list-reduction-staleness-stash-annealed-4": 2,
    "list-reduction-staleness-stash-annealed-16": 2,
    "sentiment-frequency-50": 1,
    "sentiment-frequency-3200": 1,
}
"""Runs of the quick part, and their epochs at most."""
QUICK: tuple[Run, ...] = tuple(
    replace(run, seeds=(0,), epochs=QUICK_EPOCHS[run.name]) for run in RUNS if run.name in QUICK_EPOCHS
)
