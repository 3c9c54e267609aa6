"""Pictures of the page of results: how runs converge, how often nodes update, staleness.

The seed of the median is a bold line, the others are thin. Ours are blue (waves) and teal (processes), by
messages is orange, torch is grey; darker is more in flight. A star is the paper's best row, a cross its TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.paper.figures import PAPER, Paper
from bench.paper.results import Measured, Results
from bench.paper.table import batch_of, frequency_of, reference
from bench.picture import FAINT, INK, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

SHADES = {
    "waves": ("#9ec9e8", "#4a97d2", "#15508c"),
    "replicas": ("#45b5aa", "#0e6f68"),
    "workers": ("#7fd0b2",),
    "messages": ("#fbc98a", "#f0912c", "#b4560a"),
    "torch": ("#b9c0c6", "#7b848c"),
}
"""By way, from few in flight (or threads) to many."""


MANY = 20
"""Epochs beyond which their dots are small."""


def paint_all(results: Results, folder: Path) -> list[str]:
    """All pictures that there are results for; returns the names of the files. Those of other names are left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    names = pictures(results)
    for name in names:
        path = folder / f"{name}.png"
        if name == "frequency":
            save(_frequency(results.of("frequency"), reference(results)), path)
        elif name == "staleness":
            save(_staleness(results), path)
        else:
            save(_convergence(PAPER[name], results.of("table", name)), path)
    return names


def pictures(results: Results) -> list[str]:
    """Names of the pictures that there are results for."""
    names = [name for name in PAPER if results.of("table", name)]
    return names + [study for study in ("frequency", "staleness") if results.of(study)]


def colours(runs: Sequence[Measured]) -> list[str]:
    """One for each: shades of its way, spread over as many as there are of it."""
    found = []
    for one in runs:
        alike = [other for other in runs if other.run.way == one.run.way]
        shades = SHADES[one.run.way]
        at = alike.index(one) / max(1, len(alike) - 1) if len(alike) > 1 else 1.0
        found.append(shades[round(at * (len(shades) - 1))])
    return found


def _convergence(paper: Paper, runs: Sequence[Measured]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, MaxNLocator

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    by_time, by_epoch = figure.subplots(1, 2, sharey=True)
    scale = 100 if paper.higher_is_better else 1
    for one, colour in zip(runs, colours(runs), strict=True):
        middle = one.middle()
        for seed in one.seeds:
            bold = seed is middle
            look = {"color": colour, "linewidth": 2.2 if bold else 0.7, "alpha": 1.0 if bold else 0.55}
            if bold:
                size = 3.5 if len(seed.report["history"]) <= MANY else 1.5
                look |= {"marker": "o", "markersize": size, "label": one.run.title()}
            curve = seed.curve()
            values = [scale * value for _, _, value in curve]
            by_time.plot([seconds for _, seconds, _ in curve], values, **look)
            by_epoch.plot([epoch for epoch, _, _ in curve], values, **look)
    best, theirs = min(paper.rows, key=lambda row: row.seconds), paper.tensorflow
    for axes, ours, other in ((by_time, best.seconds, theirs.seconds), (by_epoch, best.epochs, theirs.epochs)):
        goal = scale * paper.target
        axes.axhline(goal, color=INK, linewidth=1, linestyle="--", label=f"target, {paper.shown(paper.target, 0)}")
        axes.plot([ours], [goal], "*", color=INK, markersize=11, zorder=5, label="the paper's AMPNet, fastest")
        axes.plot([other], [goal], "X", color=INK, markersize=8, zorder=5, label="the paper's TensorFlow")
    by_time.set_xscale("log")
    _plain_ticks(by_time.xaxis, LogLocator(subs=(1, 2, 5)), "{x:,g}")
    metric = "accuracy, %" if paper.higher_is_better else "mean absolute error, 0.1 D"
    if not paper.higher_is_better:
        by_time.set_yscale("log")
        _plain_ticks(by_time.yaxis, MaxNLocator(6), "{x:g}")
    _dress(by_time, f"{paper.title}: {paper.about}", "seconds", metric)
    _dress(by_epoch, "", "epochs", "")
    handles, labels = by_epoch.get_legend_handles_labels()
    by_epoch.legend(
        handles, labels, fontsize=8, frameon=False, labelcolor=INK, loc="center left", bbox_to_anchor=(1.01, 0.5)
    )
    return figure


def _plain_ticks(axis: Axis, places: Locator, form: str) -> None:
    """Numbers as people write them, on an axis that has powers of ten else."""
    from matplotlib.ticker import NullFormatter

    axis.set_major_locator(places)
    axis.set_major_formatter(form)
    axis.set_minor_formatter(NullFormatter())


def _frequency(runs: Sequence[Measured], beside: Measured | None) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    curves, bars = figure.subplots(1, 2, width_ratios=(1.6, 1))
    shades = [colormaps["viridis"](0.05 + 0.8 * i / max(1, len(runs) - 1)) for i in range(len(runs))]
    names = [f"{frequency_of(one):,}" for one in runs]
    for one, shade, name in zip(runs, shades, names, strict=True):
        curve = one.middle().curve()
        curves.plot(
            [e for e, _, _ in curve], [100 * v for _, _, v in curve], "o-", color=shade, markersize=4, label=name
        )
    if beside is not None:
        curve = beside.middle().curve()
        values = [100 * v for _, _, v in curve]
        curves.plot(
            [e for e, _, _ in curve], values, "s--", color=SHADES["torch"][1], markersize=4, label=batch_of(beside)
        )
    paper = runs[0].paper
    curves.axhline(100 * paper.target, color=INK, linewidth=1, linestyle="--")
    curves.legend(fontsize=8, frameon=False, labelcolor=INK, title="gradients in an update", title_fontsize=8)
    _dress(curves, f"{paper.title}, {runs[0].run.title()}", "epochs", "accuracy, %")
    speeds = [one.train or 0.0 for one in runs]
    bars.bar(names, speeds, color=shades, width=0.65)
    for place, speed in enumerate(speeds):
        bars.text(place, speed, f"{speed:,.0f}", ha="center", va="bottom", fontsize=8, color=INK)
    _dress(bars, "throughput", "gradients in an update", f"{paper.unit}/s in training")
    return figure


def _staleness(results: Results) -> Figure:
    from matplotlib.figure import Figure

    groups = {name: runs for name in PAPER if (runs := results.of("staleness", name))}
    figure = Figure(figsize=(5.5 * len(groups), 3.8), layout="constrained")
    every = figure.subplots(1, len(groups), squeeze=False)[0]
    for axes, (name, runs) in zip(every, groups.items(), strict=True):
        ran = [one for one in runs if one.staleness is not None and one.last is not None]
        points = [(one.staleness or 0.0, 100 * (one.last or 0.0), one.run.max_active_keys) for one in ran]
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], "o-", color=SHADES["messages"][1])
        for x, y, number in points:
            axes.annotate(f"{number}", (x, y), (5, 6), textcoords="offset points", fontsize=8.5, color=INK)
        axes.margins(0.12)
        epochs = max(one.run.epochs for one in runs)
        title = f"{PAPER[name].title}: by messages, numbers are instances in flight"
        _dress(axes, title, "mean staleness, updates", f"accuracy after {epochs} epochs, %")
    return figure


def _dress(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=9.5, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=8.5, color=INK)
    axes.set_ylabel(y, fontsize=8.5, color=INK)
    axes.tick_params(labelsize=8, colors=FAINT)
    axes.grid(color="#e6e9eb", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
