"""The page of results: text, tables and links to pictures. Every result on it is computed from the files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bench.paper import table
from bench.paper.figures import PAPER, Paper
from bench.paper.picture import paint_all, pictures
from bench.paper.results import Machine, Measured, Results, read
from bench.paper.runs import BATCH, EMBEDDING
from bench.rows import CHECKOUT

RESULTS = CHECKOUT / "bench" / "results" / "paper"
PAGE = CHECKOUT / "docs" / "results.md"
PICTURES = CHECKOUT / "docs" / "pictures" / "results"

HEAD = """\
# The paper's experiments again

Table 1 of the paper and the studies of its appendix, run on this code. `make experiments` runs all of it, which takes
some hours, and writes this page. Tables and pictures come from the files in `bench/results/paper/`; no figure in them
is typed in.

```
python -m bench.paper --list                          # what there is to run
python -m bench.paper --missing                       # what has no file yet
python -m bench.paper run --only 'mnist-*' --seeds 1  # a part of it
python -m bench.paper write                           # this page again, from the files
```
"""

WAYS = """\
**How it is trained.** *waves* is what the runtime does by default on one core: the instances in flight are computed
together and nodes update at the end of a wave, so nothing is stale. Where updates are counted in instances (all but
sentiment), a wave has no more of them than an update, and the training is the same whatever the number in flight, up
to rounding: only its speed differs. *messages* (`--no-waves`) is the paper's execution, in one process: a node works
on the messages that wait for it and updates while instances are in flight. *workers* is one model parted over
processes, which play their parts of several waves in flight; *replicas* are copies of the model on a process each,
which share their weights without locks. *torch* is plain torch, batched by hand and synchronous
(`bench/paper/baseline.py`).
"""

THROUGHPUT = """\
The appendix's Table 2. A dash is what was not run. Torch is with as many threads as it trained fastest with, of those
that were tried. Replicas stand under waves.
"""

STALENESS = """\
Message by message, without a target: with more instances in flight, gradients are for older weights. In one process the
usual schedule lets a bucket of images go all the way before the next begins, and nothing is stale; there, nodes are
served first come, first served (`--schedule fifo`), which is nearer to the paper's greedy scheduler. With 16 and more
in flight that way, MNIST's loss is soon not finite any more at this rate, and the run ends.
"""

BEST = """\
Not of the paper: how far down the error goes. Wider states, more steps, the absolute error as the loss, weight decay
and larger updates, on a GPU. The settings were chosen by the same validation molecules, so others may fare a little
worse.
"""

TAKEN = """\
## How the numbers were taken

- Each run is a process of its own{beside}. Ours has one torch thread in each process.
- Epochs and seconds are those to the target, medians over the seeds. A seed that did not get there counts as infinitely
  many; where half or more did not, there is a dash and the best value that any validation had.
- Seconds end with the validation that reached the target. Loading data and making the graph are not in them. Of ours,
  making and rehearsing instances is in them; of torch, collating batches is not.
- Instances a second are those of all epochs of a run, medians over the seeds; what is prepared before the first epoch
  (molecules, trees) does not count there. An instance is {units}.
- Torch has the optimizer, rates and clipping of ours, which were chosen for ours.
- Staleness is how many updates a node made between forward and backward of a message: the mean over all messages and
  nodes.
