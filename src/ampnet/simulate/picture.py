"""Picture: several simulations side by side: throughput, and how workers spent their time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ampnet.checkpoint.output import replacing
from ampnet.simulate.result import Result, ways

BUSY, WAITING, IDLE = "#86b9ea", "#f4a259", "#e5e8eb"
INK = "#1b1f23"


def compare(results: Sequence[Result], path: Path, unit: str = "instances", records: float = 1.0) -> None:
    """Draw a row for each result. The suffix of the path is the format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    names = [f"{one.machine.name}\n{ways(one.setting)}" for one in results]
    height = 1.2 + 0.62 * len(results)
    figure = Figure(figsize=(10, height), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"width_ratios": (3, 2)})
    rows = range(len(results))
    rates = [one.throughput * records for one in results]
    bars = left.barh(rows, rates, color=BUSY)
    left.bar_label(bars, labels=[f" {rate:,.0f}" for rate in rates], color=INK)
    left.set_xlim(0, 1.18 * max(rates) if max(rates) else 1)
    left.set_yticks(rows, names)
    left.invert_yaxis()
    left.set_title(f"{unit} a second", loc="left", fontsize=10)
    shares = [
        ("busy", BUSY, [one.busy for one in results]),
        ("waiting for rows", WAITING, [one.bubbles for one in results]),
        ("no wave in flight", IDLE, [max(0.0, 1 - one.busy - one.bubbles) for one in results]),
    ]
    begin = [0.0] * len(results)
    for label, colour, widths in shares:
        right.barh(rows, [100 * width for width in widths], left=begin, color=colour, label=label)
        begin = [a + 100 * b for a, b in zip(begin, widths, strict=True)]
    right.set_xlim(0, 100)
    right.set_title("time of the workers, %", loc="left", fontsize=10)
    figure.legend(loc="outside lower right", ncols=3, frameon=False, fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    with replacing(path, "wb") as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=150)
