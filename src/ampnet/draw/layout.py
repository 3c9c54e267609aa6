"""Layout: where the boxes of a drawing go. Plain geometry: it knows no graph, no text and no matplotlib.

Layered drawing after Sugiyama, top to bottom, y growing downwards, all lengths in inches. Links marked ``back`` close a
loop: they are cut while boxes are placed, and led around the outside by `ampnet.draw.routes`.

    [1] layers      longest path; a box that feeds a late layer sinks to it, so an input stands above what it feeds
    [2] bends       a link over several layers gets a bend (a slot without a box) in every layer it passes
    [3] order       sweeps sort each layer by the barycentre of its neighbours; the order with fewest crossings is kept
    [4] bands       a tall drawing is broken where few links cross, and goes on to the right, like columns of text
    [5] x           least sum of sideways steps, so lines are straight where they can be
    [6] routes      y of the layers, and the curves of the links: see `ampnet.draw.routes`
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

Point = tuple[float, float]
Curve = list[Point]
"""Connected cubic Bézier segments: the first point, then three points for each segment."""

GAP = 0.29
"""Between two layers, at least."""
FRAME = 0.1
"""From a box to the frame around its group."""
TAG = 0.34
"""Room in a frame, right of its boxes, for a tag."""
BEND = 0.1
"""Width of a bend."""
TALL, TALLEST, FEW = 12.5, 20.0, 2
"""A drawing higher than this is broken into bands, unless it is wide as well; or higher than that, if more than a few
lines would cross a break."""
ALONE = 5
"""The number of unconnected boxes in one layer."""
SWEEPS, ROUNDS = 16, 40
"""How long order and place are improved."""


@dataclass(slots=True)
class Box:
    """Something to place; ``x`` and ``y`` (its middle) and ``layer`` are filled in by `arrange`."""

    width: float
    height: float
    group: str = ""
    """Boxes of one group and one layer are adjacent, in the given order, in a frame."""
    x: float = 0.0
    y: float = 0.0
    layer: int = 0

    @property
    def left(self) -> float:
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        return self.y + self.height / 2


@dataclass(slots=True)
class Link:
    """A line from the bottom of one box to the top of another; ``curve`` is filled in by `arrange`."""

    source: int
    target: int
    start: float = 0.0
    """Where it leaves, from the middle of the source."""
    end: float = 0.0
    """Where it arrives, from the middle of the target."""
    back: bool = False
    curve: Curve = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frame:
    """The outline around adjacent boxes of one group."""

    group: str
    count: int
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The finished drawing: everything lies between (0, 0) and (width, height)."""

    boxes: Sequence[Box]
    links: Sequence[Link]
    frames: Sequence[Frame]
    bands: int
    width: float
    height: float


@dataclass(slots=True, eq=False)
class Slot:
    """A place in a layer: a box, or the bend [2] of a long link."""

    layer: int
    width: float
    height: float
    group: str = ""
    number: int = -1
    """The index of the box; -1 for a bend."""
    rank: int = 0
    x: float = 0.0
    up: list[Join] = field(default_factory=list)
    down: list[Join] = field(default_factory=list)

    @property
    def left(self) -> float:
        return self.x - self.width / 2 - (FRAME if self.group else 0)

    @property
    def right(self) -> float:
        return self.x + self.width / 2 + (FRAME + TAG if self.group else 0)


@dataclass(frozen=True, slots=True)
class Join:
    """A piece of a link, from one layer to the next, seen from one of its two slots."""

    other: Slot
    here: float
    there: float
    weight: float

    @property
    def place(self) -> float:
        """The rank of the other slot: ports of one box count as adjacent positions."""
        return self.other.rank + 0.8 * self.there / self.other.width


Rows = list[list[Slot]]
"""The slots of each layer, from left to right."""


