"""Costs: what each operation of a wave takes, as a line through what was measured.

    seconds of an operation = fixed + rows x (row + products of a row)

                 ^ seconds        .
                 |            . '        slope: row + products / rate
                 |        . '
                 |    . '
        fixed    |. '                    the call, the player's loop
                 +--------------------> rows

Products are counted from the shapes of the weights: a row that meets a weight of m x n numbers takes 2 m n operations
forward, as many backward, and as many for the weight's gradient. They are part of the slope, at the rate of the node
that computes fastest, so that a machine with other FLOP/s can be simulated; what is left is passes over memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ampnet.graph import Graph
from ampnet.nodes.embedding import Embedding
from ampnet.placement.costs import BYTES
from ampnet.state import Ints

Key = tuple[str, int, int]
"""Node, output port, direction (0 forward, 1 backward, 2 collect)."""
ANY = -1
"""A port that stands for all of a node: what a trace tells."""
CALL = 15e-6
"""Fixed seconds of an operation where all measurements have one number of rows."""
_OUTLIER = 5.0
"""A measurement this many times the median of its number of rows counts as that: another process had the core."""


LARGE = 0.1
"""The share of the largest products that a node must have for its rate to count."""


@dataclass(frozen=True, slots=True)
class Line:
    """The time of an operation, by its rows."""

    fixed: float = 0.0
    """Seconds of the call."""
    row: float = 0.0
    """Seconds of a row, beside its products."""
    flops: float = 0.0
    """Floating-point operations of a row in products."""

    def seconds(self, rows: int, rate: float) -> float:
        """Seconds of an operation, with products at this rate (FLOP/s)."""
        return self.fixed + rows * (self.row + self.flops / rate)


class Samples:
    """Measured operations: rows and seconds of each, by key."""

    def __init__(self) -> None:
        self._found: defaultdict[Key, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))

    def __len__(self) -> int:
        return sum(len(rows) for rows, _ in self._found.values())

    def add(self, key: Key, rows: int, seconds: float) -> None:
        """Add a measured operation."""
        found = self._found[key]
        found[0].append(rows)
        found[1].append(seconds)

    def rows(self) -> dict[Key, int]:
        """Returns the number of rows, by key."""
        return {key: sum(rows) for key, (rows, _) in self._found.items()}

    def slopes(self) -> dict[Key, tuple[float, float]]:
        """Returns fixed seconds and seconds a row, by key: least squares, neither below zero."""
        return {key: _fit(np.array(rows), np.array(seconds)) for key, (rows, seconds) in self._found.items()}


def _fit(rows: Ints, seconds: np.ndarray) -> tuple[float, float]:
    seconds = _trimmed(rows, seconds)
    mean_rows, mean = float(rows.mean()), float(seconds.mean())
    spread = float(((rows - mean_rows) ** 2).sum())
    if not spread:
        fixed = min(CALL, mean / 2)
        return (fixed, (mean - fixed) / mean_rows) if mean_rows else (mean, 0.0)
    slope = float(((rows - mean_rows) * (seconds - mean)).sum()) / spread
    if slope <= 0:
        return mean, 0.0
    fixed = mean - slope * mean_rows
    if fixed >= 0:
        return fixed, slope
    return 0.0, float((rows * seconds).sum() / (rows * rows).sum())


def _trimmed(rows: Ints, seconds: np.ndarray) -> np.ndarray:
    """Seconds with outliers replaced by the median of the same number of rows."""
    out = seconds.copy()
    for count in np.unique(rows):
        same = rows == count
        median = float(np.median(seconds[same]))
        out[same & (seconds > _OUTLIER * median)] = median
    return out


@dataclass(frozen=True, slots=True)
class Operations:
    """The lines of all operations, and the rate of products that they were separated with."""

    lines: Mapping[Key, Line]
    rate: float
    """FLOP/s of products on the machine of the measurements."""

    def line(self, node: str, port: int, direction: int) -> Line | None:
        """Returns the line of an operation; None if it was not measured."""
        found = self.lines.get((node, port, direction))
        return self.lines.get((node, ANY, direction)) if found is None else found

    def scaled(self, factor: float) -> Operations:
        """Returns them with all times multiplied."""
        lines = {key: Line(line.fixed * factor, line.row * factor, line.flops) for key, line in self.lines.items()}
        return replace(self, lines=lines, rate=self.rate / factor)


def fitted(samples: Samples, flops: Mapping[str, float]) -> Operations:
    """Returns the lines of these measurements. ``flops``: of a row at each node, in one direction."""
    slopes = samples.slopes()
    # Products of the fastest node are taken to be all of its slope; of the others, a part of it. The slope of a node
    # with few products says nothing.
    work = {key: flops.get(key[0], 0.0) * rows for key, rows in samples.rows().items()}
    least = LARGE * max(work.values(), default=0.0)
    rates = [
        flops[key[0]] / slope
        for key, (_, slope) in slopes.items()
        if work[key] > 0 and work[key] >= least and slope > 0
    ]
    rate = max(rates, default=1e11)
    lines = {}
    for key, (fixed, slope) in slopes.items():
        products = min(flops.get(key[0], 0.0), slope * rate)
        lines[key] = Line(fixed, max(0.0, slope - products / rate), products)
    return Operations(lines, rate)


def flops_of(graph: Graph) -> dict[str, float]:
    """Returns the floating-point operations that a row takes in products, by node, in one direction."""
    out = {}
    for name, node in graph.parameterised().items():
        if not isinstance(node, Embedding):
            out[name] = float(sum(2 * w.numel() for w in node.updater.weights if w.dim() == 2))
    return out


@dataclass(frozen=True, slots=True)
class Affine:
    """Seconds that depend on a count: ``fixed + each x count``."""

    fixed: float = 0.0
    each: float = 0.0

    def __call__(self, count: float) -> float:
        return self.fixed + self.each * count

    def scaled(self, factor: float) -> Affine:
        """Returns it with all times multiplied."""
        return Affine(self.fixed * factor, self.each * factor)

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Affine:
        """Returns the line through measured (count, seconds), neither term below zero."""
        counts, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
        spread = float(((counts - counts.mean()) ** 2).sum())
        slope = float(((counts - counts.mean()) * (seconds - seconds.mean())).sum()) / spread if spread else 0.0
        slope = max(0.0, slope)
        fixed = float(seconds.mean() - slope * counts.mean())
        if fixed < 0:
            return cls(0.0, max(0.0, float(seconds.mean() / counts.mean())))
        return cls(fixed, slope)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a model costs on the machine of the measurements."""

    alone: Operations
    """Of waves played one after the other."""
    turns: Operations
    """Of waves that take turns: where nodes are on several workers."""
    layout: Affine
    """Seconds to plan and lay out a wave, by its instances, where they are played one after the other."""
    layout_part: Affine
    """Likewise of a worker that has a part of the model."""
    inline: Affine
    """Everything else of a wave in one process: pumping, retiring, checks."""
    worker: Affine
    """Everything else of a wave on a worker that has the whole model: notes, staging, checks."""
    part: Affine
    """Everything else of a wave on a worker that has a part of it, by its operations."""
    hop: float
    """Processor seconds of a crossing, at each end, beside copying."""
    controller: Affine
    """Processor seconds of the controller for a wave, by its instances."""
    crowd: float
    """By how much each further busy worker slows down all of them."""
    updates: Mapping[str, float]
    """Seconds of an update, by node."""
    widths: Mapping[tuple[str, int], int]
    """Bytes of a row, by node and output port."""
    notes: tuple[str, ...] = ()
    """What could not be measured, and the assumption made instead."""
    copied: float = BYTES
    """Bytes of rows that a worker copies in a second, at each end of a crossing."""
