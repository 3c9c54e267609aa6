"""Flows: who reads whose rows, read off the layouts of waves that were played.

    operation 3 (cell, round 1) makes rows 20 to 29 of an arena
    operation 7 (readout) reads rows 5, 21, 22 of it        ──>  2 rows flow from cell to readout, of one round

An operation that reads by a view reads, for the view, the rows that the view is made of, and what the view would make
if it were on another worker. So the two stay apart in a cut as any two nodes do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ampnet.graph import CONTROLLER
from ampnet.placement.costs import Flow, Made, Site
from ampnet.plan.layout import Layout, Operation
from ampnet.plan.sites import Site as PlanSite
from ampnet.plan.sites import pieces_of
from ampnet.state import Ints

_LAYOUTS = 8
"""The number of waves whose layouts are read."""


class Flows:
    """Which nodes read the rows of which sites, from the layouts of a few waves."""

    def __init__(self) -> None:
        self.layouts = 0
        self._made: Counter[Site] = Counter()
        """Bytes."""
        self._rounds: Counter[tuple[Site, str]] = Counter()
        self._bytes: Counter[tuple[Site, str]] = Counter()
        """By site and node that reads."""
        self._still: dict[Site, bool] = {}
        self._view: dict[Site, bool] = {}
        self._chosen: dict[frozenset[str], Counter[str]] = {}
        """By choice: rows that each of its Linears made."""

    def look(self, layout: Layout) -> None:
        """Add a wave that has just ended, while its layout is still filled."""
        if self.layouts == _LAYOUTS:
            return
        self.layouts += 1
        operations = [one for op in layout.operations for one in (op.members or [op])]
        makers = [np.full(arena.rows, -1) for arena in layout.arenas]
        for number, op in enumerate(operations):
            makers[op.site.arena][op.start : op.stop] = number
            site = (op.site.name, op.site.end.port)
            self._made[site] += (op.stop - op.start) * _row(layout, op.site.arena)
            self._still[site], self._view[site] = op.site.still, False
        for op in layout.operations:
            if op.members:
                chosen = self._chosen.setdefault(frozenset(one.site.name for one in op.members), Counter())
                chosen.update({one.site.name: one.stop - one.start for one in op.members})
        read: dict[tuple[str, int], list[Ints]] = {}
        for op in operations:
            for arena, places, reader in _reads(op):
                read.setdefault((reader, arena), []).append(places)
            self._views(layout, op)
        for (reader, arena), given in read.items():
            places = np.unique(np.concatenate(given))
            self._read(operations, makers[arena][places], _row(layout, arena), reader)

    def _read(self, operations: Sequence[Operation], makers: Ints, width: int, reader: str) -> None:
        """Add the rows that a node reads, by the operation that computed them."""
        found, counts = np.unique(makers[makers >= 0], return_counts=True)
        for number, count in zip(found.tolist(), counts.tolist(), strict=True):
            site = operations[number].site
            key = ((site.name, site.end.port), reader)
            self._rounds[key] += 1
            self._bytes[key] += count * width

    def _views(self, layout: Layout, op: Operation) -> None:
        """What an operation reads by a view would be rows of the view, if the view were elsewhere."""
        for slot, view in enumerate(_views(op)):
            if view is not None:
                site, read = (view.name, view.end.port), op.reads[slot]
                self._still[site], self._view[site] = view.still, True
                self._rounds[site, op.site.name] += not slot or _views(op)[slot - 1] is not view
                self._bytes[site, op.site.name] += len(read) * _row(
                    layout, read.arena.number, op.site.parts[slot].columns
                )

    def made(self) -> dict[Site, Made]:
        """By site, of a wave."""
        flows: dict[Site, dict[str, Flow]] = {}
        for (site, reader), rounds in self._rounds.items():
            if site[0] not in (reader, CONTROLLER):
                many = Flow(rounds / self.layouts, self._bytes[site, reader] / self.layouts)
                flows.setdefault(site, {})[reader] = many
        out = {}
        for site, readers in flows.items():
            size = max(self._made[site] / self.layouts, max(f.bytes for f in readers.values()))
            out[site] = Made(size, readers, self._still[site], self._view[site])
        return out

    def pumped(self) -> dict[str, float]:
        """The nodes that read input rows, with their shares."""
        sizes = {reader: self._bytes[site, reader] for (site, reader) in self._rounds if site[0] == CONTROLLER}
        return {reader: size / max(1, sum(sizes.values())) for reader, size in sizes.items()}

    def share_out(self, seconds: dict[str, float]) -> None:
        """Distribute the one operation of the Linears of a choice, which is logged under the first, over all of
        them."""
        for names, rows in self._chosen.items():
            whole, count = sum(seconds[name] for name in names), max(1, rows.total())
            for name in names:
                seconds[name] = whole * rows[name] / count


def _views(op: Operation) -> list[PlanSite | None]:
    """By slot: the view by which an operation reads; None: it reads rows as they are."""
    out: list[PlanSite | None] = []
    for view in op.site.views:
        out += [view] * (1 if view is None else len(pieces_of(view) or ()))
    return out[: len(op.reads)]


def _reads(op: Operation) -> Iterator[tuple[int, Ints, str]]:
    """What an operation reads: the arena, which rows of it, and for which node."""
    if op.site.kind == "mixture":
        yield op.bags[0].arena.number, op.bags[0].index.numpy(force=True), op.site.name
    for read, view in zip(op.reads, _views(op), strict=False):
        places = np.arange(read.start, read.stop) if read.index is None else read.index.numpy(force=True)
        yield read.arena.number, places, op.site.name if view is None else view.name


def _row(layout: Layout, arena: int, columns: tuple[int, int] | None = None) -> int:
    """Bytes of a row, or of some columns of it."""
    data = layout.arenas[arena].data
    if data is None or not data.dim():
        return 0
    width = data[:1].numel() if columns is None else columns[1] - columns[0]
    return width * data.element_size()
