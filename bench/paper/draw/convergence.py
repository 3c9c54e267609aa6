"""Accuracy against seconds and against epochs, for each max_active_keys of the paper: small multiples.

                 1 in flight    4 in flight    16 in flight    2 replicas
    seconds      ┌──────┐       ┌──────┐       ┌──────┐        ┌──────┐     all panels of a row have the same axes
    epochs       └──────┘       └──────┘       └──────┘        └──────┘

A panel has ours on workers (or replicas), the synchronous run of the same number in flight, and torch. The seed of the
median is bold, the others are faint. The list in the panel has medians to the target, and the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.paper.bounds import epochs_text
from bench.paper.draw.style import COLOURS, Key, dress
from bench.paper.figures import Paper, PaperRow
from bench.paper.results import Measured, Results, Seed
from bench.paper.table import seconds_text
from bench.picture import FAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRIP = 0.3
"""Part of a panel's height that is kept free for its list."""
MARK = 20
"""Epochs up to which every validation is a dot."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A column of the picture."""

    title: str
    runs: tuple[Measured, ...]
    row: PaperRow | None
    """The paper's."""


def columns(paper: Paper, results: Results) -> list[Panel]:
    """Returns the columns that have a run of ours."""
    every = results.of("table", paper.workload, 2)
    torch = [one for one in every if one.run.way == "torch"]
    beside = min(torch, key=lambda one: (one.seconds is None, one.seconds or 0.0), default=None)
    found = []
    for row in (row for row in paper.rows if row.replicas == 1):
        ours = [m for m in every if m.run.way in ("sync", "workers") and m.run.max_active_keys == row.max_active_keys]
        if ours:
            found.append(Panel(f"{row.max_active_keys} in flight", _with(ours, beside), row))
    copies = [one for one in every if one.run.way == "replicas"]
    if copies:
        run = copies[0].run
        row_of_copies = paper.row(run.max_active_keys or 0, run.replicas)
        found.append(Panel(run.title(), _with(copies[:1], beside), row_of_copies))
    return found


def _with(ours: Sequence[Measured], beside: Measured | None) -> tuple[Measured, ...]:
    return (*ours, *([] if beside is None else [beside]))


def convergence(paper: Paper, results: Results) -> Figure:
    """Returns the picture of a task."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels = columns(paper, results)
    figure = Figure(figsize=(max(5.0, 0.7 + 2.75 * len(panels)), 5.2), layout="constrained")
    grid = figure.subplots(2, len(panels), sharey=True, sharex="row", squeeze=False)
    scale = 100 if paper.higher_is_better else 1
    for number, panel in enumerate(panels):
        for axes, timed in ((grid[0][number], True), (grid[1][number], False)):
            _draw(axes, panel, paper, timed=timed)
            axes.axhline(scale * paper.target, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=not timed, steps=[1, 2, 5, 10]))
            axes.xaxis.set_major_formatter("{x:,g}")
    low, high = _limits(paper, panels, scale)
    for row, name in zip(grid, ("seconds", "epochs"), strict=True):
        row[0].set_xlim(0, 1.04 * _longest(panels, timed=name == "seconds"))  # of all panels of the row
        for number, (axes, panel) in enumerate(zip(row, panels, strict=True)):
            metric = "accuracy, %" if paper.higher_is_better else "mean absolute error, 0.1 D"
            dress(axes, panel.title if name == "seconds" else "", name, metric if number == 0 else "")
            axes.set_ylim(low, high)
    goal = paper.shown(paper.target, 0) if paper.higher_is_better else f"{paper.target:g}"
    figure.suptitle(f"{paper.title}, 2 cores; dashed: the target, {goal}", fontsize=10, x=0.01, ha="left")
    return figure


def _draw(axes: Axes, panel: Panel, paper: Paper, *, timed: bool) -> None:
    key, scale = Key(top=not paper.higher_is_better), 100 if paper.higher_is_better else 1
    for one in panel.runs:
        colour = COLOURS[one.run.way]
        if timed and not one.alone:
            key.add(f"{one.run.label()}: not timed", colour)
            continue
        middle = one.middle()
        for seed in one.seeds:
            bold = seed is middle
            look: dict[str, Any] = {"color": colour, "linewidth": 1.9 if bold else 0.7, "alpha": 1.0 if bold else 0.35}
            if bold and len(seed.report["history"]) <= MARK:
                look |= {"marker": "o", "markersize": 3}
            above = (2.0 if one.run.way == "torch" else 3.0) + 0.5 * bold
            axes.plot(*_points(seed, scale, timed=timed), **look, zorder=above)
        end = f"{seconds_text(one.seconds)} s" if timed else epochs_text(one)
        key.add(f"{one.run.label()}: {end}", colour)
    if panel.row is not None:
        end = f"{seconds_text(panel.row.seconds)} s" if timed else f"{panel.row.epochs}"
        key.add(f"the paper, 16 cores: {end}", FAINT)
    key.write(axes)


def _points(seed: Seed, scale: float, *, timed: bool) -> tuple[list[float], list[float]]:
    curve = seed.curve()
    return [seconds if timed else epoch for epoch, seconds, _ in curve], [scale * value for _, _, value in curve]


def _longest(panels: Sequence[Panel], *, timed: bool) -> float:
    """Returns the largest number of seconds or epochs that is drawn."""
    runs = [one for panel in panels for one in panel.runs if one.alone or not timed]
    return max((x for one in runs for seed in one.seeds for x in _points(seed, 1, timed=timed)[0]), default=1.0)


def _limits(paper: Paper, panels: Sequence[Panel], scale: float) -> tuple[float, float]:
    """Returns limits of the values: those of all lines and the target, and the strip of the list."""
    seeds = [seed for panel in panels for one in panel.runs for seed in one.seeds]
    values = [scale * paper.target, *(scale * value for seed in seeds for _, _, value in seed.curve())]
    low, high = min(values), max(values)
    room = max(high - low, 1e-3)
    if paper.higher_is_better:
        return low - room * STRIP / (1 - STRIP), high + 0.06 * room
    return low - 0.06 * room, high + room * STRIP / (1 - STRIP)
