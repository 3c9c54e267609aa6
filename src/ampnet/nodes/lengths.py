"""Lengths: messages of different numbers of rows, laid out so that a module can compute them together.

    rows      [ a0 a1 a2 | b0 | c0 c1 ]       three messages, one after the other: counts 3 1 2

    padded    a0 a1 a2          packed    a0 c0 b0 | a1 c1 | a2
              b0 -- --                    time step by time step, the longest first: what torch's recurrent
              c0 c1 --                    networks read, without padding

Padding costs products, so messages of very different lengths are padded in several parts (`parts`). Where a module can
have no mask, messages of equal length are stacked (`equal`).
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ampnet.message import index_tensor, offsets_of, ranges
from ampnet.state import Ints


class Packing(NamedTuple):
    """Rows in the order of `torch.nn.utils.rnn.PackedSequence`."""

    rows: Tensor
    """The row at each position."""
    places: Tensor
    """The position of each row."""
    sizes: Tensor
    """Messages that have a row at each time step."""
    order: Tensor
    """Messages, the longest first."""
    back: Tensor
    """The position of each message in that order."""
    turned: Tensor
    """For each place, that of the row which is as far from the end of its message as this one from the beginning."""
    before: Tensor
    """For each place, that of the row before it, behind as many places as there are messages; of a first row, the
    place of its message among those."""


class Padding(NamedTuple):
    """Messages that are padded together."""

    rows: Tensor
    """The row at each position; in padding, the last of the message."""
    shape: tuple[int, ...]
    """Messages, and rows of the longest."""
    mask: Tensor | None
    """The mask of padding; None: there is no padding."""
    places: Tensor | None
    """The position of each row; None: there is no padding."""


class Lengths:
    """Messages by their numbers of rows, all at least one. Rows follow one another, message by message."""

    def __init__(self, counts: Ints) -> None:
        self.counts = counts
        self.starts: Ints = offsets_of(counts)[:-1]
        self._paddings: dict[bytes, Padding] = {}
        self._parts: dict[tuple[int, bytes], list[Ints]] = {}

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def packing(self) -> Packing:
        order = np.argsort(-self.counts, kind="stable")
        sizes = np.cumsum(np.bincount(self.counts)[::-1])[::-1][1:].copy()
        step = np.repeat(np.arange(len(sizes)), sizes)
        place = ranges(np.zeros_like(sizes), sizes)
        rows = self.starts[order][place] + step
        places, back = np.empty_like(rows), np.empty_like(order)
        places[rows], back[order] = np.arange(len(rows)), np.arange(len(order))
        turned = places[self.starts[order][place] + self.counts[order][place] - 1 - step]
        before = np.where(step > 0, places[rows - 1] + len(order), place)
        return Packing(*(torch.from_numpy(array) for array in (rows, places, sizes, order, back, turned, before)))

    def parts(self, worth: int, other: Lengths | None = None) -> list[Ints]:
        """Messages that are padded together: as few parts as possible, and as little padding. ``worth``: the padding
        rows that cost as much as a part. ``other``: of the same messages, further rows, which are padded too.

        Each part has the messages of some neighbouring lengths; the cheapest parts up to each length are found from
        those up to shorter ones.
        """
        total = self.counts if other is None or other is self else self.counts + other.counts
        key = worth, total.tobytes()
        if key not in self._parts:
            self._parts[key] = self._find_parts(total, worth)
        return self._parts[key]

    @staticmethod
    def _find_parts(total: Ints, worth: int) -> list[Ints]:
        longest = int(total.max())
        if longest * len(total) - int(total.sum()) <= worth:
            return [np.arange(len(total))]
        lengths, which, counts = np.unique(total, return_inverse=True, return_counts=True)
        upto = np.concatenate(([0], np.cumsum(counts)))
        cost, first = np.zeros(len(lengths) + 1), np.zeros(len(lengths) + 1, dtype=np.int64)
        for i in range(1, len(lengths) + 1):
            costs = cost[:i] + worth + lengths[i - 1] * (upto[i] - upto[:i])
            first[i] = at = int(np.argmin(costs))
            cost[i] = costs[at]
        out, i = [], len(lengths)
        while i:
            out.append(np.flatnonzero((which >= first[i]) & (which < i)))
            i = int(first[i])
        return out

    @staticmethod
    def equal(all_counts: list[Ints]) -> list[Ints]:
        """Messages that have as many rows as each other in every one of these."""
        columns = np.stack(all_counts)
        _, which = np.unique(columns, axis=1, return_inverse=True)
        which = which.reshape(-1)
        return [np.flatnonzero(which == kind) for kind in range(int(which.max()) + 1)]

    def rows_of(self, part: Ints) -> Ints:
        """The rows of these messages."""
        return ranges(self.starts[part], self.counts[part])

    def pad(self, x: Tensor, part: Ints) -> tuple[Tensor, Tensor | None]:
        """``[messages, longest, ...]`` of these messages, and where it is padding (None: nowhere)."""
        found = self._padding(part)
        padded = x.index_select(0, found.rows.to(x.device)).unflatten(0, found.shape)
        return padded, None if found.mask is None else found.mask.to(x.device)

    def unpad(self, padded: Tensor, part: Ints) -> Tensor:
        """The real rows of what `pad` gave."""
        found, flat = self._padding(part), padded.flatten(0, 1)
        return flat if found.places is None else flat.index_select(0, found.places.to(padded.device))

    def _padding(self, part: Ints) -> Padding:
        key = part.tobytes()
        if key not in self._paddings:
            counts = self.counts[part]
            longest = int(counts.max())
            steps = np.arange(longest)
            rows = self.starts[part][:, None] + np.minimum(steps, counts[:, None] - 1)
            mask = places = None
            if int(counts.min()) < longest:
                mask = torch.from_numpy(steps >= counts[:, None])
                places = torch.from_numpy(ranges(np.arange(len(part)) * longest, counts))
            self._paddings[key] = Padding(torch.from_numpy(rows.reshape(-1)), rows.shape, mask, places)
        return self._paddings[key]

    def put_together(self, pieces: list[tuple[Ints, Tensor]]) -> Tensor:
        """Rows of parts, in the order of all rows."""
        if len(pieces) == 1:
            return pieces[0][1]
        where = np.concatenate([self.rows_of(part) for part, _ in pieces])
        back = np.empty_like(where)
        back[where] = np.arange(len(where))
        rows = torch.cat([rows for _, rows in pieces])
        return rows.index_select(0, index_tensor(back, rows))

    def at_first(self, singles: Tensor) -> Tensor:
        """A row of each message, at its first row; zeros at the others."""
        zeros = singles.new_zeros(self.rows, *singles.shape[1:])
        return zeros.index_copy(0, index_tensor(self.starts, singles), singles)
