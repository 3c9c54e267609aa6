"""Picture: a `Sketch` of a graph painted with matplotlib: shapes, texts, lines, legend.

The text decides how large a box must be, so boxes are measured first, then arranged by `ampnet.draw.layout`, then
painted:

    ┌───────────────────────┐
    │   start       loop    │    named input ports: where each line arrives
    │        phi            │    name
    │        Phi      12 %  │    what it is; beside both its mark, if it has one
    │  instance × tokens    │    its note, if it has one: scope and line of source
    │       rnn.py:20       │
    │   done        again   │    named output ports: where each line leaves
    └───────────────────────┘

Port names stand inside of their box, so no line can run through them. One unit of the axes is an inch.
"""

from __future__ import annotations

import re
import tempfile
import textwrap
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ampnet.draw import EDGE, KINDS, LOOP, OTHER, Item, Sketch, heat, percent, printable
from ampnet.draw.layout import TAG, Box, Curve, Frame, Link, arrange

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FONT = ["DejaVu Sans", "sans-serif"]
"""The first comes with matplotlib, so boxes fit their text everywhere."""
NAME, DETAIL, NOTE, PORT, TITLE = 9.0, 7.5, 6.2, 6.5, 12.0
"""Sizes of text, in points."""
INK, FAINT, FAINTER = "#1b1f23", "#4a5560", "#6f7982"
NAME_LINE, DETAIL_LINE, NOTE_LINE, PORT_LINE = 0.17, 0.145, 0.112, 0.13
ABOVE_NOTE = 0.02
PAD = 0.055
SIDE = {"input": 0.16, "parameterised": 0.12, "transform": 0.12, "control": 0.2, "aggregate": 0.2, "loss": 0.18}
"""The width that a shape needs at each side."""
NARROWEST = 0.85
ROUND = 0.22
"""The largest radius of a corner."""
BETWEEN_PORTS = 0.12
MARGIN = 0.25
LONGEST = 44
"""Letters of a text; the middle of longer ones is left out."""
NOTE_WIDTH = 28
"""Letters after which a note goes on in another line, so that it makes no box much wider than its name would."""
DPI, PIXELS = 170, 20_000
"""The resolution of a PNG, and the maximal number of pixels of a side."""
ARROW = 0.09


def save(drawing: Sketch, path: Path | IO[bytes], form: str) -> None:
    """Paint the sketch into a path or file of this format: "svg", "png" or "pdf"."""
    import matplotlib as mpl

    # Text stays text in an SVG, so it can be searched; a fixed salt and no date make equal graphs equal files.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ampnet"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")  # a name may be in a script that the font lacks
        figure = paint(drawing)
        resolution = min(DPI, PIXELS / max(figure.get_size_inches()))
        undated: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
        figure.savefig(path, format=form, dpi=resolution, metadata=undated[form])


