"""Reduce: the rows of each message to one row: their sum, mean or maximum. What usually follows a Group.

    forward    y = sum / mean / max over the message's rows       keeps how many rows; max: which row won
    backward   dy copied to every row (sum), divided (mean), or to the winner alone (max; the first of equals)

The sum and mean of no rows are zero; a maximum of no rows is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.message import Messages, index_tensor, offsets_of
from ampnet.nodes.kept import Kept, gather
from ampnet.nodes.node import Outputs, backward_to, forward_to
from ampnet.nodes.transform import Transform


class Reduce(Transform):
    """``Reduce("sum" | "mean" | "max")`` over the rows of each message."""

    def __init__(self, how: Literal["sum", "mean", "max"] = "sum", key: Sequence[str] | None = None) -> None:
        if how not in ("sum", "mean", "max"):
            raise ValueError(f"Reduce knows sum, mean and max; got {how!r}")
        super().__init__(key)
        self.how = how

    def forward(self, port: int, messages: Messages) -> Outputs:
        x = messages.payload
        if x is None:
            raise PayloadError("got a forward message without a payload")
        counts = messages.row_counts()
        y, winners = self._max(x, messages) if self.how == "max" else (segment_sum(x, messages), None)
        if self.how == "mean":
            y = y / _per_message(np.maximum(counts, 1), y)
        if messages.train:
            kept = index_tensor(counts, x)
            kept_rows = (kept,) if winners is None else (kept, winners)
            self.cache.put(self.key.pack(messages.states), kept_rows)
        return [forward_to(0, Messages.trusted(y, messages.states, None, messages.train))]

    def backward(self, port: int, messages: Messages) -> Outputs:
        messages, parts = self.cache.take(messages)
        g = messages.payload
        kept = gather(parts, 0)
        winners = gather(parts, 1) if self.how == "max" else None
        assert kept is not None
        counts = kept.cpu().numpy()
        offsets = offsets_of(counts)
        if g is not None:
            g = self._spread(g, counts, offsets, winners)
        return [backward_to(0, Messages.trusted(g, messages.states, offsets, messages.train))]

    def _spread(self, g: Tensor, counts: np.ndarray, offsets: np.ndarray, winners: Tensor | None) -> Tensor:
        if winners is not None:
            rows = winners + _per_message(offsets[:-1], winners)
            return g.new_zeros(int(offsets[-1]), *g.shape[1:]).scatter_(0, rows, g)
        if self.how == "mean":
            g = g / _per_message(np.maximum(counts, 1), g)
        return g.index_select(0, index_tensor(np.repeat(np.arange(len(counts)), counts), g))

    def _max(self, x: Tensor, messages: Messages) -> tuple[Tensor, Tensor]:
        counts = messages.row_counts()
        empty = np.flatnonzero(counts == 0)
        if len(empty):
            raise PayloadError(f"there is no maximum of no rows, at {messages.states.take(empty[:1]).describe()}")
        n, owner = len(messages), index_tensor(np.repeat(np.arange(len(counts)), counts), x)
        spread = owner.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        top = x.new_full((n, *x.shape[1:]), -torch.inf).scatter_reduce_(0, spread, x, "amax")
        starts = offsets_of(counts)[:-1]
        inside = index_tensor(np.arange(len(owner)) - np.repeat(starts, counts), x)
        place = inside.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
        last = int(counts.max())
        place = torch.where(x == top.index_select(0, owner), place, last)
        winner = torch.full((n, *x.shape[1:]), last, dtype=torch.int64, device=x.device)
        winner.scatter_reduce_(0, spread, place, "amin")
        # NaN equals nothing: blame the first row, so that it travels on instead of pointing past the end.
        return top, torch.where(winner == last, 0, winner) if bool((winner == last).any()) else winner

    def probe(self, messages: Messages) -> bool:
        return False

    def gradient(self, g: Tensor, kept: Kept) -> Tensor | None:
        raise NotImplementedError("Reduce changes the number of rows; see backward")

    def describe(self) -> str:
        return self.how


def segment_sum(x: Tensor, messages: Messages) -> Tensor:
    """The sum of each message's rows."""
    if messages.offsets is None:
        return x
    counts, n = messages.row_counts(), len(messages)
    if n and counts[0] > 0 and (counts == counts[0]).all():
        return (
            x.view(n, int(counts[0]), *x.shape[1:]).sum(1)
            if x.is_contiguous()
            else x.reshape(n, int(counts[0]), *x.shape[1:]).sum(1)
        )
    owner = index_tensor(np.repeat(np.arange(n), counts), x)
    return x.new_zeros(n, *x.shape[1:]).index_add_(0, owner, x)


def _per_message(values: np.ndarray, like: Tensor) -> Tensor:
    """A number per message, shaped to meet ``[messages, ...]``."""
    dtype = like.dtype if like.is_floating_point() else torch.int64
    return torch.as_tensor(values, device=like.device).to(dtype).view(-1, *[1] * (like.dim() - 1))
