"""The picture: held-out loss against tokens on the left, against seconds on the right; a row for each update size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.picture import FAINT, INK, save

NAMES = {"ours": "ours, asynchronous", "ours-momentum": "ours, lower momentum", "1f1b": "1F1B", "gpipe": "GPipe"}
COLOURS = {"ours": "#2a6fb0", "ours-momentum": "#7db3e0", "1f1b": "#c9722b", "gpipe": "#9aa3ab"}


def paint(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws the curves of a file of results."""
    from matplotlib.figure import Figure

    counts = sorted({run["setting"]["microbatches"] for run in runs})
    figure = Figure(figsize=(10, 0.6 + 2.7 * len(counts)), layout="constrained")
    grid = figure.subplots(len(counts), 2, squeeze=False, sharey="row")
    for axes, count in zip(grid, counts, strict=True):
        for run in (run for run in runs if run["setting"]["microbatches"] == count):
            name, curve = run["setting"]["contender"], run["turn"]["curve"]
            losses = [point["loss"] for point in curve]
            style: dict[str, Any] = {"color": COLOURS[name], "marker": ".", "linewidth": 1.4, "label": NAMES[name]}
            if name == "gpipe":  # it computes what 1F1B does, and would hide it
                style |= {"linestyle": "--"}
            axes[0].plot([point["tokens"] for point in curve], losses, **style)
            axes[1].plot([point["seconds"] for point in curve], losses, **style)
        axes[0].set_title(f"{count} microbatches in an update", fontsize=9, loc="left", color=INK)
        axes[0].set_ylabel("held-out loss", fontsize=8, color=FAINT)
        axes[0].set_xlabel("tokens", fontsize=8, color=FAINT)
        axes[1].set_xlabel("seconds after the warm-up", fontsize=8, color=FAINT)
        axes[0].xaxis.set_major_formatter("{x:,.0f}")
        for one in axes:
            one.tick_params(labelsize=7.5, colors=FAINT)
            for side in ("top", "right"):
                one.spines[side].set_visible(False)
    grid[0][1].legend(fontsize=8, frameon=False)
    machine, stages = runs[-1]["machine"], runs[-1]["setting"]["stages"]
    note = f"{stages} stages on {machine['processor']}, {machine['cores']} cores, torch {machine['torch']}"
    figure.supxlabel(note, fontsize=7.5, color=FAINT, x=0.01, ha="left")
    save(figure, path)
