"""The page of results: text, tables and pictures. Every result on it is computed from the files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.paper import study, table
from bench.paper.figures import PAPER, Paper
from bench.paper.picture import paint_all, pictures
from bench.paper.plan import (
    BUCKET,
    CHOSEN_ON,
    EMBEDDING,
    GRID,
    GRID_REPLICAS,
    GRID_TARGET,
    REPORTED_ON,
    RUNS,
    SPEED_ONLY,
)
from bench.paper.results import Machine, Results, read
from bench.paper.runs import BATCH, INTERLEAVED, Run
from bench.rows import CHECKOUT

RESULTS = CHECKOUT / "bench" / "results" / "paper"
PAGE = CHECKOUT / "docs" / "results.md"
PICTURES = CHECKOUT / "docs" / "pictures" / "results"
QUICK_RESULTS = CHECKOUT / "build" / "paper-quick"

HEAD = """\
# The paper's experiments, reproduced

Table 1 of the paper, its figures and the studies of its appendix, run on this code. Tables and pictures are made from
the files in `bench/results/paper/`; no result is typed in.

```
make experiments                                      # everything on a machine with 2 cores, some hours
python -m bench.paper --cores 16                      # the part that needs 16 cores
python -m bench.paper --quick                         # a small part, ten minutes
python -m bench.paper --list                          # all runs, with their commands
python -m bench.paper write                           # this page again, from the files
```

A command that was interrupted goes on where it was: a run is skipped if its file is of the same code and the same
command.
"""

WAYS = """\
**Ways to train.** All of ours compute instances in waves.

| way | what it is |
| --- | --- |
| synchronous | one process, one wave in flight: no gradient is stale |
| workers | one model, its nodes split over processes, several waves in flight: the paper's way |
| replicas | copies of the model, one process each, which share their weights without locks |
| replicas of parts | copies of the model, each split over processes |
| interleaved | one process, waves of one instance take turns: gradients are stale, and the same in every run |
| torch | plain torch, batched by hand, synchronous (`bench/paper/baseline.py`) |

*In flight* is the paper's `max_active_keys`: instances that are started and not finished.
"""

TIME = """\
Seconds until the validation that reaches the target, wall clock, on one machine with 16 cores: our ways beside torch
with 1 to 16 threads. In the picture, full colour is the fastest of ours and of torch.
"""

THROUGHPUT = """\
The paper's Table 2. Torch is shown with the number of threads that was fastest. Two cores, where nothing else is said.
"""

TAKEN = """\
## How it was measured

- Each run is a process of its own. A run whose seconds or rates are shown was alone on the machine; others may have run
  side by side, each on cores of its own. Ours has one torch thread in each process.
- Epochs and seconds are those to the target, medians over the seeds. A seed that did not reach it counts as infinitely
  many. Where half of the seeds or more did not, there is a dash, with the best value of any validation.
- Seconds end with the validation that reached the target. They do not include loading the data and building the graph.
  For ours they include making and rehearsing instances; for torch they do not include collating batches.
- Instances per second are those of all epochs of a run, medians over the seeds. They do not include what is prepared
  before the first epoch (molecules, trees). An instance is {units}.
- Torch has the optimizer, learning rates and clipping of ours, which were chosen for ours.
- Staleness is the number of updates of a node between the forward and the backward of a message: the mean over all
  messages and nodes.
