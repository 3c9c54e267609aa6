"""Tables of the studies: the asynchrony grid, gradients in an update, staleness and its remedies, QM9 further down.

    grid         max_active_keys x min_update_frequency: seconds, and epochs, to the target
    frequency    accuracy after every epoch, by the number of gradients in an update
    staleness    accuracy after the last epoch, by instances in flight and by remedy
    best         the lowest error

Dashes are as in `bench.paper.table`.
"""

from __future__ import annotations

import statistics
from math import inf, isinf

from bench.paper.bounds import epochs_text
from bench.paper.plan import BUCKET, GRID_FREQUENCIES, GRID_KEYS, remedy_name
from bench.paper.results import Measured, Results, Seed
from bench.paper.runs import BATCH, Run
from bench.paper.table import markdown, origin, rate_text, seconds_text, stale_text

Cell = tuple[int, int]
"""max_active_keys and min_update_frequency."""


# -- the asynchrony grid


def frequency_of(run: Run) -> int:
    """Returns the gradients in an update of a run of a study."""
    return int(run.option("--min-update-frequency") or 0)


def grid_cells(results: Results) -> dict[Cell, Measured]:
    """Returns the cells that were run."""
    return {(one.run.max_active_keys or 0, frequency_of(one.run)): one for one in results.of("grid")}


def sequences(one: Measured) -> float | None:
    """Returns the median of the training sequences to the target, interpolated between the validations around it."""
    found = statistics.median(_epochs(seed) for seed in one.seeds)
    return None if isinf(found) else found * one.paper.train


def _epochs(seed: Seed) -> float:
    """Returns the epochs to the target as a fraction: where the line between two validations crosses it."""
    before: tuple[float, float] | None = None
    target = float(seed.report["target"] or 0.0)
    for epoch, _, value in seed.curve():
        if seed.reaches(value):
            if before is None or value == before[1]:
                return epoch
            return before[0] + (epoch - before[0]) * (target - before[1]) / (value - before[1])
        before = (epoch, value)
    return inf


def grid_table(results: Results) -> str:
    """Returns the grid: seconds and epochs to the target, sequences per second, staleness."""
    cells = grid_cells(results)
    heads = ["min_update_frequency", *(f"{keys} in flight" for keys in GRID_KEYS)]
    lines = []
    for frequency in GRID_FREQUENCIES:
        name = f"{frequency} ({frequency * BUCKET} sequences)"
        lines.append([name, *(_grid_cell(cells.get((keys, frequency))) for keys in GRID_KEYS)])
    return markdown(heads, lines)


def _grid_cell(one: Measured | None) -> str:
    if one is None:
        return "-"
    end = f"{rate_text(one.train)}/s, staleness {stale_text(one)}"
    if one.epochs is None:
        return f"{epochs_text(one)}; {end}"
    return f"{seconds_text(one.seconds)} s, {one.epochs:g} epochs; {end}"


# -- gradients in an update


def reference(results: Results) -> Measured | None:
    """Returns the baseline of the study of update sizes, which stops at its target."""
    return next((one for one in results.of("table", "sentiment", 2) if one.run.way == "torch"), None)


def batch_of(one: Measured) -> str:
    """Returns ``torch, batches of 25``."""
    return f"torch, batches of {BATCH[one.run.workload]}"


def frequency_table(results: Results) -> str:
    """Returns accuracy after every epoch, by the number of gradients in an update."""
    lines, beside = results.lines("frequency"), reference(results)
    runs = [*(one for _, one in lines if one is not None), *([] if beside is None else [beside])]
    column, tag = origin(results, runs)
    most = max(run.epochs for run, _ in lines)
    heads = ["gradients in an update", *(f"epoch {n}" for n in range(1, most + 1)), "train/s", "staleness", *column]
    cells = []
    for run, one in [*lines, *([] if beside is None else [(beside.run, beside)])]:
        values = [] if one is None else [one.paper.shown(value) for _, _, value in one.middle().curve()][:most]
        values += ["-"] * (most - len(values))
        name = f"{frequency_of(run):,}" if one is None or run.way != "torch" else batch_of(one)
        rate = "-" if one is None else rate_text(one.train)
        cells.append([name, *values, rate, stale_text(one), *tag(one)])
    return markdown(heads, cells)


# -- staleness and remedies


def remedies(results: Results, workload: str) -> dict[str, list[Measured]]:
    """Returns the runs of each remedy that were run, by its name, in the order of the plan."""
    found: dict[str, list[Measured]] = {}
    for run, one in results.lines("staleness", workload):
        found.setdefault(remedy_name(run.args), []).extend([] if one is None else [one])
    return found


def staleness_table(workload: str, results: Results) -> str:
    """Returns accuracy and mean staleness by the number in flight, a line for each remedy."""
    lines = results.lines("staleness", workload)
    numbers = list(dict.fromkeys(run.max_active_keys for run, _ in lines))
    named = list(dict.fromkeys(run.args for run, _ in lines))
    found = {(run.args, run.max_active_keys): one for run, one in lines}
    heads = ["options", *(f"{number} in flight" for number in numbers)]
    cells = [[f"`{' '.join(args)}`", *(_stale_cell(found.get((args, number))) for number in numbers)] for args in named]
    return markdown(heads, cells)


def _stale_cell(one: Measured | None) -> str:
    if one is None:
        return "-"
    value = f"{one.diverged} of {len(one.seeds)} seeds diverged" if one.diverged else one.paper.shown(one.last)
    return f"{value} ({stale_text(one)})"


# -- QM9, further down


def best_table(results: Results) -> str:
    """Returns the run that goes for the lowest error."""
    lines = results.lines("best")
    column, tag = origin(results, (one for _, one in lines))
    heads = ["", "target", "epochs", "seconds", "best", "train/s", "valid/s", *column]
    cells = []
    for run, one in lines:
        if one is not None:
            first = [one.paper.title, one.paper.shown(run.target), epochs_text(one), seconds_text(one.seconds)]
            cells.append([*first, one.paper.shown(one.best, 2), rate_text(one.train), rate_text(one.valid), *tag(one)])
    return markdown(heads, cells)