def arrange(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Place the boxes and lead the links; see the head of this file. Links not marked ``back`` must form no loop."""
    from ampnet.draw.routes import Routes

    if not boxes:
        return Layout(boxes, links, (), 0, 0.0, 0.0)
    for box, layer in zip(boxes, layers(len(boxes), links), strict=True):
        box.layer = layer
    rows, chains = _slots(boxes, links)
    _order(rows)
    bands = _bands(rows, boxes, links)
    for band in range(bands[-1] + 1):
        _place([row for row, b in zip(rows, bands, strict=True) if b == band])
    return Routes(boxes, links, rows, chains, bands).layout()


def layers(count: int, links: Sequence[Link]) -> list[int]:
    """The layer of each box [1]."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for link in links:
        if not link.back:
            before[link.target].append(link.source)
            after[link.source].append(link.target)
    missing = [len(b) for b in before]
    ready = [i for i in range(count) if not missing[i]]
    for i in ready:  # grows while it is walked: a topological order in the end
        for j in after[i]:
            missing[j] -= 1
            if not missing[j]:
                ready.append(j)
    if len(ready) < count:
        raise ValueError("the links that are not marked back form a loop")
    layer = [0] * count
    for i in ready:
        layer[i] = max((layer[j] + 1 for j in before[i]), default=0)
    for i in reversed(ready):
        # Only where this does not lengthen more lines than it shortens.
        if after[i] and len(after[i]) >= len(before[i]):
            layer[i] = min(layer[j] for j in after[i]) - 1
    alone = [i for i in range(count) if not before[i] and not after[i]]
    for n, i in enumerate(alone):
        layer[i] = n // ALONE
    return layer


def _slots(boxes: Sequence[Box], links: Sequence[Link]) -> tuple[Rows, list[list[Slot]]]:
    """The layers with a slot for each box and each bend [2], and the slots along each link."""
    rows: Rows = [[] for _ in range(max(b.layer for b in boxes) + 1)]
    for i, box in enumerate(boxes):
        rows[box.layer].append(Slot(box.layer, box.width, box.height, box.group, i))
    of_box = {slot.number: slot for row in rows for slot in row}
    chains = []
    for link in links:
        first, last = of_box[link.source], of_box[link.target]
        chain = [first, last]
        if not link.back:
            bends = [Slot(layer, BEND, 0.0) for layer in range(first.layer + 1, last.layer)]
            for bend in bends:
                rows[bend.layer].append(bend)
            chain = [first, *bends, last]
            for k, (a, b) in enumerate(pairwise(chain)):
                here, there = (link.start if k == 0 else 0.0), (link.end if b is last else 0.0)
                weight = (1.0, 2.0, 6.0)[(a.number < 0) + (b.number < 0)]  # long lines are to be straight
                a.down.append(Join(b, here, there, weight))
                b.up.append(Join(a, there, here, weight))
        chains.append(chain)
    return rows, chains


def _order(rows: Rows) -> None:
    """Sort every layer [3]."""

    def rank() -> None:
        for row in rows:
            for i, slot in enumerate(row):
                slot.rank = i

    rank()
    for row in rows:
        _sort(row, lambda s: [])  # brings groups together
    best, fewest = [list(row) for row in rows], _crossings(rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            _sort(row, (lambda s: s.up) if down else (lambda s: s.down))
        crossings = _crossings(rows)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    rows[:] = best
    rank()


def _sort(row: list[Slot], joins: Callable[[Slot], list[Join]]) -> None:
    """By the barycentre of what these joins lead to; without joins a slot stays about where it is."""
    middle = {s: sum(j.place for j in joins(s)) / len(joins(s)) if joins(s) else float(s.rank) for s in row}
    members: dict[str, list[Slot]] = {}
    for slot in row:
        members.setdefault(slot.group, []).append(slot)
    for group, slots in members.items():
        if group:
            mean = sum(middle[s] for s in slots) / len(slots)
            middle.update((s, mean) for s in slots)
    row.sort(key=lambda s: (middle[s], s.group, s.number if s.group else s.rank))
    for i, slot in enumerate(row):
        slot.rank = i


def _crossings(rows: Rows) -> int:
    """Returns the number of crossing lines between neighbouring layers: inversions, counted by insertion."""
    total = 0
    for row in rows:
        lines = sorted((s.rank + 0.8 * j.here / s.width, j.place) for s in row for j in s.down)
        seen: list[float] = []
        for _, end in lines:
            total += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return total


def _bands(rows: Rows, boxes: Sequence[Box], links: Sequence[Link]) -> list[int]:
    """The band of each layer [4]."""
    heights = [max(s.height for s in row) + 1.5 * GAP for row in rows]
    total, width = sum(heights), max(sum(s.width + GAP for s in row) for row in rows)
    count = 1
    while total / count > max(TALL, 1.4 * count * width):
        count += 1
    cost = [sum(len(s.down) for s in row) for row in rows]
    for link in links:
        if link.back:  # a loop is easiest to see in one band
            for layer in range(boxes[link.target].layer, boxes[link.source].layer):
                cost[layer] += 2
    bands, most = _break(heights, cost, count)
    # Rather a tall drawing than one whose bands are tied together by many lines.
    for fewer in range(count - 1, 0, -1):
        if most > FEW and total / fewer <= TALLEST:
            taller, tied = _break(heights, cost, fewer)
            bands, most = (taller, tied) if tied < most else (bands, most)
    return bands


def _break(heights: Sequence[float], cost: Sequence[int], count: int) -> tuple[list[int], int]:
    """So many bands of about the same height, and the highest cost of a break between them."""
    bands: list[int] = []
    most = 0
    for band in range(count - 1):
        done, sums = len(bands), list(accumulate(heights[len(bands) :]))
        even = sums[-1] / (count - band)
        near = [n for n, height in enumerate(sums[:-1]) if abs(height - even) <= even / 6]
        last = min(near, key=lambda n: (cost[done + n], abs(sums[n] - even)), default=0)
        most = max(most, cost[done + last])
        bands += [band] * (last + 1)
    return bands + [count - 1] * (len(heights) - len(bands)), most


def _place(rows: Rows) -> None:
    """The x of every slot of a band [5]."""
    slots = [slot for row in rows for slot in row]
    number = {slot: i for i, slot in enumerate(slots)}
    lines = []
    for slot, i in number.items():
        for join in slot.down:
            if join.other in number:
                only = len(slot.down) == len(join.other.up) == 1
                stiffness, least = (2 * join.weight, 0.002) if only else (join.weight, 0.8)
                lines.append((i, number[join.other], join.there - join.here, stiffness, least))
    sides = [(number[b], number[a], (a.width + b.width) / 2 + _between(a, b)) for row in rows for a, b in pairwise(row)]
    for row in rows:
        _settle(row, [0.0] * len(row))
    x = np.array([slot.x for slot in slots])
    start, end = (np.array([line[k] for line in lines], dtype=np.intp) for k in (0, 1))
    shift, weight, floor = (np.array([line[k] for line in lines], dtype=float) for k in (2, 3, 4))
    after, before = (np.array([pair[k] for pair in sides], dtype=np.intp) for k in (0, 1))
    apart = np.array([pair[2] for pair in sides], dtype=float)
    # Least squares would share a step to the side among all lines of a chain: a staircase. Least distances take it in
    # one line and leave the others straight; they are squares divided by the distance of the round before. Where lines
    # fan out or join, squares are right, for symmetry. Stiff springs hold neighbours apart that come too near.
    for _ in range(min(ROUNDS, int(5e9 / len(slots) ** 3))):
        tight = x[after] - x[before] < apart + 1e-7
        u, v = np.concatenate([start, after[tight]]), np.concatenate([end, before[tight]])
        d = np.concatenate([shift, apart[tight]])
        w = np.concatenate([weight / np.maximum(np.abs(x[start] - x[end] - shift), floor), np.full(tight.sum(), 1e5)])
        matrix, right = 1e-3 * np.eye(len(slots)), 1e-3 * x
        for down, across, sign in ((u, u, 1), (v, v, 1), (u, v, -1), (v, u, -1)):
            np.add.at(matrix, (down, across), sign * w)
        np.add.at(right, u, w * d)
        np.add.at(right, v, -w * d)
        x = np.linalg.solve(matrix, right)
    for row in rows:
        _settle(row, [float(x[number[slot]]) for slot in row])


def _settle(row: Sequence[Slot], wanted: Sequence[float]) -> None:
    """The x nearest to those wanted that keep order and distance: isotonic regression by pooling adjacent violators."""
    shift, shifts = 0.0, [0.0]
    for a, b in pairwise(row):
        shift += (a.width + b.width) / 2 + _between(a, b)
        shifts.append(shift)
    pools: list[tuple[float, int]] = []  # mean, how many
    for want, by in zip(wanted, shifts, strict=True):
        pools.append((want - by, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (m, n), (k, c) = pools[-2:]
            pools[-2:] = [((m * n + k * c) / (n + c), n + c)]
    means = [mean for mean, n in pools for _ in range(n)]
    for slot, mean, by in zip(row, means, shifts, strict=True):
        slot.x = mean + by


def _between(a: Slot, b: Slot) -> float:
    """How far apart two neighbours stand."""
    if a.group and a.group == b.group:
        return 0.16
    bends = (a.number < 0) + (b.number < 0)
    return (0.3, 0.18, 0.08)[bends] + (FRAME + TAG if a.group else 0) + (FRAME if b.group else 0)
