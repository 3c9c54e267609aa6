"""Reduce: the rows of each message to one row: their sum, mean, maximum, or all of them side by side. What usually
follows a Group.

    forward    y = sum / mean / max over the message's rows       keeps how many rows; max: which row won
    backward   dy copied to every row (sum), divided (mean), or to the winner alone (max; the first of equals)

    forward    y = log of the sum of exp(x) (logsumexp)           keeps every row's share of that sum
    backward   dy times the share

    forward    y = [x_1 | ... | x_k] (beside)                     keeps nothing: every message has k rows
    backward   dy cut into k rows

The sum and mean of no rows are zero; a maximum of no rows, or a logsumexp, is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.message import Messages, index_tensor, offsets_of, rows_each
from ampnet.nodes.kept import Kept, gather, gather_counts
from ampnet.nodes.node import Outputs, Piece, Role, backward_to, forward_to
from ampnet.nodes.transform import Transform


class Reduce(Transform):
    """``Reduce("sum" | "mean" | "max" | "logsumexp")`` over the rows of each message; ``Reduce("beside", count=k)``."""

    @property
    def role(self) -> Role:  # type: ignore[override]
        return "rows" if self.how == "beside" else "reduce"

    def view(self, port: int) -> list[Piece] | None:
        return [(i, None) for i in range(self.count)] if self.how == "beside" else None

    def __init__(
        self,
        how: Literal["sum", "mean", "max", "logsumexp", "beside"] = "sum",
        key: Sequence[str] | None = None,
        *,
        count: int | None = None,
    ) -> None:
        if how not in ("sum", "mean", "max", "logsumexp", "beside"):
            raise ValueError(f"Reduce knows sum, mean, max, logsumexp and beside; got {how!r}")
        if (how == "beside") != (count is not None) or (count is not None and count < 1):
            raise ValueError(f"Reduce('beside') needs count=, the rows of each message, and no other does; got {count}")
        super().__init__(key)
        self.how, self.count = how, count or 0
        self._single = False
        """Whether a row is a single number."""

    def forward(self, port: int, messages: Messages) -> Outputs:
        x = messages.payload
        if x is None:
            raise PayloadError("got a forward message without a payload")
        if self.how == "beside":
            return [forward_to(0, Messages.trusted(self._beside(x, messages), messages.states, None, messages.train))]
        if self.how == "logsumexp":
            y, shares = segment_logsumexp(x, messages)
            if messages.train:
                self.cache.put(self.key.pack(messages.states), (shares,), None, messages.offsets)
            return [forward_to(0, Messages.trusted(y, messages.states, None, messages.train))]
        counts = messages.row_counts()
        y, winners = segment_max(x, messages) if self.how == "max" else (segment_sum(x, messages), None)
        if self.how == "mean":
            y = y / _per_message(np.maximum(counts, 1), y)
        if messages.train:
            kept = index_tensor(counts, x)
            kept_rows = (kept,) if winners is None else (kept, winners)
            self.cache.put(self.key.pack(messages.states), kept_rows)
        return [forward_to(0, Messages.trusted(y, messages.states, None, messages.train))]

    def backward(self, port: int, messages: Messages) -> Outputs:
        if self.how == "beside":
            return [backward_to(0, self._apart(messages))]
        messages, parts = self.cache.take(messages)
        g = messages.payload
        if self.how == "logsumexp":
            counts = gather_counts(parts)
            if g is not None:
                shares = Kept(parts)[0]
                g = shares.mul(g if counts is None else _to_rows(g, counts))
            offsets = None if counts is None else offsets_of(counts)
            return [backward_to(0, Messages.trusted(g, messages.states, offsets, messages.train))]
        kept = gather(parts, 0)
        winners = gather(parts, 1) if self.how == "max" else None
        assert kept is not None
        counts = kept.cpu().numpy()
        offsets = offsets_of(counts)
        if g is not None:
            g = self._spread(g, counts, offsets, winners)
        return [backward_to(0, Messages.trusted(g, messages.states, offsets, messages.train))]

    def check_counts(self, messages: Messages) -> None:
        """Raise `PayloadError` if a message has not the number of rows to concatenate."""
        wrong = np.flatnonzero(messages.row_counts() != self.count)
        if len(wrong):
            rows = int(messages.row_counts()[wrong[0]])
            at = messages.states.take(wrong[:1]).describe()
            raise PayloadError(f"puts {self.count} rows side by side, got a message of {rows} at {at}")

    def _beside(self, x: Tensor, messages: Messages) -> Tensor:
        self.check_counts(messages)
        self._single = x.dim() == 1
        rows_of = x.reshape(len(messages), self.count, *x.shape[1:])
        return rows_of if self._single else rows_of.movedim(1, -2).flatten(-2)

    def _apart(self, messages: Messages) -> Messages:
        g = messages.payload
        if g is not None:
            g = g.flatten() if self._single else g.unflatten(-1, (self.count, -1)).movedim(-2, 1).flatten(0, 1)
        offsets = np.arange(len(messages) + 1) * self.count
        return Messages.trusted(g, messages.states, offsets, messages.train)

    def _spread(self, g: Tensor, counts: np.ndarray, offsets: np.ndarray, winners: Tensor | None) -> Tensor:
        if winners is not None:
            rows = winners + _per_message(offsets[:-1], winners)
            return g.new_zeros(int(offsets[-1]), *g.shape[1:]).scatter_(0, rows, g)
        if self.how == "mean":
            g = g / _per_message(np.maximum(counts, 1), g)
        return _to_rows(g, counts)

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


def segment_max(x: Tensor, messages: Messages) -> tuple[Tensor, Tensor]:
    """The largest of each message's rows, and which of them that is, the first of equals."""
    counts = messages.row_counts()
    _check_some(messages, counts, "maximum")
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


def segment_logsumexp(x: Tensor, messages: Messages) -> tuple[Tensor, Tensor]:
    """The log of the sum of exp(x) of each message's rows, and every row's share of that sum (its softmax)."""
    each = rows_each(messages.offsets)
    if each:
        rows_of = x.reshape(len(messages), each, *x.shape[1:])
        y = rows_of.logsumexp(1)
        return y, (rows_of - y.unsqueeze(1)).exp_().flatten(0, 1)
    counts = messages.row_counts()
    _check_some(messages, counts, "logsumexp")
    owner = index_tensor(np.repeat(np.arange(len(counts)), counts), x)
    spread = owner.view(-1, *[1] * (x.dim() - 1)).expand_as(x)
    top = x.new_full((len(counts), *x.shape[1:]), -torch.inf).scatter_reduce_(0, spread, x, "amax")
    top = torch.where(top.isinf(), 0, top)  # infinity less itself is not a number
    sums = torch.zeros_like(top).index_add_(0, owner, (x - top.index_select(0, owner)).exp_())
    y = sums.log_().add_(top)
    return y, (x - y.index_select(0, owner)).exp_()


def _check_some(messages: Messages, counts: np.ndarray, what: str) -> None:
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise PayloadError(f"there is no {what} of no rows, at {messages.states.take(empty[:1]).describe()}")


def _to_rows(g: Tensor, counts: np.ndarray) -> Tensor:
    """Repeat the row of each message for every row of it."""
    return g.index_select(0, index_tensor(np.repeat(np.arange(len(counts)), counts), g))


def _per_message(values: np.ndarray, like: Tensor) -> Tensor:
    """A number per message, shaped to meet ``[messages, ...]``."""
    dtype = like.dtype if like.is_floating_point() else torch.int64
    return torch.as_tensor(values, device=like.device).to(dtype).view(-1, *[1] * (like.dim() - 1))
