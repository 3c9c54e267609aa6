"""Messages: a batch of payloads and their states, sent along one edge of the graph.

    states    (instance=4, t=0)   (instance=4, t=1)   (instance=9, t=0)
    payload   [ row 0 ........ ]  [ row 1 ........ ]  [ row 2 ........ ]        offsets = None: a row a message
    payload   [ rows 0 1 2 ... ]  [ row 3 ........ ]  [ rows 4 5 ..... ]        offsets = [0, 3, 4, 6]

Batches only improve performance: every rule of the IR is stated per message, and `split` and `merge` do not change the
meaning. A payload is never written to after it was sent; so nodes may pass on, share and slice it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.state import Column, Ints, States


class Messages:
    """A batch of messages: ``payload`` rows of any trailing shape, ``states``, and ``offsets`` if a message has
    several rows.

    A backward payload of ``None`` means "no gradient": the messages only signal that the work after them is complete.
    ``train`` is False for inference: such messages are never recorded and never answered.
    """

    __slots__ = ("offsets", "payload", "states", "train")

    def __init__(
        self, payload: Tensor | None, states: States, offsets: Ints | None = None, *, train: bool = True
    ) -> None:
        if offsets is not None:
            offsets = np.asarray(offsets, dtype=np.int64)
            if offsets.shape != (len(states) + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
                raise PayloadError(f"offsets must rise from 0 in {len(states) + 1} steps for {len(states)} messages")
        rows = len(states) if offsets is None else int(offsets[-1])
        if payload is not None and (payload.dim() == 0 or payload.shape[0] != rows):
            raise PayloadError(f"payload of shape {tuple(payload.shape)} for {len(states)} messages of {rows} rows")
        self.payload, self.states, self.offsets, self.train = payload, states, offsets, train

    @classmethod
    def trusted(cls, payload: Tensor | None, states: States, offsets: Ints | None, train: bool) -> Messages:
        """Build a batch without the checks, for inner loops."""
        self = cls.__new__(cls)
        self.payload, self.states, self.offsets, self.train = payload, states, offsets, train
        return self

    def __len__(self) -> int:
        return len(self.states)

    def __repr__(self) -> str:
        shape = None if self.payload is None else tuple(self.payload.shape)
        return f"Messages({len(self)} of payload {shape}, {self.states.describe()})"

    @property
    def rows(self) -> int:
        return len(self) if self.offsets is None else int(self.offsets[-1])

    def row_counts(self) -> Ints:
        """Returns the number of rows of each message."""
        return row_counts(self.offsets, len(self))

    def with_payload(self, payload: Tensor | None) -> Messages:
        """Returns the messages with other rows, as many as before."""
        return Messages.trusted(payload, self.states, self.offsets, self.train)

    def with_states(self, states: States) -> Messages:
        """Returns the messages with other states."""
        return Messages.trusted(self.payload, states, self.offsets, self.train)

    def take(self, index: Column) -> Messages:
        """Returns the messages at these positions, or where a mask is true."""
        if index.dtype == bool:
            index = np.flatnonzero(index)
        payload, offsets = take_rows(self.payload, self.offsets, index)
        return Messages.trusted(payload, self.states.take(index), offsets, self.train)

    def slice(self, start: int, stop: int) -> Messages:
        """Returns a range of messages, without a copy of their payload."""
        states = self.states.slice(start, stop)
        if self.offsets is None:
            payload = None if self.payload is None else self.payload[start:stop]
            return Messages.trusted(payload, states, None, self.train)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        payload = None if self.payload is None else self.payload[first:last]
        return Messages.trusted(payload, states, self.offsets[start : stop + 1] - first, self.train)

    def by(self, choice: Column, ways: int) -> list[tuple[int, Messages]]:
        """Split the messages by ``choice``, a number below ``ways`` for each. Returns pairs (number, its messages).

        The payload is sorted by choice once; each part is a slice of it, in the order of its keys. Messages that took
        the same branch forward are then often adjacent again in the backward pass, and a store takes adjacent rows
        without a copy.
        """
        counts = np.bincount(choice, minlength=ways).tolist()
        here = [i for i, count in enumerate(counts) if count]
        if len(here) == 1:
            return [(here[0], self)]
        packed = self.states.packed
        ordered = self.take(np.lexsort((self.states.columns[0] if packed is None else packed[1], choice)))
        sizes = [counts[i] for i in here]
        stops = list(itertools.accumulate(sizes))
        if ordered.offsets is not None or ordered.payload is None:
            parts = [ordered.slice(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]
        else:
            states, train = ordered.states, self.train
            parts = [
                Messages.trusted(payload, states.slice(stop - size, stop), None, train)
                for payload, size, stop in zip(ordered.payload.split_with_sizes(sizes), sizes, stops, strict=True)
            ]
        return list(zip(here, parts, strict=True))

    def split(self, most: int) -> Iterator[Messages]:
        """Yields the messages in batches of at most ``most``."""
        for start in range(0, len(self), most):
            yield self.slice(start, min(start + most, len(self)))

    @staticmethod
    def merge(parts: Sequence[Messages]) -> Messages:
        """Concatenate batches, in order. All must be of one kind: training or not, with a payload or not."""
        if len(parts) == 1:
            return parts[0]
        states = States.merge([p.states for p in parts])
        return Messages.trusted(merge_payloads(parts), states, merge_offsets(parts), parts[0].train)


class Batch(Protocol):
    """The interface that `merge_payloads` and `merge_offsets` read: `Messages`, or feeds."""

    @property
    def payload(self) -> Tensor | None: ...

    @property
    def offsets(self) -> Ints | None: ...

    def row_counts(self) -> Ints: ...


def row_counts(offsets: Ints | None, messages: int) -> Ints:
    """Returns the number of rows of each message."""
    return np.ones(messages, dtype=np.int64) if offsets is None else offsets[1:] - offsets[:-1]


def merge_payloads(parts: Sequence[Batch]) -> Tensor | None:
    payloads = [p.payload for p in parts]
    known = [p for p in payloads if p is not None]
    if not known:
        return None
    if len(known) == 1 == len(payloads):
        return known[0]
    if len(known) < len(payloads):
        raise PayloadError("messages with and without a payload meet; they must stay in batches of their own")
    dtype = known[0].dtype
    try:
        if all(p.dtype is dtype for p in known):  # torch would promote them
            return torch.cat(known)
    except RuntimeError:
        pass
    shape = known[0].shape[1:]
    for payload in known:
        if payload.shape[1:] != shape or payload.dtype != dtype:
            raise PayloadError(
                f"payload rows of {tuple(shape)} {dtype} and of {tuple(payload.shape[1:])} {payload.dtype} meet"
            )
    return torch.cat(known)


def merge_offsets(parts: Sequence[Batch]) -> Ints | None:
    if all(p.offsets is None for p in parts):
        return None
    return offsets_of(np.concatenate([p.row_counts() for p in parts]))


def offsets_of(counts: Ints) -> Ints:
    """Returns the offsets for the given numbers of rows."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Returns ``starts[i], starts[i] + 1, ...`` (``counts[i]`` of them) for every i, concatenated."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - counts), counts) + np.arange(total)