def svg_of(drawing: Sketch) -> str:
    """The picture as an SVG element to be put into a page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.svg"
        save(drawing, path, "svg")
        text = path.read_text(encoding="utf-8")
    # Without the header of a standalone file. Its style sheet would apply to the whole page.
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("*{stroke-linejoin", "svg.graph *{stroke-linejoin")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    opening = f'<svg class="graph" role="img" aria-label="the graph" viewBox="0 0 {width} {height}" '
    opening += f'style="max-width: {float(width) * 1.25:.0f}px" xmlns="http://www.w3.org/2000/svg" '
    return f'{opening}xmlns:xlink="http://www.w3.org/1999/xlink">{text[text.index(">") + 1 :]}'


def paint(drawing: Sketch) -> Figure:
    """The sketch as a new figure that is not registered with pyplot."""
    from matplotlib.figure import Figure

    shapes = measure(drawing)
    layout = arrange([s.box for s in shapes], links(drawing, shapes))
    title = shortened(drawing.title)
    legend = _legend(drawing)
    inner = max(layout.width, extent(title, TITLE, bold=True), max((width for _, width in legend), default=0.0), 4.2)
    rows = flow([width for _, width in legend], inner)
    head, foot = 0.42, 0.26 * (rows[-1][0] + 1) + 0.2 if rows else 0.0
    width, height = inner + 2 * MARGIN, layout.height + head + foot + 2 * MARGIN
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    pen = Pen(axes)
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    pen.text(width / 2, MARGIN + 0.1, title, TITLE, bold=True)
    for i, row in enumerate(rows):
        pen.at(MARGIN + (inner - row[2]) / 2 + row[1], height - foot - MARGIN + 0.3 + 0.26 * row[0])
        sample, _ = legend[i]
        pen.sample(sample)
    pen.at(MARGIN + (inner - layout.width) / 2, MARGIN + head)
    for frame in layout.frames:
        pen.frame(frame, sum(item.base == frame.group for item in drawing.items))
    for link in sorted(layout.links, key=lambda k: k.back):
        pen.line(link.curve, back=link.back)
    for number, shape in enumerate(shapes):
        pen.shape(shape, number)
    return figure


@dataclass(slots=True)
class Shape:
    """An item with its measures."""

    item: Item
    box: Box
    tops: dict[int, float]
    """Where the line to each connected input port arrives, from the middle."""
    bottoms: dict[int, float]
    note: list[str]
    """The lines of its note."""


def measure(drawing: Sketch) -> list[Shape]:
    """How large each box must be, and where its ports are."""
    shapes = []
    for i, item in enumerate(drawing.items):
        side = SIDE.get(item.kind, 0.12)
        used = [
            sorted(e.into for e in drawing.edges if e.target == i),
            sorted(e.out for e in drawing.edges if e.source == i),
        ]
        names = [
            [extent(shortened(ports[p]), PORT) if len(ports) > 1 else 0.0 for p in side_used]
            for ports, side_used in zip((item.inputs, item.outputs), used, strict=True)
        ]
        text = max(extent(shortened(item.name), NAME, bold=True), extent(shortened(item.detail), DETAIL))
        note = note_lines(item)
        text = max([text, *(extent(line, NOTE) for line in note)]) + badge(item)
        inner = max([text, NARROWEST - 2 * side, *(sum(n) + BETWEEN_PORTS * (len(n) - 1) for n in names)])
        height = 2 * PAD + NAME_LINE + (DETAIL_LINE if item.detail else 0.0)
        height += ABOVE_NOTE + NOTE_LINE * len(note) if note else 0.0
        height += PORT_LINE * (len(item.inputs) > 1 and bool(used[0]))
        height += PORT_LINE * (len(item.outputs) > 1 and bool(used[1]))
        tops, bottoms = (
            dict(zip(side_used, spread(n, inner), strict=True)) for side_used, n in zip(used, names, strict=True)
        )
        shapes.append(Shape(item, Box(inner + 2 * side, height, item.base), tops, bottoms, note))
    return shapes


def note_lines(item: Item) -> list[str]:
    """A note, broken where it would be wide."""
    return [shortened(part) for line in item.note for part in textwrap.wrap(printable(line), NOTE_WIDTH)]


def links(drawing: Sketch, shapes: Sequence[Shape]) -> list[Link]:
    return [
        Link(e.source, e.target, shapes[e.source].bottoms[e.out], shapes[e.target].tops[e.into], e.back)
        for e in drawing.edges
    ]


def badge(item: Item) -> float:
    """Width that the mark takes, with the distance to the text."""
    return 0.0 if item.share is None else extent(percent(item.share), DETAIL, bold=True) + 0.1 + 0.08


def spread(widths: Sequence[float], inner: float) -> list[float]:
    """The middles of labels spread evenly over a width, from its middle."""
    slack = (inner - sum(widths)) / max(len(widths), 1)
    middles, x = [], -inner / 2
    for width in widths:
        middles.append(x + (width + slack) / 2)
        x += width + slack
    return middles


def shortened(text: str) -> str:
    text = printable(text)
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half + 1 :]}"


def extent(text: str, size: float, bold: bool = False) -> float:
    """The width of a text, in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) / 72


