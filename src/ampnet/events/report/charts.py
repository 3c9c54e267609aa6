"""Charts: small SVG charts for pages. Curves over time, histograms, shares of a whole.

Every drawn element has a title, which browsers show under the pointer, so that nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, log10

from ampnet.events.gantt import COLOURS
from ampnet.events.gantt_page import round_step

WIDTH, HEIGHT = 560, 210
LEFT, RIGHT, TOP, FOOT = 56, 14, 12, 36
DENSE = 400
"""The maximal number of points of a curve; more are thinned out."""
BLUE, ORANGE, PALE_BLUE = "#3d85c6", "#d17a1a", "#3d85c6a0"
MANY = (BLUE, ORANGE, "#3b9a60", "#c8475f", "#8b72c6", "#93815f", "#2a9aa8", "#b35b9b")
"""Colours of similar curves, visible on light and on dark backgrounds."""


@dataclass(slots=True)
class Curve:
    """A named line in separate pieces, or dots."""

    name: str
    """Its name in the legend."""
    colour: str
    """The colour of the line."""
    pieces: list[list[tuple[float, float]]] = field(default_factory=list)
    """Points, left to right."""
    dots: bool = False
    """Draw dots, and a thin line through them."""

    @property
    def points(self) -> list[tuple[float, float]]:
        return [p for piece in self.pieces for p in piece]


def curves(title: str, given: Sequence[Curve], *, from_zero: bool = False, whole: bool = False, unit: str = "s") -> str:
    """Returns curves over time, or over a count (``whole`` numbers), with a legend; empty without points."""
    drawn = [c for c in given if c.points]
    points = [p for c in drawn for p in c.points]
    if not points:
        return ""
    right = max(x for x, _ in points) or 1.0
    low, high = (min(y for _, y in points), max(y for _, y in points))
    low = 0.0 if from_zero else low
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = (
            (0.0, high or 1.0) if from_zero else (low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0))
        )
    step = round_step((high - low) / 4)
    low, high = floor(low / step) * step, -floor(-high / step + 1e-9) * step
    plot_w, plot_h = WIDTH - LEFT - RIGHT, HEIGHT - TOP - FOOT

    def at(x: float, y: float) -> str:
        return f"{LEFT + x / right * plot_w:.1f},{TOP + (high - y) / (high - low) * plot_h:.1f}"

    out = [f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}">']
    digits = max(0, -floor(log10(step)))
    for k in range(round((high - low) / step) + 1):
        y = TOP + plot_h - k * step / (high - low) * plot_h
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="y" x="{LEFT - 7}" y="{y + 4:.1f}">{low + k * step:,.{digits}f}</text>')
    across = max(round_step(right / 6), 1.0 if whole else 0.0)
    digits = max(0, -floor(log10(across)))
    for k in range(int(right / across + 1e-9) + 1):
        x = LEFT + k * across / right * plot_w
        out.append(f'<text class="x" x="{x:.1f}" y="{HEIGHT - FOOT + 16}">{k * across:,.{digits}f}</text>')
    out.append(f'<text class="x" x="{LEFT + plot_w / 2:.0f}" y="{HEIGHT - 4}">{escape(unit)}</text>')
    for curve in drawn:
        for piece in [curve.points] if curve.dots else curve.pieces:
            path = " ".join(at(*p) for p in thin(piece))
            faint = ' opacity="0.45" stroke-dasharray="3 3"' if curve.dots else ""
            out.append(f'<polyline points="{path}" fill="none" stroke="{curve.colour}" stroke-width="1.8"{faint}/>')
        if curve.dots:
            for x, y in thin(curve.points):
                cx, cy = at(x, y).split(",")
                about = escape(f"{curve.name}: {y:.5g} at {x:.4g} {unit}")
                out.append(f'<circle cx="{cx}" cy="{cy}" r="3.6" fill="{curve.colour}"><title>{about}</title></circle>')
    legend = "".join(
        f'<span class="swatch"><i style="background: {c.colour}"></i>{escape(c.name)}</span>' for c in drawn
    )
    return (
        f'<figure class="curves"><figcaption><b>{escape(title)}</b> {legend}</figcaption>{"".join(out)}</svg></figure>'
    )


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns at most `DENSE` points, evenly selected, including the last."""
    if len(points) <= DENSE:
        return list(points)
    return [points[round(k * (len(points) - 1) / (DENSE - 1))] for k in range(DENSE)]