def rows_each(offsets: Ints | None) -> int:
    """Returns the number of rows of every message; 0 if it differs between messages."""
    if offsets is None:
        return 1
    n = len(offsets) - 1
    if n == 0:
        return 0
    each = int(offsets[1])
    if n == 1:
        return each
    if offsets[-1] != n * each or offsets[2] != 2 * each:
        return 0
    return each if (offsets[1:] - offsets[:-1] == each).all() else 0


def consecutive(index: Column) -> bool:
    """Whether these positions are consecutive."""
    n = len(index)
    if n == 0 or index[-1] - index[0] != n - 1:
        return False
    return n <= 2 or bool((index[1:] - index[:-1] == 1).all())


def row_index(offsets: Ints | None, index: Column) -> tuple[Column, Ints | None]:
    """Returns the row indices of the messages at these positions, and the offsets of those messages alone."""
    if offsets is None:
        return index, None
    starts = offsets[index]
    counts = offsets[index + 1] - starts
    return ranges(starts, counts), offsets_of(counts)


def take_rows(payload: Tensor | None, offsets: Ints | None, index: Column) -> tuple[Tensor | None, Ints | None]:
    """Returns the rows of the messages at these positions, and their offsets. Adjacent rows are not copied."""
    each = rows_each(offsets)
    if each:
        kept = None if offsets is None else np.arange(len(index) + 1) * each
        return None if payload is None else _take_blocks(payload, each, index), kept
    rows, kept = row_index(offsets, index)
    if payload is None:
        return None, kept
    return payload.index_select(0, index_tensor(rows, payload)), kept


def _take_blocks(payload: Tensor, each: int, index: Column) -> Tensor:
    """Returns blocks of ``each`` rows: one memory copy per block, and none if the blocks are adjacent."""
    if consecutive(index):
        first = int(index[0]) * each
        return payload[first : first + len(index) * each]
    if each == 1:
        return payload.index_select(0, index_tensor(index, payload))
    blocks: Tensor = payload.unflatten(0, (-1, each))
    return blocks.index_select(0, index_tensor(index, payload)).flatten(0, 1)


def index_tensor(index: Column, like: Tensor) -> Tensor:
    """Returns a NumPy index as a tensor on the device of ``like``."""
    index = np.asarray(index)
    if index.dtype != np.int64:
        index = index.astype(np.int64)
    if not index.flags.writeable:
        index = index.copy()
    tensor = torch.from_numpy(index)
    return tensor if like.device.type == "cpu" else tensor.to(like.device, non_blocking=True)