- The paper's figures are from its Tables 1 and 2: machines with 16 cores, medians of 20 runs or more.
"""


def write(folder: Path = RESULTS, page: Path = PAGE, images: Path = PICTURES) -> Results:
    """Pictures and page, from the files in the folder."""
    results = read(folder)
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
    """The page. ``images`` is the folder of pictures, seen from it."""
    if not results.measured:
        return HEAD + "\nNothing has been run yet.\n"
    drawn = {name: f"![{name}]({images}/{name}.png)" for name in pictures(results)}
    parts = [
        HEAD,
        *_tried(results),
        _machines(results),
        WAYS,
        "## What we ask of ourselves",
        table.bounds_count(results),
    ]
    parts.append(table.bounds_table(results))
    for paper in PAPER.values():
        if results.of("table", paper.workload):
            parts += [*_workload(paper, results), drawn[paper.workload]]
    if results.of("best"):
        parts += ["## QM9, further down", *_best(results)]
    if results.of("table"):
        parts += ["## Throughput", THROUGHPUT, table.throughput_table(results)]
    if results.of("frequency"):
        parts += [*_frequency(results), drawn["frequency"]]
    if results.of("staleness"):
        parts += [*_staleness(results), drawn["staleness"]]
    parts.append(TAKEN.format(units=_units(), beside=_beside(results)))
    parts += _not_run(results)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _tried(results: Results) -> Iterable[str]:
    """A warning, where results are not of all data."""
    limits = {seed.report["settings"].get("limit") for one in results.measured for seed in one.seeds} - {None}
    if limits:
        yield f"**Not results:** runs with {', '.join(map(str, sorted(limits)))} training records, to try this out."


def _machines(results: Results) -> str:
    machines = results.machines
    loads = [seed.load for one in results.measured for seed in one.seeds if seed.load is not None]
    busy = f"Its load before a run was {min(loads):.1f} to {max(loads):.1f}." if loads else ""
    if len(machines) == 1:
        return f"**Machine.** {machine_text(machines[0])}. {busy}"
    lines = [f"- {table.letter(machine, machines)}: {machine_text(machine)}" for machine in machines]
    return "\n".join([f"**Machines.** Tables say which lines are from which. {busy.replace('Its', 'The')}", "", *lines])


def machine_text(machine: Machine) -> str:
    """``AMD EPYC, 2 cores; Python 3.11.7, torch 2.13``"""
    facts = dict(machine)
    hard = [str(facts["processor"]), f"{facts['cores']} core{'s' * (facts['cores'] != 1)}"]
    hard += [str(facts["gpu"])] if "gpu" in facts else []
    return f"{', '.join(hard)}; Python {facts['python']}, torch {facts['torch']}"


def _workload(paper: Paper, results: Results) -> Iterable[str]:
    goal = paper.shown(paper.target, 0) if paper.higher_is_better else f"an error of {paper.target:g} x 0.1 Debye"
    batch = BATCH[paper.workload]
    said = f"{_capital(paper.about)}; to {goal}. Batches of torch have {batch} {paper.unit}."
    yield f"## {paper.title}"
    yield " ".join([said, *(_vectors(results) if paper.workload == "sentiment" else [])])
    yield table.workload_table(paper, results)


def _vectors(results: Results) -> Iterable[str]:
    """What the embedding began with, as the reports say."""
    runs = [*results.of("table", "sentiment"), *results.of("frequency")]
    names = [seed.report["settings"].get("vectors") for one in runs for seed in one.seeds]
    told = " and ".join(f"`{name}`" for name in dict.fromkeys(names) if name is not None)
    if told:
        yield f"The embedding begins with the word vectors {told} (`docs/data.md`); the paper's are GloVe's."


def _best(results: Results) -> Iterable[str]:
    (one,) = results.of("best")
    yield BEST
    yield f"```\n{one.seeds[0].command}\n```"
    yield table.best_table(results)
    yield from (seed.note for seed in one.seeds if seed.note)


def _frequency(results: Results) -> Iterable[str]:
    first = results.of("frequency")[0]
    yield "## How many gradients make an update"
    yield (
        f"{first.paper.title}, {first.run.title()}, {first.run.epochs} epochs without a target: accuracy after each. "
        f"The embedding updates after {EMBEDDING:,} gradients, or as many as the other nodes. A wave of 16 trees has "
        f"about 600 gradients for the classifier and 300 for each cell, and a node updates at the end of a wave: with "
        f"50, after each. The baseline stops at its target."
    )
    yield table.frequency_table(results)


def _staleness(results: Results) -> Iterable[str]:
    yield "## Staleness"
    yield STALENESS
    for paper in PAPER.values():
        runs = results.of("staleness", paper.workload)
        if runs:
            options = f", `{' '.join(runs[0].run.args)}`" if runs[0].run.args else ""
            yield f"{paper.title}, {max(one.run.epochs for one in runs)} epochs{options}:"
            yield table.staleness_table(paper.workload, results)


def _not_run(results: Results) -> Iterable[str]:
    if results.missing:
        yield "Not run: " + ", ".join(f"`{run.name}`" for run in results.missing) + "."
    fewer = [f"`{m.run.name}` ({len(m.seeds)} of {len(m.run.seeds)})" for m in results.measured if _fewer(m)]
    if fewer:
        yield f"Fewer seeds than planned: {', '.join(fewer)}."


def _beside(results: Results) -> str:
    """How runs shared the machine."""
    shared = [seed for one in results.measured for seed in one.seeds if not seed.alone]
    if not shared:
        return ", and one runs at a time"
    return f". {len(shared)} of those with one process were kept to one core, with others on the rest"


def _fewer(one: Measured) -> bool:
    return len(one.seeds) < len(one.run.seeds)


def _units() -> str:
    units = [paper.unit.removesuffix("s") for paper in PAPER.values()]
    named = [f"a{'n' * (unit[0] in 'aeiou')} {unit}" for unit in units]
    return f"{', '.join(named[:-1])} or {named[-1]}, never a bucket of them"


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]
