"""Routes: how the lines of a drawing run between boxes that have their place in the layers of `ampnet.draw.layout`.

A line leaves downwards and arrives from above. To the next layer it slants; through a layer it goes straight down, at
its bend. An edge that goes back, or on to the next band, takes a detour:

              ┌─ track above ─┐
              v               │        [1] down from the box to a track below its layer,
           ┌─────┐            │        [2] along the track, between two layers, to a lane,
           │ box │            │        [3] up in the lane, beside all layers it passes, to a track above the target,
           └──┬──┘            │ lane   [4] along that track and down into the target.
              │               │
           ┌──┴──┐  ┌─────┐   │        In a band a lane hugs the layers it passes, so inner loops lie inside outer ones.
           │ box │  │ box │   │        Between two bands lanes lie side by side in the gutter; where bands are no
           └──┬──┘  └─────┘   │        neighbours, a track above everything joins two lanes.
              └─ track below ─┘

No line can run through a box: there is none between layers or in a gutter, and in a layer a line has its bend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from ampnet.draw.layout import FRAME, GAP, TAG, Box, Curve, Frame, Layout, Link, Point, Rows, Slot

TRACK = 0.11
"""Between parallel tracks or lanes."""
LEAD = 0.1
"""From a layer down to its first track."""
LANDING = 0.2
"""From the last track above a layer down to it: room for an arrow head."""
HEAD = 0.08
"""Straight down to the box at the end of a slant, under the arrow head."""
CLEAR = 0.16
"""From boxes to the nearest lane."""
ROUND = 0.09
"""Radius of corners."""
SLANT = 0.13
"""Height that a line gets for each inch it goes sideways, up to ``STEEP``."""
STEEP = 0.6


@dataclass(slots=True, eq=False)
class Detour:
    """A piece of a line that does not simply go down to the next layer."""

    source: Slot
    start: float
    target: Slot
    end: float
    lanes: list[float] = field(default_factory=list)
    """One x; or two, joined by a track above everything."""
    below: int = 0
    above: int = 0
    over: int = 0
    """Its tracks, counted from the boxes outwards."""

    @property
    def leaves(self) -> float:
        return self.source.x + self.start

    @property
    def arrives(self) -> float:
        return self.target.x + self.end


class Routes:
    """One use: lays the lanes, stacks the layers, draws the curves."""

    def __init__(
        self,
        boxes: Sequence[Box],
        links: Sequence[Link],
        rows: Rows,
        chains: Sequence[Sequence[Slot]],
        bands: Sequence[int],
    ) -> None:
        self.boxes, self.links, self.rows, self.chains, self.bands = boxes, links, rows, chains, bands
        self.detours: dict[tuple[int, int], Detour] = {}
        """By link and piece of it."""
        for k, (link, chain) in enumerate(zip(links, chains, strict=True)):
            for piece, (a, b) in enumerate(pairwise(chain)):
                if link.back or bands[a.layer] != bands[b.layer]:
                    start, end = link.start if piece == 0 else 0.0, link.end if b is chain[-1] else 0.0
                    self.detours[k, piece] = Detour(a, start, b, end)
        self.tops, self.bottoms = [0.0] * len(rows), [0.0] * len(rows)
        self.ceiling = 0.0

    def layout(self) -> Layout:
        width = self._lanes()
        height = self._stack()
        for k, (link, chain) in enumerate(zip(self.links, self.chains, strict=True)):
            link.curve = self._curve(k, link, chain)
        return Layout(self.boxes, self.links, self._frames(), self.bands[-1] + 1, width, height)

    def _lanes(self) -> float:
        """Lay the lanes and shift each band to its place; returns the width of the whole."""
        edge = 0.0
        for band in range(self.bands[-1] + 1):
            rows = [row for row, b in zip(self.rows, self.bands, strict=True) if b == band]
            inner = [
                d for d in self.detours.values() if {self.bands[d.source.layer], self.bands[d.target.layer]} == {band}
            ]
            self._loops(inner)
            left = min([*(x for d in inner for x in d.lanes), *(s.left for row in rows for s in row)])
            right = max([*(x for d in inner for x in d.lanes), *(s.right for row in rows for s in row)])
            for row in rows:
                for slot in row:
                    slot.x += edge - left
            for d in inner:
                d.lanes = [x + edge - left for x in d.lanes]
            edge += right - left
            # A detour that crosses the gutter right of this band, or starts or ends beside it.
            gutter = []
            for d in self.detours.values():
                first, last = self.bands[d.source.layer], self.bands[d.target.layer]
                if first != last and band in (min(first, last), max(first, last) - 1):
                    gutter.append((first < last, -d.leaves, d))
            # Lines back lie left of lines on, or they would meet on the tracks above both bands; lines on lie in the
            # order in which they do not cross.
            for _, _, d in sorted(gutter, key=lambda g: g[:2]):
                edge += TRACK
                d.lanes.append(edge - TRACK + CLEAR)
            edge += 2 * CLEAR + GAP / 2 if band < self.bands[-1] else 0.0
        for d in self.detours.values():
            if self.bands[d.source.layer] > self.bands[d.target.layer]:
                d.lanes.reverse()  # laid from left to right, but used from the source on
        return edge

    def _loops(self, detours: Sequence[Detour]) -> None:
        """Lay the lanes of detours in one band, short ones inside."""
        laid: list[tuple[range, bool, float]] = []

        def layers(d: Detour) -> range:
            # The target lies above, but where loops are entangled it need not.
            return range(min(d.target.layer, d.source.layer), max(d.target.layer, d.source.layer) + 1)

        def lane(d: Detour, right: bool) -> float:
            passed = layers(d)
            sign = 1 if right else -1
            beside = [sign * (s.right if right else s.left) + CLEAR for i in passed for s in self.rows[i]]
            beside += [
                sign * x + TRACK
                for other, side, x in laid
                if side == right and other.start < passed.stop and passed.start < other.stop
            ]
            return sign * max(beside)

        def way(d: Detour, right: bool) -> float:
            return abs(lane(d, right) - d.leaves) + abs(lane(d, right) - d.arrives)

        for d in sorted(detours, key=lambda d: (len(layers(d)), min(way(d, True), way(d, False)))):
            right = way(d, True) <= way(d, False)
            d.lanes = [lane(d, right)]
            laid.append((layers(d), right, d.lanes[0]))

    def _stack(self) -> float:
        """The y of every layer and box; returns the height of the whole."""
        detours = list(self.detours.values())
        below, above = [0] * len(self.rows), [0] * len(self.rows)
        for layer in range(len(self.rows)):
            leaving = [d for d in detours if d.source.layer == layer]
            for d, track in zip(leaving, tracks((d.leaves, d.lanes[0]) for d in leaving), strict=True):
                d.below = track
                below[layer] = max(below[layer], track + 1)
            coming = [d for d in detours if d.target.layer == layer]
            for d, track in zip(coming, tracks((d.arrives, d.lanes[-1]) for d in coming), strict=True):
                d.above = track
                above[layer] = max(above[layer], track + 1)
        over = [d for d in detours if len(d.lanes) == 2]
        for d, track in zip(over, tracks((d.lanes[0], d.lanes[1]) for d in over), strict=True):
            d.over = track
            self.ceiling = max(self.ceiling, (track + 1) * TRACK)
        y = height = 0.0
        for layer, row in enumerate(self.rows):
            if layer == 0 or self.bands[layer] != self.bands[layer - 1]:
                y = self.ceiling + (LANDING + above[layer] * TRACK if above[layer] else 0.0)
            else:
                joins = [(s, j) for s in self.rows[layer - 1] for j in s.down]
                sideways = max((abs(s.x + j.here - j.other.x - j.there) for s, j in joins), default=0.0)
                room = LEAD + LANDING + (below[layer - 1] + above[layer]) * TRACK
                y += max(GAP + min(STEEP, SLANT * sideways), room)
            framed = FRAME if any(s.group for s in row) else 0.0
            self.tops[layer], tallest = y, max(s.height for s in row)
            y += tallest + 2 * framed
            self.bottoms[layer] = y
            for slot in row:
                if slot.number >= 0:
                    box = self.boxes[slot.number]
                    box.x, box.y = slot.x, (self.tops[layer] + y) / 2
            height = max(height, y + (LEAD + below[layer] * TRACK if below[layer] else 0.0))
        return height

    def _curve(self, k: int, link: Link, chain: Sequence[Slot]) -> Curve:
        source, target = self.boxes[link.source], self.boxes[link.target]
        curve: Curve = [(source.x + link.start, source.bottom)]
        for piece, (a, b) in enumerate(pairwise(chain)):
            detour = self.detours.get((k, piece))
            if detour is not None:
                straight(curve, (curve[-1][0], self.bottoms[a.layer]))
                corners(curve, self._points(detour))
            else:
                straight(curve, (curve[-1][0], self.bottoms[a.layer]))
                last = b is chain[-1]
                slant(curve, (b.x + (link.end if last else 0.0), self.tops[b.layer] - HEAD * last))
        straight(curve, (target.x + link.end, target.top))
        return curve

    def _points(self, d: Detour) -> list[Point]:
        """The corners [1] to [4] of a detour."""
        below = self.bottoms[d.source.layer] + LEAD + d.below * TRACK
        above = self.tops[d.target.layer] - LANDING - d.above * TRACK
        over = self.ceiling - (d.over + 1) * TRACK
        first, last = d.lanes[0], d.lanes[-1]
        turn = [(first, over), (last, over)] if len(d.lanes) == 2 else []
        end = (d.arrives, self.tops[d.target.layer])
        return [(d.leaves, below), (first, below), *turn, (last, above), (d.arrives, above), end]

    def _frames(self) -> list[Frame]:
        frames = []
        for row in self.rows:
            for i, first in enumerate(row):
                if not first.group or (i and row[i - 1].group == first.group):
                    continue
                run = [self.boxes[s.number] for s in row[i:] if s.group == first.group]
                top, bottom = min(b.top for b in run) - FRAME, max(b.bottom for b in run) + FRAME
                frames.append(
                    Frame(first.group, len(run), run[0].left - FRAME, top, run[-1].right + FRAME + TAG, bottom)
                )
        return frames


def tracks(spans: Iterable[tuple[float, float]]) -> list[int]:
    """A track for each span so that no two of one track touch; the shortest get the first tracks."""
    ordered = [(min(s), max(s)) for s in spans]
    chosen = [0] * len(ordered)
    taken: list[list[tuple[float, float]]] = []
    for i in sorted(range(len(ordered)), key=lambda i: ordered[i][1] - ordered[i][0]):
        low, high = ordered[i]
        free = (n for n, track in enumerate(taken) if all(high + TRACK < a or b + TRACK < low for a, b in track))
        chosen[i] = next(free, len(taken))
        if chosen[i] == len(taken):
            taken.append([])
        taken[chosen[i]].append((low, high))
    return chosen


def straight(curve: Curve, end: Point) -> None:
    """Go on in a straight line."""
    (x, y), (u, v) = curve[-1], end
    if abs(u - x) + abs(v - y) > 1e-9:
        curve += [(x + (u - x) / 3, y + (v - y) / 3), (u - (u - x) / 3, v - (v - y) / 3), end]


def slant(curve: Curve, end: Point) -> None:
    """Go on downwards, sideways and downwards again, smoothly."""
    (x, y), (u, v) = curve[-1], end
    if abs(x - u) < 1e-6:
        straight(curve, end)
    else:
        curve += [(x, y + 0.55 * (v - y)), (u, v - 0.55 * (v - y)), end]


def corners(curve: Curve, points: Sequence[Point]) -> None:
    """Go on along these points, corners rounded."""
    for k, (here, following) in enumerate(pairwise(points)):
        before = points[k - 1] if k else curve[-1]
        into, out = _toward(here, before), _toward(here, following)
        straight(curve, into)
        curve += [_mix(into, here), _mix(out, here), out]
    straight(curve, points[-1])


def _toward(corner: Point, other: Point) -> Point:
    """A corner's radius away from it, or half of the way."""
    (x, y), (u, v) = corner, other
    length = abs(u - x) + abs(v - y)  # along an axis
    part = min(ROUND, length / 2) / length if length else 0.0
    return (x + part * (u - x), y + part * (v - y))


def _mix(end: Point, corner: Point) -> Point:
    """The control point that makes a quarter circle of a corner."""
    return (end[0] + 0.5523 * (corner[0] - end[0]), end[1] + 0.5523 * (corner[1] - end[1]))
