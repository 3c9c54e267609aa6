"""The asynchrony grid: throughput against sequences to the target, and the seconds as a map.

    left     a point for every cell, with its max_active_keys inside; a line for each min_update_frequency (muf)
    right    seconds to the target, validations included. Hatched: not reached, with the best accuracy

On a grey line of the left panel, sequences / throughput is the same: the time of training. Sequences are interpolated
between the validations before and after the target was reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.paper.draw.style import PALE, SMALL, dress, name_lines, nice, number, shades
from bench.paper.plan import BUCKET, GRID_FREQUENCIES, GRID_KEYS, GRID_REPLICAS, GRID_TARGET
from bench.paper.results import Measured, Results
from bench.paper.study import grid_cells, sequences
from bench.paper.table import seconds_text
from bench.picture import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THOUSAND = 1000.0


def grid(results: Results) -> Figure:
    """Returns the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.5, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.45, 1))
    cells = grid_cells(results)
    _map(right, cells)
    _points(figure, left, cells)
    title = f"{GRID_REPLICAS} replicas of the list-reduction RNN to {100 * GRID_TARGET:g} %, 16 cores"
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def _points(figure: Figure, axes: Axes, cells: dict[tuple[int, int], Measured]) -> None:
    colours = dict(zip(GRID_FREQUENCIES, shades(len(GRID_FREQUENCIES)), strict=True))
    reached = {
        cell: (far / THOUSAND, one.train / THOUSAND)
        for cell, one in cells.items()
        if (far := sequences(one)) is not None and one.train is not None
    }
    dress(
        axes,
        "circles: max_active_keys; lines: min_update_frequency (muf); grey: equal time",
        "thousand sequences to the target",
        "thousand sequences/s",
    )
    axes.set_title(axes.get_title(loc="left"), fontsize=9, loc="left", color=INK, pad=16)
    if not reached:
        axes.text(0.5, 0.5, "no cell has reached the target", transform=axes.transAxes, ha="center", color=FAINT)
        return
    across, up = zip(*reached.values(), strict=True)
    axes.set_xlim(*_room(min(across), max(across)))
    axes.set_ylim(*_room(min(up), max(up)))
    _times(axes)
    ends = []
    for frequency in GRID_FREQUENCIES:
        line = [reached[keys, frequency] for keys in GRID_KEYS if (keys, frequency) in reached]
        colour = colours[frequency]
        axes.plot(*zip(*line, strict=True) if line else ([], []), color=colour, linewidth=1.4, zorder=2)
        for keys in GRID_KEYS:
            if (keys, frequency) in reached:
                x, y = reached[keys, frequency]
                axes.plot([x], [y], "o", markersize=12, color="white", markeredgecolor=colour, zorder=3)
                axes.text(x, y, f"{keys}", ha="center", va="center", fontsize=6.5, color=colour, zorder=4)
        if line:
            ends.append((*line[-1], f"muf {frequency}", colour))
    figure.draw_without_rendering()
    name_lines(axes, ends)


def _room(low: float, high: float) -> tuple[float, float]:
    margin = 0.12 * max(high - low, 0.2 * high)
    return low - margin, high + margin


def _times(axes: Axes) -> None:
    """Draw lines of constant time, with their seconds where they leave the axes: above them, or inside at the right."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    for seconds in nice(max(left / top, 1e-3), right / bottom, 7):
        start, end = max(left, bottom * seconds), min(right, top * seconds)
        if end <= start:
            continue
        axes.plot([start, end], [start / seconds, end / seconds], color=PALE, linewidth=0.9, zorder=1)
        text = f"{number(seconds)} s"
        look: dict[str, Any]
        if end < right:  # it leaves at the top
            place, look = (end, top), {"ha": "center", "va": "bottom", "xytext": (0, 2)}
        else:
            place, look = (right, end / seconds), {"ha": "right", "va": "bottom", "xytext": (-2, 3)}
        axes.annotate(text, place, textcoords="offset points", fontsize=SMALL, color=FAINT, **look)


def _map(axes: Axes, cells: dict[tuple[int, int], Measured]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    seconds = [one.seconds for one in cells.values() if one.seconds is not None]
    low, high = (min(seconds), max(seconds)) if seconds else (0.0, 1.0)
    for row, frequency in enumerate(GRID_FREQUENCIES):
        for column, keys in enumerate(GRID_KEYS):
            one = cells.get((keys, frequency))
            corner = (column - 0.48, row - 0.48)
            at = None if one is None or one.seconds is None else (one.seconds - low) / max(high - low, 1e-9)
            look: dict[str, Any] = {"fill": False}
            if one is not None:
                look = {"facecolor": "#f4f5f6", "edgecolor": PALE, "hatch": "////"}
            if at is not None:
                look = {"facecolor": colormaps["YlGnBu"](0.05 + 0.75 * at)}
            axes.add_patch(Rectangle(corner, 0.96, 0.96, linewidth=0, **look))
            dark = at is not None and at > 0.6
            text = axes.text(column, row, _text(one), ha="center", va="center", fontsize=8)
            text.set_color("white" if dark else INK)
    axes.set_xlim(-0.5, len(GRID_KEYS) - 0.5)
    axes.set_ylim(len(GRID_FREQUENCIES) - 0.5, -0.5)
    axes.set_xticks(range(len(GRID_KEYS)), [f"{keys}" for keys in GRID_KEYS])
    axes.set_yticks(range(len(GRID_FREQUENCIES)), [f"{frequency}" for frequency in GRID_FREQUENCIES])
    dress(axes, "seconds to the target", "max_active_keys", f"min_update_frequency, instances of {BUCKET} sequences")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _text(one: Measured | None) -> str:
    if one is None:
        return "-"
    if one.epochs is not None:
        return f"{seconds_text(one.seconds)} s\n{one.epochs:g} epochs"
    if one.diverged == len(one.seeds):
        return "diverged"
    return f"not reached\nbest {one.paper.shown(one.best)}"
