"""The look of all pictures: colours by way of training, ticks that do not collide, labels beside lines.

    workers blue, replicas green, both violet, synchronous orange, torch grey; targets and the paper's numbers are grey

Lines have their names beside them: at their right end (`name_lines`, moved apart where they would overlap), or as a
list in a strip of the panel that is kept free (`Key`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, floor, log10
from typing import TYPE_CHECKING

from bench.picture import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "workers": "#0072b2",
    "replicas": "#009e73",
    "both": "#8a4fb0",
    "sync": "#d55e00",
    "interleaved": "#d55e00",
    "torch": "#8a929a",
}
"""By way."""
SERIES = ("#d55e00", "#0072b2", "#009e73", "#8a4fb0", "#b8860b", "#56b4e9", "#c2477f")
"""Of lines that are not ways, like remedies."""
PALE, GRID = "#c3c9ce", "#e9ecee"
SMALL = 7.5


def dress(axes: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Set title and names of the axes, a faint grid, and no frame at the top and on the right."""
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(labelsize=SMALL, colors=FAINT)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def shades(count: int) -> list[str]:
    """Returns colours for an ordered series, from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(colormaps["viridis"](0.08 + 0.72 * i / max(1, count - 1))) for i in range(count)]


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Returns the places moved apart so that no two are nearer than ``gap``, each as little as that needs.

    Neighbours that are too near become a block around their mean; blocks that meet are joined.
    """
    order = sorted(range(len(places)), key=lambda i: places[i])
    blocks: list[list[int]] = []
    for i in order:
        blocks.append([i])
        while len(blocks) > 1 and _low(blocks[-1], places, gap) - _high(blocks[-2], places, gap) < gap:
            last = blocks.pop()
            blocks[-1] += last
    moved = [0.0] * len(places)
    for block in blocks:
        for rank, i in enumerate(block):
            moved[i] = _low(block, places, gap) + rank * gap
    return moved


def _low(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return sum(places[i] for i in block) / len(block) - gap * (len(block) - 1) / 2


def _high(block: Sequence[int], places: Sequence[float], gap: float) -> float:
    return _low(block, places, gap) + gap * (len(block) - 1)


def name_lines(axes: Axes, ends: Sequence[tuple[float, float, str, str]], size: float = SMALL) -> None:
    """Write (x, y, name, colour) to the right of the axes, at the height of each line's end. Limits must be set."""
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height / axes.figure.dpi * 72  # points
    gap = 1.25 * size / height
    places = spread([(y - low) / (high - low) for _, y, _, _ in ends], gap)
    right = axes.get_xlim()[1]
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        at = low + place * (high - low)
        axes.plot([x, right], [y, at], ":", color=colour, linewidth=0.8, alpha=0.7, clip_on=False, zorder=1)
        axes.annotate(name, (right, at), (4, 0), textcoords="offset points", va="center", fontsize=size, color=colour)


@dataclass(slots=True)
class Key:
    """Coloured lines of text in a strip at the bottom (or top) of a panel, which limits keep free of curves."""

    top: bool = False
    lines: list[tuple[str, str]] = field(default_factory=list)
    """Text and colour."""

    def add(self, text: str, colour: str) -> None:
        """Add a line of text."""
        self.lines.append((text, colour))

    def write(self, axes: Axes) -> None:
        """Write the lines, right-aligned."""
        lines = self.lines if self.top else self.lines[::-1]
        for number, (text, colour) in enumerate(lines):
            shift = (5 + 10.5 * number) * (-1 if self.top else 1)
            axes.annotate(
                text,
                (0.98, 1.0 if self.top else 0.0),
                (0, shift),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="right",
                va="top" if self.top else "bottom",
                fontsize=SMALL,
                color=colour,
            )


def nice(low: float, high: float, most: int = 6) -> list[float]:
    """Returns round numbers in between, at most ``most``: in equal steps, or in ratios if they span a factor of 4."""
    if high < 4 * low:
        power = floor(log10(high - low)) - 1
        for step in (factor * 10.0**scale for scale in (power, power + 1) for factor in (1, 2, 5)):
            found = [n * step for n in range(ceil(low / step), floor(high / step) + 1)]
            if len(found) <= most:
                return [float(f"{value:.6g}") for value in found]
    for factors in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        powers = range(floor(log10(low)), ceil(log10(high)) + 1)
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most:
            return found
    return found[:: ceil(len(found) / most)]


def number(value: float) -> str:
    """Returns a number as people write it: ``0.5``, ``12``, ``1,200``."""
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"
