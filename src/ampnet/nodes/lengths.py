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

_WASTE = 1.4
"""Padded rows for each real one, at most, where messages are many."""
_FEW = 256
"""Padded rows that are never worth a part of their own."""


class Packing(NamedTuple):
    """Rows in the order of `torch.nn.utils.rnn.PackedSequence`."""

    rows: Tensor
    """Which row is at each place."""
    places: Tensor
    """Where each row is."""
    sizes: Tensor
    """Messages that have a row at each time step."""
    order: Tensor
    """Messages, the longest first."""
    back: Tensor
    """Where each message is in that order."""


class Lengths:
    """Messages by their numbers of rows, all at least one. Rows follow one another, message by message."""

    def __init__(self, counts: Ints) -> None:
        self.counts = counts
        self.starts: Ints = offsets_of(counts)[:-1]

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
        return Packing(*(torch.from_numpy(array) for array in (rows, places, sizes, order, back)))

    def parts(self, other: Lengths | None = None) -> list[Ints]:
        """Messages that are padded together, so that not too much of it is padding. ``other``: of the same messages,
        further rows, by whose lengths they are sorted too."""
        total = self.counts if other is None or other is self else self.counts + other.counts
        order = np.argsort(-total, kind="stable")
        out, first, real = [], 0, 0
        for at, rows in enumerate(total[order].tolist()):
            padded = (at - first + 1) * int(total[order[first]])
            if padded > _FEW and padded > _WASTE * (real + rows):
                out.append(order[first:at])
                first, real = at, 0
            real += rows
        out.append(order[first:])
        return [np.sort(part) for part in out]

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
        counts = self.counts[part]
        longest = int(counts.max())
        steps = np.arange(longest)
        index = self.starts[part][:, None] + np.minimum(steps, counts[:, None] - 1)
        padded = x.index_select(0, index_tensor(index.reshape(-1), x)).unflatten(0, index.shape)
        if int(counts.min()) == longest:
            return padded, None
        return padded, torch.from_numpy(steps >= counts[:, None]).to(x.device)

    def unpad(self, padded: Tensor, part: Ints) -> Tensor:
        """The real rows of what `pad` gave."""
        counts, longest = self.counts[part], padded.shape[1]
        flat = padded.flatten(0, 1)
        if int(counts.min()) == longest:
            return flat
        where = ranges(np.arange(len(part)) * longest, counts)
        return flat.index_select(0, index_tensor(where, padded))

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
