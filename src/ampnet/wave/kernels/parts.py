"""Parts: the rows that a node reads, column by column: where they are, how they are brought together, and how gradients
get back to them.

A node's input row may come in **pieces** (adjacent rows that were never concatenated), and a node may want it in
other **parts** (a GRU cell wants x and h apart). A part consists of sources: columns of a piece.

    pieces   [ a ........ ][ b .... ]        arenas where rows a and b lie
    parts    [ x ... ][ h .......... ]       x: columns of a            h: columns of a, then all of b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ampnet.native import calls
from ampnet.wave.arena import Read, add_back, fetch, through

Piece = tuple[int, tuple[int, int] | None, int]
"""(slot of the site, columns of the arena's rows or None for all, how many)."""


@dataclass(slots=True, eq=False)
class Source:
    """Columns of a part, and where they are read."""

    slot: int
    columns: tuple[int, int] | None
    """Of the arena's rows; None: all."""
    start: int
    stop: int
    """Within the part."""


@dataclass(slots=True, eq=False)
class Part:
    """Columns that a node reads as one tensor."""

    sources: list[Source]
    width: int
    alike: bool
    """Whether all sources are the same columns."""

    def moved(self, reads: Sequence[Read]) -> bool:
        """Whether its gradient is needed."""
        return any(reads[source.slot].moved for source in self.sources)

    def in_place(self, reads: Sequence[Read]) -> bool:
        """Whether its rows are one slice of an arena."""
        read = reads[self.sources[0].slot]
        return len(self.sources) == 1 and read.index is None and read.arena.inverse is None

    def fill(self, reads: Sequence[Read], into: Tensor) -> None:
        """Copy its rows."""
        together = self._together(reads)
        if together is not None:
            data, places = together
            columns = self.sources[0].columns
            width = data.shape[1] if columns is None else columns[1] - columns[0]
            fetch(into.view(-1, width), data, places, columns)
            return
        for source in self.sources:
            read = reads[source.slot]
            where, data = read.places(), read.arena.rows_made
            if len(self.sources) == 1 and where is not None:
                fetch(into, data, where, source.columns)
            else:
                target = into if len(self.sources) == 1 else into[..., source.start : source.stop]
                rows = read.rows(source.columns)
                if not calls.fetch(target, rows, None):
                    target.copy_(rows)

    def add(self, reads: Sequence[Read], dx: Tensor) -> None:
        """Add to the gradient of its rows."""
        first = self.sources[0]
        if len(self.sources) == 1:
            reads[first.slot].add(dx, first.columns)
            return
        together = self._together(reads) if self.moved(reads) else None
        if together is None:
            for source in self.sources:
                reads[source.slot].add(dx[..., source.start : source.stop], source.columns)
            return
        total = reads[first.slot].arena.gradient()
        width = total.shape[1] if first.columns is None else first.columns[1] - first.columns[0]
        add_back(total, dx.reshape(-1, width), together[1], first.columns)

    def gradient(self, reads: Sequence[Read]) -> Tensor:
        """Where to add to its gradient, if it is in place."""
        source = self.sources[0]
        read = reads[source.slot]
        total = read.arena.gradient()[read.start : read.stop]
        return total if source.columns is None else total[..., source.columns[0] : source.columns[1]]

    def unwritten(self, reads: Sequence[Read]) -> Tensor | None:
        """Its gradient, to be written instead of added to; None where others may add to it."""
        source = self.sources[0]
        read = reads[source.slot]
        if len(self.sources) > 1 or source.columns is not None or read.index is not None:
            return None
        return read.arena.unwritten(read.start, read.stop)

    def _together(self, reads: Sequence[Read]) -> tuple[Tensor, Tensor] | None:
        """Where its sources are the same columns of one arena: the arena's rows, and which of them, by turns."""
        mine = [reads[source.slot] for source in self.sources]
        if len(mine) < 2 or not self.alike or any(read.arena is not mine[0].arena for read in mine):
            return None
        data = mine[0].arena.rows_made
        if data.dim() != 2 or not data.is_contiguous():
            return None
        if mine[0].joined is None:
            mine[0].joined = {}
        slots = tuple([source.slot for source in self.sources])
        known, memory = mine[0].joined.get(slots, (None, None))
        if known is None:
            known = torch.stack([_where(read) for read in mine], 1).flatten()
        inverse, places = mine[0].arena.inverse, known
        if inverse is not None:
            places = memory = through(inverse, known, memory)
        mine[0].joined[slots] = known, memory
        return data, places


def _where(read: Read) -> Tensor:
    """The positions of rows."""
    if read.index is not None:
        return read.index
    return torch.arange(read.start, read.stop, device=read.arena.rows_made.device)


def parts_of(pieces: Sequence[Piece], wanted: Sequence[Sequence[tuple[int, int]]] | None) -> list[Part]:
    """Which columns of which piece each part consists of. ``wanted``: columns of the whole row; None: every piece is a
    part."""
    if wanted is None:
        return [Part([Source(slot, columns, 0, width)], width, True) for slot, columns, width in pieces]
    parts = []
    for ranges in wanted:
        sources, at = list[Source](), 0
        for a, b in ranges:
            begin = 0
            for slot, columns, width in pieces:
                low, high = max(a, begin), min(b, begin + width)
                if low < high:
                    first = (0 if columns is None else columns[0]) + low - begin
                    whole = columns is None and high - low == width
                    sources.append(Source(slot, None if whole else (first, first + high - low), at, at + high - low))
                    at += high - low
                begin += width
        parts.append(Part(sources, at, all(s.columns == sources[0].columns for s in sources)))
    return parts
