"""The Gantt chart as a picture, drawn with matplotlib, for papers and READMEs."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

from ampnet.events.gantt import COLOURS, FAINT, INK, LOOKS, PALE, Chart, Room, look_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FONT = ["DejaVu Sans", "sans-serif"]
WIDTH, LEAST, DPI = 14.0, 0.3, 150
"""Size of a picture in inches, the height of a row, dots per inch."""
SIZE, LETTER, LINE = 7.0, 0.06, 0.11
"""The text in boxes: points; width of a letter and height of a line, in inches."""


def save(drawn: Chart, path: Path | IO[bytes], form: str) -> None:
    """Draw a chart with matplotlib to a path or file, as "png" or "svg"."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ampnet", "font.family": FONT}):
        figure = paint(drawn)
        figure.savefig(path, format=form, dpi=DPI, metadata={"Date": None} if form == "svg" else {})


def paint(drawn: Chart) -> Figure:
    """Returns the chart as a figure that is not registered with pyplot."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    count = len(drawn.rows)
    row = max(LEAST, 0.9 - 0.15 * count)
    height = row * count + 1.45
    longest = max(len(r.name) for r in drawn.rows)
    left, right, top, bottom = 0.3 + 0.075 * min(longest, 40), 0.75, 0.75, 0.55
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    plot = (WIDTH - left - right, height - top - bottom)
    axes = figure.add_axes((left / WIDTH, bottom / height, plot[0] / WIDTH, plot[1] / height))
    unit, times = drawn.unit
    window = drawn.window
    axes.set_xlim(0.0, window.seconds * times)
    axes.set_ylim(count, 0.0)
    inches = plot[0] / window.seconds
    for place, line in enumerate(drawn.rows):
        axes.axhspan(place, place + 1, facecolor="#f6f8fa" if place % 2 == 0 else "white", linewidth=0, zorder=0)
        axes.text(1.006, place + 0.5, f"{100 * line.busy:.0f} %", va="center", fontsize=9, color=FAINT, zorder=5,
                  transform=axes.get_yaxis_transform())  # fmt: skip
        for box in line.boxes:
            start, stop = max(box.start, window.start), min(box.stop, window.stop)
            x, width = (start - window.start) * times, (stop - start) * times
            wide = (stop - start) * inches
            rectangle = Rectangle(
                (x, place + 0.1), width, 0.8, facecolor=COLOURS[look_of(box)], edgecolor="white",
                linewidth=0.5 if wide > 0.03 else 0.0, alpha=PALE if drawn.pale(box) else 1.0, zorder=2,
            )  # fmt: skip
            axes.add_patch(rectangle)
            text, upwards = Room(wide, 0.8 * row, LETTER, LINE).fit(box, named=drawn.named(box))
            if text and not drawn.pale(box):
                axes.text(x + width / 2, place + 0.5, _short(text), ha="center", va="center", fontsize=SIZE, color=INK,
                          zorder=3, rotation=90 if upwards else 0)  # fmt: skip
    axes.set_yticks([i + 0.5 for i in range(count)], [_short(r.name) for r in drawn.rows], fontsize=9.5)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8.5, colors=FAINT)
    axes.set_xlabel(f"{unit} since {window.start:.6g} s", fontsize=9, color=FAINT)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.text(left / WIDTH, 1 - 0.2 / height, _short(drawn.title, 150), fontsize=11, weight="bold", va="center")
    figure.legend(
        handles=[Patch(facecolor=COLOURS[look], label=LOOKS.get(look, look)) for look in drawn.looks],
        ncols=len(drawn.looks), loc="center left", bbox_to_anchor=(left / WIDTH - 0.005, 1 - 0.52 / height),
        frameon=False, fontsize=9, handlelength=1.2, handleheight=0.9, columnspacing=1.6, borderpad=0.0,
    )  # fmt: skip
    return figure


def _short(text: str, most: int = 40) -> str:
    text = "".join(c if c.isprintable() else " " for c in text).replace("$", r"\$")
    return text if len(text) <= most else text[: most - 10] + "…" + text[-8:]
