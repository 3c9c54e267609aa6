"""Pictures of results: a bar for each contender, ours in colour."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ampnet.checkpoint.output import replacing
from bench.result import Line, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"ours": "#2a6fb0", "peer": "#9aa3ab", "external": "#c9cfd4"}
INK, FAINT = "#1b1f23", "#6f7982"
HEIGHT = 0.3
"""Inches of a bar."""


def paint(result: Result, path: Path) -> None:
    """Training on the left, validation on the right; the fastest at the top."""
    from matplotlib.figure import Figure

    lines = sorted(result.lines, key=lambda line: line.best)
    figure = Figure(figsize=(10, 1.3 + HEIGHT * len(lines)), layout="constrained")
    train, valid = figure.subplots(1, 2, sharey=True)
    _bars(train, lines, [line.best for line in lines], "training", result.unit)
    _bars(valid, lines, [line.valid or 0.0 for line in lines], "validation", result.unit)
    for place, line in enumerate(lines):
        train.plot([min(line.turns), line.median], [place, place], color=INK, linewidth=1)
        train.plot([line.median], [place], "|", color=INK, markersize=7)
    figure.suptitle(f"{result.workload}: {result.about}", fontsize=11, x=0.01, ha="left", color=INK)
    machine = f"{result.machine['processor']}, {result.machine['cores']} cores, torch {result.machine['torch']}"
    turns = result.settings["repeats"]
    hand = "light grey: hand-written programs; " if any(line.kind == "external" for line in lines) else ""
    note = f"best of {turns} turn{'s' * (turns > 1)}; thin line: from the slowest to the median; {hand}{machine}"
    figure.supxlabel(note, fontsize=7.5, color=FAINT, x=0.01, ha="left")
    save(figure, path)


def _bars(axes: Axes, lines: list[Line], values: list[float], title: str, unit: str) -> None:
    places = range(len(lines))
    axes.barh(places, values, color=[COLOURS[line.kind] for line in lines], height=0.72)
    most = max(values, default=1.0) or 1.0
    for place, value in zip(places, values, strict=True):
        axes.text(value + 0.012 * most, place, f"{value:,.0f}" if value else "-", va="center", fontsize=8, color=INK)
    axes.set_yticks(places, [line.row for line in lines], fontsize=8.5, color=INK)
    axes.set_title(f"{title}, {unit}/s", fontsize=9, loc="left", color=INK)
    axes.set_xlim(0, 1.17 * most)
    axes.tick_params(axis="x", labelsize=7.5, colors=FAINT)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=6)
    axes.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)


def save(figure: object, path: Path) -> None:
    """Whole or not at all."""
    with replacing(path, "wb") as file:
        figure.savefig(file, format="png", dpi=130)  # type: ignore[attr-defined]
