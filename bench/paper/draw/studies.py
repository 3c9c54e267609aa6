"""Pictures of two studies: the number of gradients in an update, and the remedies against staleness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.paper.draw.style import COLOURS, SERIES, SMALL, dress, name_lines, shades
from bench.paper.figures import PAPER
from bench.paper.results import Results
from bench.paper.study import batch_of, frequency_of, reference, remedies
from bench.paper.table import stale_text
from bench.picture import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LEAST = 2.0
"""Percent of accuracy that a panel of remedies spans at least."""


def frequency(results: Results) -> Figure:
    """Returns accuracy after every epoch, a line for each number of gradients in an update; and the throughput."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    runs, beside = results.of("frequency"), reference(results)
    rates = [one.train for one in runs if one.train is not None]
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    curves, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    colours, names = shades(len(runs)), [f"{frequency_of(one.run):,}" for one in runs]
    lines = [(one, colour, name, "-") for one, colour, name in zip(runs, colours, names, strict=True)]
    if beside is not None:
        lines.append((beside, COLOURS["torch"], batch_of(beside), "--"))
    most = max(one.run.epochs for one in runs)
    ends = []
    for one, colour, name, style in lines:
        curve = [(epoch, 100 * value) for epoch, _, value in one.middle().curve() if epoch <= most]
        if curve:
            epochs, values = zip(*curve, strict=True)
            curves.plot(epochs, values, style, marker="o", markersize=3, linewidth=1.6, color=colour, zorder=3)
            ends.append((epochs[-1], values[-1], name, colour))
    paper = runs[0].paper
    curves.axhline(100 * paper.target, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    dress(curves, f"{paper.title}, {runs[0].run.title()}; lines: gradients in an update", "epochs", "accuracy, %")
    curves.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    curves.set_xlim(0.8, most + 0.1 * max(1, most - 1))
    curves.set_ylim(curves.get_ylim())
    if len(rates) == len(runs):
        _bars(bars, names, rates, colours, f"{paper.unit}/s in training")
    else:
        bars.set_visible(False)
    figure.draw_without_rendering()
    name_lines(curves, ends)
    return figure


def _bars(axes: Axes, names: list[str], rates: list[float], colours: list[str], title: str) -> None:
    axes.barh(range(len(names)), rates, color=colours, height=0.62)
    for place, rate in enumerate(rates):
        axes.text(rate + 0.012 * max(rates), place, f"{rate:,.0f}", va="center", fontsize=SMALL, color=INK)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    dress(axes, title, title, "gradients in an update")
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.set_xlabel("")
    axes.set_xlim(0, 1.18 * max(rates))
    axes.grid(visible=False, axis="y")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="y", length=0)


def staleness(results: Results) -> Figure:
    """Returns accuracy against instances in flight, a panel for each task and a line for each remedy."""
    from matplotlib.figure import Figure

    tasks = [name for name in PAPER if results.of("staleness", name)]
    figure = Figure(figsize=(max(5.0, 3.6 * len(tasks)), 3.5), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    ends = [_remedies(axes, name, results) for axes, name in zip(panels, tasks, strict=True)]
    figure.draw_without_rendering()
    for axes, lines in zip(panels, ends, strict=True):
        name_lines(axes, lines)
    return figure


def _remedies(axes: Axes, name: str, results: Results) -> list[tuple[float, float, str, str]]:
    """Draw the lines of a task; returns their ends with names and colours."""
    paper, planned = PAPER[name], results.lines("staleness", name)
    numbers = sorted({run.max_active_keys or 0 for run, _ in planned})
    scale = 100 if paper.higher_is_better else 1
    named, ends = remedies(results, name), []
    for (remedy, runs), colour in zip(named.items(), _colours(len(named)), strict=True):
        points = [(numbers.index(m.run.max_active_keys or 0), scale * m.last) for m in runs if m.last is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, "o-", color=colour, markersize=4, linewidth=1.6, zorder=3)
            for one, place in ((m, numbers.index(m.run.max_active_keys or 0)) for m in runs if m.last is not None):
                lasts = [scale * seed.curve()[-1][2] for seed in one.seeds]
                axes.plot([place, place], [min(lasts), max(lasts)], color=colour, linewidth=1, alpha=0.4, zorder=2)
            ends.append((x[-1], y[-1], remedy, colour))
    first = next(iter(named.values()), [])
    stale = {one.run.max_active_keys: stale_text(one) for one in first}
    axes.set_xticks(range(len(numbers)), [f"{number}\n{stale.get(number, '-')}" for number in numbers])
    epochs = max(run.epochs for run, _ in planned)
    dress(
        axes,
        f"{paper.title}, after {epochs} epochs",
        f"instances in flight; below: staleness ({next(iter(named))})",
        "accuracy, %" if paper.higher_is_better else "error",
    )
    axes.set_xlim(-0.15, len(numbers) - 0.8)
    axes.set_ylim(_at_least(*axes.get_ylim(), LEAST if paper.higher_is_better else 0.0))
    return ends


def _at_least(low: float, high: float, least: float) -> tuple[float, float]:
    """Returns limits that are at least so far apart: a line of noise should look flat."""
    more = max(0.0, least - (high - low)) / 2
    return low - more, high + more


def _colours(count: int) -> list[str]:
    return [SERIES[i % len(SERIES)] for i in range(count)]