- The paper's numbers are from its Tables 1 and 2: machines with 16 cores, medians of 20 runs or more.
- Diverged: a loss or a gradient was not finite, and the run ended.
"""


def write(folder: Path = RESULTS, page: Path = PAGE, images: Path = PICTURES, runs: Sequence[Run] = RUNS) -> Results:
    """Write pictures and page from the files in a folder; returns the results."""
    results = read(folder, runs)
    paint_all(results, images)
    page.parent.mkdir(parents=True, exist_ok=True)
    part = page.with_name(page.name + ".part")
    try:
        part.write_text(text(results, os.path.relpath(images, page.parent)), encoding="utf-8")
        part.replace(page)
    finally:
        part.unlink(missing_ok=True)
    return results


def text(results: Results, images: str = "pictures/results") -> str:
    """Returns the page. ``images`` is the folder of pictures, relative to it."""
    if not results.measured:
        return HEAD + "\nNothing has been run yet.\n"
    drawn = {name: f"![{name}]({images}/{name}.png)" for name in pictures(results)}
    parts = [HEAD, *_tried(results), _code(results), _machines(results), *sections(results, drawn)]
    parts += [TAKEN.format(units=_units()), *_not_run(results)]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def sections(results: Results, drawn: dict[str, str] | None = None) -> list[str]:
    """Returns the text, tables and pictures of all sections that have results."""
    picture = {} if drawn is None else drawn
    parts = ["## Bounds", table.bounds_count(results), table.bounds_table(results), WAYS]
    for paper in PAPER.values():
        if results.of("table", paper.workload, 2):
            parts += [*_workload(paper, results), picture.get(paper.workload, "")]
    if results.of("table", cores=16):
        parts += ["## Time to the target on 16 cores", TIME, *_short(), table.time_table(results)]
        parts.append(picture.get("time", ""))
    if results.of("grid"):
        parts += [*_grid(results), picture.get("grid", "")]
    if results.of("frequency"):
        parts += [*_frequency(results), picture.get("frequency", "")]
    if results.of("staleness"):
        parts += [*_staleness(results), picture.get("staleness", "")]
    if results.of("best"):
        parts += ["## QM9, further down", *_best(results)]
    if results.of("table"):
        parts += ["## Throughput", THROUGHPUT, table.throughput_table(results)]
    return [part for part in parts if part]


# -- what was run, and where


def _tried(results: Results) -> Iterable[str]:
    """Yields a warning if results are not of all data."""
    limits = {seed.report["settings"].get("limit") for one in results.measured for seed in one.seeds} - {None}
    if limits:
        yield f"**Not results:** runs with {', '.join(map(str, sorted(limits)))} training records, to try this out."


def _code(results: Results) -> str:
    """Returns the commits of the results."""
    found = results.commits
    if len(found) == 1:
        return f"**Code.** All {found.total()} files are of commit `{next(iter(found))}`."
    named = ", ".join(f"`{name}` ({count})" for name, count in found.most_common())
    return f"**Code.** The files are of {len(found)} commits: {named}."


def _machines(results: Results) -> str:
    machines = results.machines
    loads = [seed.load for one in results.measured for seed in one.seeds if seed.load is not None]
    busy = f" The load before a run was {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    if len(machines) == 1:
        return f"**Machine.** {machine_text(machines[0])}.{busy}"
    lines = [f"- {table.letter(machine, machines)}: {machine_text(machine)}" for machine in machines]
    return "\n".join([f"**Machines.**{busy}", "", *lines])


def machine_text(machine: Machine) -> str:
    """Returns ``AMD EPYC, 2 cores; Python 3.11.7, torch 2.13``."""
    facts = dict(machine)
    hard = [str(facts["processor"]), f"{facts['cores']} core{'s' * (facts['cores'] != 1)}"]
    hard += [str(facts["gpu"])] if "gpu" in facts else []
    return f"{', '.join(hard)}; Python {facts['python']}, torch {facts['torch']}"


def _not_run(results: Results) -> Iterable[str]:
    if results.missing:
        yield "**Not run:** " + ", ".join(f"`{run.name}`" for run in results.missing) + "."
    fewer = [m for m in results.measured if len(m.seeds) < len(m.run.seeds)]
    if fewer:
        named = ", ".join(f"`{m.run.name}` ({len(m.seeds)} of {len(m.run.seeds)})" for m in fewer)
        yield f"**Fewer seeds than planned:** {named}."


# -- sections


def _workload(paper: Paper, results: Results) -> Iterable[str]:
    goal = paper.shown(paper.target, 0) if paper.higher_is_better else f"an error of {paper.target:g} x 0.1 Debye"
    said = f"{_capital(paper.about)}; to {goal}. Batches of torch have {BATCH[paper.workload]} {paper.unit}."
    yield f"## {paper.title}"
    yield " ".join([said, *(_vectors(results) if paper.workload == "sentiment" else [])])
    yield table.workload_table(paper, results)


def _vectors(results: Results) -> Iterable[str]:
    """Yields the word vectors of the reports."""
    runs = [*results.of("table", "sentiment"), *results.of("frequency")]
    names = [seed.report["settings"].get("vectors") for one in runs for seed in one.seeds]
    told = " and ".join(f"`{name}`" for name in dict.fromkeys(names) if name is not None)
    if told:
        yield f"The embedding is initialised with the word vectors {told} (`docs/data.md`); the paper uses GloVe."


def _short() -> Iterable[str]:
    """Yields which runs of torch are of one epoch only."""
    named = {workload: sorted(t for name, t in SPEED_ONLY if name == workload) for workload, _ in sorted(SPEED_ONLY)}
    for workload, threads in named.items():
        counts = " and ".join(map(str, threads))
        yield f"{PAPER[workload].title} with {counts} torch threads was run for one epoch only, which gives its speed."


def _grid(results: Results) -> Iterable[str]:
    yield "## The asynchrony grid"
    yield (
        f"List reduction, {GRID_REPLICAS} replicas with shared weights, to {100 * GRID_TARGET:g} %, for several "
        f"`max_active_keys` (columns) and `min_update_frequency` (lines). An instance is a bucket of {BUCKET} "
        f"sequences; both numbers count instances, and the second is that of each replica. Options of all cells: "
        f"`{' '.join(GRID)}`."
    )
    yield study.grid_table(results)


def _frequency(results: Results) -> Iterable[str]:
    first = results.of("frequency")[0]
    yield "## Gradients in an update"
    yield (
        f"{first.paper.title}, {first.run.title()}, {first.run.epochs} epochs without a target: accuracy after each "
        f"epoch. A gradient is that of one message: a node of a tree. The embedding updates after {EMBEDDING:,} "
        f"gradients, or as many as the other nodes if that is more. The baseline stops at its target."
    )
    yield study.frequency_table(results)


def _staleness(results: Results) -> Iterable[str]:
    yield "## Staleness and remedies"
    yield (
        f"Accuracy after a fixed number of epochs, with more and more instances in flight; in brackets the mean "
        f"staleness. One process, waves of one instance take turns (`{' '.join(INTERLEAVED)}`). "
        f"A line is a remedy; the first is to do nothing."
    )
    for paper in PAPER.values():
        runs = results.of("staleness", paper.workload)
        if runs:
            seeds = max(len(one.seeds) for one in runs)
            count = f"{seeds} seed{'s' * (seeds != 1)}"
            yield f"{paper.title}, {max(one.run.epochs for one in runs)} epochs, {count}:"
            yield study.staleness_table(paper.workload, results)


def _best(results: Results) -> Iterable[str]:
    (one,) = results.of("best")
    reported = f"The result is of the random split `--split {REPORTED_ON}` of the molecules."
    chosen = f"The settings were chosen on another one, `--split {CHOSEN_ON}`."
    if CHOSEN_ON == REPORTED_ON:
        chosen = "The settings were chosen on the same one, so on others the error may be a little higher."
    yield f"Not of the paper: how far the error goes down. {reported} {chosen}"
    yield f"```\n{one.seeds[0].command}\n```"
    yield study.best_table(results)


def _units() -> str:
    units = [paper.unit.removesuffix("s") for paper in PAPER.values()]
    named = [f"a{'n' * (unit[0] in 'aeiou')} {unit}" for unit in units]
    return f"{', '.join(named[:-1])} or {named[-1]}, never a bucket of them"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]