def histogram(
    counts: Mapping[int, int], names: Mapping[int, str], what: str, *, colour: str, wide: int = 110, high: int = 34
) -> str:
    """Returns a bar chart; the first and the last bar are labelled. ``names``: of every bar, in order."""
    if not counts:
        return ""
    most = max(counts.values())
    total = sum(counts.values())
    bar = min(22.0, wide / len(names))
    width = bar * len(names)
    out = [f'<svg class="bars" role="img" viewBox="0 0 {wide} {high + 13}" width="{wide}" height="{high + 13}">']
    for i, (key, name) in enumerate(names.items()):
        n = counts.get(key, 0)
        tall = 0.0 if not n else max(1.5, n / most * high)
        out.append(
            f"<g><title>{escape(f'{name}: {n:,} {what} ({100 * n / total:.0f} %)')}</title>"
            f'<rect class="slot" x="{i * bar:.1f}" y="0" width="{bar:.1f}" height="{high}"/>'
            f'<rect x="{i * bar + 0.5:.1f}" y="{high - tall:.1f}" width="{max(bar - 1, 0.8):.1f}" height="{tall:.1f}" '
            f'fill="{colour}"/></g>'
        )
    out.append(f'<line class="base" x1="0" x2="{width:.1f}" y1="{high}" y2="{high}"/>')
    first, *_, last = [*names.values()] * 2
    out.append(f'<text x="0" y="{high + 11}">{escape(first)}</text>')
    if len(names) > 1:
        out.append(f'<text class="end" x="{max(width, 40.0):.1f}" y="{high + 11}">{escape(last)}</text>')
    return "".join(out) + "</svg>"


def sizes(counts: Mapping[int, int], *, colour: str) -> str:
    """Returns the histogram of batch sizes: bars for 1, 2 to 3, 4 to 7, ... messages."""
    if not counts:
        return ""
    buckets = [0] if 0 in counts else []
    size = 1
    while size <= max(counts):
        buckets.append(size)
        size *= 2
    names = {b: str(b) if b < 2 else f"{b}–{2 * b - 1}" for b in buckets}
    return histogram(counts, names, "batches", colour=colour)


def lags(counts: Mapping[int, int]) -> str:
    """Returns the histogram of staleness: a bar for every number of updates, or for a range if there are many."""
    if not counts:
        return ""
    each = -(-(max(counts) + 1) // 40)
    joined: dict[int, int] = {}
    for lag, n in counts.items():
        joined[lag // each] = joined.get(lag // each, 0) + n
    names = {b: str(b) if each == 1 else f"{b * each}–{b * each + each - 1}" for b in range(max(counts) // each + 1)}
    return histogram(joined, names, "messages", colour=ORANGE, wide=200, high=54)


def shares(parts: Sequence[tuple[str, float]], whole: float, *, wide: int = 150, high: int = 14) -> str:
    """Returns one bar in the colours of the Gantt chart, with (kind, seconds) parts of a ``whole``."""
    out = [f'<svg class="shares" role="img" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}">']
    out.append(f'<rect class="slot" width="{wide}" height="{high}"/>')
    x = 0.0
    for kind, seconds in parts:
        width = seconds / whole * wide if whole > 0 else 0.0
        about = escape(f"{kind}: {seconds:.3g} s, {100 * seconds / whole if whole > 0 else 0:.1f} %")
        out.append(
            f'<rect x="{x:.2f}" width="{width:.2f}" height="{high}" fill="{COLOURS[kind]}">'
            f"<title>{about}</title></rect>"
        )
        x += width
    return "".join(out) + "</svg>"