def flow(widths: Sequence[float], inner: float, gap: float = 0.22) -> list[tuple[int, float, float]]:
    """Row, place in it and its width for things set one after the other, like words, in rows of about one width."""

    def rows(limit: float) -> list[list[float]]:
        placed: list[list[float]] = [[]]
        for width in widths:
            if placed[-1] and sum(placed[-1]) + gap * len(placed[-1]) + width > limit:
                placed.append([])
            placed[-1].append(width)
        return placed

    while widths and inner > max(widths) and len(rows(inner - 0.1)) == len(rows(inner)):
        inner -= 0.1
    return [
        (r, sum(row[:k]) + gap * k, sum(row) + gap * (len(row) - 1))
        for r, row in enumerate(rows(inner))
        for k in range(len(row))
    ]


def _legend(drawing: Sketch) -> list[tuple[str, float]]:
    """Returns the entries of the legend for the elements in the drawing, with their widths."""
    kinds = {item.kind for item in drawing.items}
    samples = [kind for kind in KINDS if kind in kinds] + sorted(kinds - set(KINDS))
    samples += ["closes a loop"] * any(e.back for e in drawing.edges)
    samples += ["replicas"] * any(item.base for item in drawing.items)
    return [(sample, 0.42 + extent(sample, DETAIL)) for sample in samples]


