"""The picture in README.md: three trees of different shapes, and the rows of the wave that computes them together.

    python -m bench.wave_picture          writes docs/pictures/wave.svg

Left, the instances: each node of a tree is one row. Right, the wave: the rows of one layer and round of the loop are
neighbours, whichever tree they come from, and are one matrix product.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from ampnet.data.generated import random_tree

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "wave.svg"
COLORS = ("#1f5f9e", "#c2571a", "#55803a")
LEAVES = (6, 3, 4)
SEED = 5


def heights(parents: np.ndarray) -> np.ndarray:
    """The round in which each node is computed: 0 for leaves. Children come before parents."""
    height = np.zeros(len(parents), dtype=int)
    for child, parent in enumerate(parents[:-1]):
        height[parent] = max(height[parent], height[child] + 1)
    return height


def positions(parents: np.ndarray) -> np.ndarray:
    """Where each node is drawn, from the left: leaves in order, others above the middle of their children."""
    x = np.zeros(len(parents))
    leaves = np.flatnonzero(heights(parents) == 0)
    x[leaves] = np.arange(len(leaves))
    for node in range(len(leaves), len(parents)):
        x[node] = x[parents == node].mean()
    return x


def draw(to: Path = PICTURE) -> None:
    rng = np.random.default_rng(SEED)
    trees = [random_tree(leaves, rng) for leaves in LEAVES]
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "wave", "font.size": 11}):
        figure = Figure(figsize=(10, 2.2), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(-0.8, 33.5), ylim=(-1.7, 5.8), aspect="equal")
        _instances(axes, trees)
        axes.annotate("", (18.6, 2), (16.2, 2), arrowprops={"arrowstyle": "-|>", "color": "#5c6770", "lw": 1.6})
        _wave(axes, trees)
        figure.savefig(to, metadata={"Date": None, "Creator": None})


def _instances(axes: Any, trees: list[np.ndarray]) -> None:
    """The trees side by side."""
    begin = 0.0
    for number, (parents, color) in enumerate(zip(trees, COLORS, strict=True), 1):
        x, y = begin + positions(parents), heights(parents)
        for child, parent in enumerate(parents[:-1]):
            axes.plot(x[[child, parent]], y[[child, parent]], color=color, lw=1.2, zorder=1)
        axes.scatter(x, y, s=90, color=color, zorder=2)
        axes.text(x[y == 0].mean(), -1.1, f"tree {number}", ha="center", color=color)
        begin = x.max() + 1.8
    axes.text(7, 5.1, "you write the model for one tree", ha="center", weight="bold", color="#1b1f23")


def _wave(axes: Any, trees: list[np.ndarray]) -> None:
    """The rows of all trees, by round."""
    levels = [heights(parents) for parents in trees]
    for level in range(max(int(y.max()) for y in levels) + 1):
        colors = [color for y, color in zip(levels, COLORS, strict=True) for _ in range(int((y == level).sum()))]
        for i, color in enumerate(colors):
            axes.add_patch(_cell(19.4 + 0.66 * i, level - 0.28, color))
        what = "leaf" if level == 0 else f"branch, round {level}"
        axes.text(19.4 + 0.66 * len(colors) + 0.3, level - 0.12, what, va="center", color="#1b1f23")
    axes.text(26, 5.1, "they are computed together, as one wave", ha="center", weight="bold", color="#1b1f23")
    axes.text(26, -1.1, "a line is one matrix product; no padding", ha="center", color="#5c6770")


def _cell(x: float, y: float, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 0.52, 0.52, color=color)


if __name__ == "__main__":
    draw()