class Pen:
    """Paints on axes in inches, relative to a place that `at` sets."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        self.x, self.y = 0.0, 0.0

    def at(self, x: float, y: float) -> None:
        self.x, self.y = x, y

    def text(self, x: float, y: float, text: str, size: float, *, bold: bool = False, **style: Any) -> None:
        style = {"ha": "center", "va": "center_baseline", "color": INK, "zorder": 6, **style}
        weight = "bold" if bold else "normal"
        self.axes.text(
            self.x + x, self.y + y, text, fontsize=size, family=FONT, weight=weight, parse_math=False, **style
        )

    def polygon(self, points: Iterable[tuple[float, float]], **style: Any) -> None:
        from matplotlib.patches import Polygon

        self.axes.add_patch(Polygon([(self.x + x, self.y + y) for x, y in points], closed=True, **style))

    def rounded(self, left: float, top: float, right: float, bottom: float, radius: float, **style: Any) -> None:
        from matplotlib.patches import FancyBboxPatch

        form = f"round,pad=0,rounding_size={radius}"
        corner = (self.x + left, self.y + top)
        self.axes.add_patch(FancyBboxPatch(corner, right - left, bottom - top, boxstyle=form, **style))

    def body(self, kind: str, box: Box, **outline: Any) -> None:
        """The shape of a kind of node."""
        look = KINDS.get(kind, OTHER)
        left, top, right, bottom, middle = box.left, box.top, box.right, box.bottom, box.y
        style: dict[str, Any] = {"facecolor": look.fill, "edgecolor": look.line, "linewidth": 1.1, "zorder": 4}
        slope = min(0.1, box.height / 3)
        style |= outline
        near, far = left + slope, right - slope
        if kind in ("input", "transform"):
            self.rounded(left, top, right, bottom, min(box.height / 2, ROUND) if kind == "input" else slope, **style)
        elif kind == "control":
            self.polygon(
                [(near, top), (far, top), (right, middle), (far, bottom), (near, bottom), (left, middle)], **style
            )
        elif kind == "aggregate":
            self.polygon([(near, top), (far, top), (right, bottom), (left, bottom)], **style)
        else:
            self.polygon([(left, top), (right, top), (right, bottom), (left, bottom)], **style)
        if kind == "loss":
            for x in (left + 0.6 * slope, right - 0.6 * slope):
                self.polygon([(x, top), (x, bottom)], **style | {"linewidth": 0.8, "gid": None})

    def shape(self, shape: Shape, number: int) -> None:
        """A marked item has ids in an SVG: outline, heat and share with its number."""
        item, box = shape.item, shape.box
        look = KINDS.get(item.kind, OTHER)
        if item.share is None:
            self.body(item.kind, box)
        else:
            self.body(item.kind, box, edgecolor=heat(item.share), linewidth=2.6, gid=f"outline{number}")
        y = box.top + PAD
        if len(item.inputs) > 1 and shape.tops:
            for port, x in shape.tops.items():
                self.text(box.x + x, y + 0.045, shortened(item.inputs[port]), PORT, color=look.line)
            y += PORT_LINE
        if len(item.outputs) > 1 and shape.bottoms:
            for port, x in shape.bottoms.items():
                self.text(box.x + x, box.bottom - PAD - 0.035, shortened(item.outputs[port]), PORT, color=look.line)
        x = box.x - badge(item) / 2
        self.text(x, y + NAME_LINE / 2, shortened(item.name), NAME, bold=True)
        if item.detail:
            self.text(x, y + NAME_LINE + DETAIL_LINE / 2, shortened(item.detail), DETAIL, color=FAINT)
        first = y + NAME_LINE + DETAIL_LINE * bool(item.detail) + ABOVE_NOTE + NOTE_LINE / 2
        for i, line in enumerate(shape.note):
            self.text(x, first + i * NOTE_LINE, line, NOTE, color=FAINTER)
        if item.share is not None:
            middle = y + (NAME_LINE + DETAIL_LINE * bool(item.detail)) / 2
            self.mark(item, box.right - SIDE.get(item.kind, 0.12), middle, number)

    def mark(self, item: Item, right: float, y: float, number: int) -> None:
        share = item.share or 0.0
        half = (badge(item) - 0.08) / 2
        style: dict[str, Any] = {"facecolor": heat(share), "edgecolor": "none", "zorder": 5, "gid": f"heat{number}"}
        self.rounded(right - 2 * half, y - 0.085, right, y + 0.085, 0.05, **style)
        colour = "white" if share > 0.15 else INK
        self.text(right - half, y, percent(share), DETAIL, bold=True, color=colour, gid=f"share{number}")

    def line(self, curve: Curve, back: bool = False) -> None:
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path as Outline

        x, y = curve[-1]
        # The line ends inside of the arrow head: at its tip the line would be wider than the head.
        points = [*curve[:-2], (curve[-2][0], curve[-2][1] - 0.7 * ARROW), (x, y - 0.7 * ARROW)]
        codes = [Outline.MOVETO] + [Outline.CURVE4] * (len(curve) - 1)
        path = Outline([(self.x + a, self.y + b) for a, b in points], codes)
        colour, width, z = (LOOP, 1.7, 3) if back else (EDGE, 1.1, 2)
        style: dict[str, Any] = {"facecolor": "none", "capstyle": "butt"}
        # A white rim lets one line pass under another where they cross.
        self.axes.add_patch(PathPatch(path, edgecolor="white", linewidth=width + 2.4, zorder=z, **style))
        self.axes.add_patch(
            PathPatch(
                path, edgecolor=colour, linewidth=width, zorder=z, linestyle=(0, (4, 1.6)) if back else "-", **style
            )
        )
        half = 0.4 * ARROW if back else 0.34 * ARROW
        self.polygon([(x - half, y - ARROW), (x + half, y - ARROW), (x, y)], facecolor=colour, linewidth=0, zorder=z)

    def outline(self, left: float, top: float, right: float, bottom: float) -> None:
        """What replicas share."""
        style: dict[str, Any] = {"facecolor": "#f6f8fa", "edgecolor": KINDS["parameterised"].line, "linewidth": 0.9}
        self.rounded(left, top, right, bottom, 0.05, linestyle=(0, (4, 2.5)), zorder=1, **style)

    def frame(self, frame: Frame, replicas: int) -> None:
        self.outline(frame.left, frame.top, frame.right, frame.bottom)
        x, y = frame.right - TAG / 2 - 0.02, (frame.top + frame.bottom) / 2
        count = f"×{replicas}" if frame.count == replicas else f"{frame.count}/{replicas}"
        self.text(x, y, count, NAME, bold=True, color=KINDS["parameterised"].line)

    def sample(self, what: str) -> None:
        """One entry of the legend."""
        if what == "closes a loop":
            style: dict[str, Any] = {"color": LOOP, "linewidth": 1.7, "linestyle": (0, (4, 1.6))}
            self.axes.plot([self.x, self.x + 0.26], [self.y, self.y], **style)
            self.polygon([(0.23, -0.04), (0.23, 0.04), (0.33, 0.0)], facecolor=LOOP, linewidth=0)
        elif what == "replicas":
            self.outline(0.0, -0.08, 0.32, 0.08)
        else:
            self.body(what, Box(0.32, 0.15, x=0.16))
        self.text(0.4, 0.0, what, DETAIL, ha="left")
