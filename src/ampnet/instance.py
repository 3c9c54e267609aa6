"""Instance: the messages that the controller pumps for one training or inference example.

For each input of the graph that it uses, an instance has messages: payload rows and their state fields (all but
``instance``, which the controller fills in). It may also have a `Structure`.

    Instance({
        "tokens": feed(tokens, t=np.arange(9), length=9),     nine messages
        "h0":     feed(zeros[1, 128], t=0, length=9),         one
        "label":  feed(label),                                one
    })
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from ampnet.errors import DataError, PayloadError, StateError
from ampnet.message import Messages, merge_offsets, merge_payloads, row_counts
from ampnet.narrow import narrow
from ampnet.position import Position
from ampnet.state import Column, Ints, States
from ampnet.structure import Structure

_kinds: dict[object, object] = {}
"""Each kind of instances once: most comparisons of kinds are by identity."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Messages of one instance for one input: payload rows, state fields and offsets, still without ``instance``."""

    payload: Tensor | None
    fields: tuple[str, ...]
    columns: Column
    """``[1 + fields, messages]``: row 0 is reserved for the instance's number. Of a narrow dtype, as many are kept."""
    offsets: Ints | None = None

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    @property
    def rows(self) -> int:
        return len(self) if self.offsets is None else int(self.offsets[-1])

    def row_counts(self) -> Ints:
        """Returns the number of rows of each message."""
        return row_counts(self.offsets, len(self))


def feed(
    payload: Tensor | None, *, offsets: ArrayLike | None = None, messages: int | None = None, **fields: ArrayLike
) -> Feed:
    """Build the messages for one input. A field is a number for all messages, or one number for each.

    Each message has one row unless ``offsets`` are given; ``messages=1`` puts all rows into one message.
    A payload of None (an unknown label, in inference) needs ``messages``.
    """
    if "instance" in fields:
        raise StateError("the field 'instance' is the controller's to fill in")
    if payload is None and messages is None:
        raise PayloadError("a feed without a payload needs messages=...")
    if payload is not None and payload.dim() == 0:
        raise PayloadError("a payload needs a dimension of rows; for one row use payload.unsqueeze(0)")
    rows = payload.shape[0] if payload is not None else 0
    starts = None if offsets is None else np.asarray(offsets, dtype=np.int64)
    if starts is None and messages == 1 and payload is not None:
        starts = np.array([0, rows])
    count = len(starts) - 1 if starts is not None else (rows if payload is not None else int(messages or 0))
    if messages is not None and messages != count:
        raise PayloadError(f"{rows} rows are {count} messages, not {messages}; offsets=... puts rows together")
    whole = (
        starts is None or payload is None or (starts[0] == 0 and starts[-1] == rows and (np.diff(starts) >= 0).all())
    )
    if not whole:
        raise PayloadError(f"offsets must rise from 0 to the {rows} rows of the payload")
    if starts is not None and rows == count and (np.diff(starts) == 1).all():
        starts = None  # one row per message: the short form, which is the fastest in inner loops
    columns = np.zeros((1 + len(fields), count), dtype=np.int64)
    for i, (name, value) in enumerate(fields.items(), start=1):
        array = np.asarray(value)
        if array.dtype.kind not in "iub" or array.shape not in ((), (count,)):
            raise StateError(
                f"field '{name}' must be a whole number, or {count} of them; got {array.dtype} {array.shape}"
            )
        columns[i] = array
    return Feed(payload, ("instance", *fields), narrow(columns), starts)


@dataclass(frozen=True, slots=True, repr=False)
class Instance:
    """One instance: feeds by input name, and its structure."""

    feeds: Mapping[str, Feed]
    structure: Structure | None = None
    records: int = 1
    """The number of examples it stands for (a bucket of 100 sequences counts 100), for throughput."""
    results: int | None = None
    """The number of results that complete it, in inference; default: the number of label messages. More are dropped."""
    _memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _digest: bytes | None = field(default=None, init=False, repr=False, compare=False)
    _complete: bool | None = field(default=None, init=False, repr=False, compare=False)
    _fits: Mapping[str, tuple[str, ...]] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not any(len(f) for f in self.feeds.values()):
            raise DataError("an instance without a single message (an empty sequence?) cannot be pumped")
        if self.results is not None and self.results < 1:
            raise DataError(f"an instance must have at least one result, got results={self.results}")

    def __repr__(self) -> str:
        told = [f"{len(given)} × {name}" + " (none)" * (given.payload is None) for name, given in self.feeds.items()]
        told += [f"{self.records} examples"] * (self.records != 1)
        return f"Instance({', '.join(told)})"

    def digest(self) -> bytes:
        """Returns a digest of states and structure; payloads do not count."""
        known = self._digest
        if known is None:
            made = hashlib.blake2b(digest_size=16)
            for name, given in self.feeds.items():
                made.update(f"{name} {given.fields} {given.columns.shape} {given.offsets is None}".encode())
                made.update(given.columns.astype(np.int64).tobytes())
                if given.offsets is not None:
                    made.update(given.offsets.tobytes())
            if self.structure is not None:
                for name, array in self.structure.arrays.items():
                    made.update(name.encode())
                    made.update(array.tobytes())
            known = made.digest()
            object.__setattr__(self, "_digest", known)
        return known

    def kind(self) -> object:
        """One object for instances whose payloads can be put together: inputs, dtypes, shapes of rows, and devices."""
        known: object = self._memo.get("kind")
        if known is None:
            feeds = [(name, given.payload) for name, given in self.feeds.items()]
            kind = tuple((name, None if p is None else (p.dtype, p.shape[1:], p.device)) for name, p in feeds)
            known = self._memo["kind"] = _kinds.setdefault(kind, kind)
        return known

    @property
    def complete(self) -> bool:
        """Whether all its messages have a payload."""
        known = self._complete
        if known is None:
            known = all(given.payload is not None for given in self.feeds.values())
            object.__setattr__(self, "_complete", known)
        return known

    def fits(self, fields: Mapping[str, tuple[str, ...]]) -> bool:
        """Whether its messages are for these inputs, with these state fields."""
        if self._fits is not fields:
            for name, given in self.feeds.items():
                if given.fields != fields.get(name) and (name not in fields or len(given)):
                    return False
            object.__setattr__(self, "_fits", fields)
        return True


@dataclass(frozen=True, slots=True)
class Stream:
    """A sequence of instances to pump: an epoch of training, or a validation set."""

    instances: Iterable[Instance]
    train: bool = True
    name: str = "train"
    keep_predictions: bool = False
    """Whether to collect the reports of Loss nodes in inference, per instance, in `StreamStats.predictions`."""
    position: Position | None = None
    """Where to continue; ``instances`` begin at the start all the same. None: at the start."""


@dataclass(frozen=True, slots=True, repr=False)
class StreamStats:
    """The statistics of a stream, after its last instance has retired."""

    name: str
    """The stream's name."""
    train: bool
    """Whether it was training."""
    instances: int
    """The number of instances retired."""
    records: int
    """Examples in them."""
    loss: float
    """Mean loss over all rows that reached a Loss; of losses of several names, the sum of their means."""
    metrics: dict[str, float]
    """Each metric over all rows that reached its Loss. With losses of several names, "mood.accuracy", "mood.loss"."""
    seconds: float
    """From its first pump to its last retirement."""
    skipped: int
    """The number of messages whose loss (in training, also whose instance's payload) was not finite: in training their
    gradient was skipped, in inference they are not in the means. Also counts instances with only a gradient that was
    not finite."""
    complete: bool = True
    """False if the run was stopped before all its instances were pumped."""
    predictions: dict[int, list[tuple[str, dict[str, int], Tensor]]] = field(default_factory=dict)
    """By position in the stream: (Loss node, state, prediction rows) of each result."""
    losses: dict[str, float] = field(default_factory=dict)
    """The mean of each loss by its name, over the rows that reached it."""

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else float("nan")

    def __repr__(self) -> str:
        values = [f"loss {self.loss:.4g}", *(f"{name} {value:.4g}" for name, value in self.metrics.items())]
        count = f"{self.instances:,} instances" + (f" of {self.records:,} examples" * (self.records != self.instances))
        notes = [f"{self.skipped:,} skipped"] * bool(self.skipped) + ["stopped early"] * (not self.complete)
        return f"StreamStats({self.name}: {', '.join([count, *values, f'{self.seconds:.2f} s', *notes])})"


def merge_feeds(numbers: list[int], feeds: list[Feed], train: bool, bare: bool = False) -> list[Messages]:
    """Returns the messages of several instances for one input as one batch, with the instance numbers filled in.

    Feeds without a payload form a separate batch. ``bare``: payloads are left out, of all of them.
    """
    if not feeds:
        return []
    if len(feeds) == 1:
        given = feeds[0]
        own = given.columns.astype(np.int64)
        own[0] = numbers[0]
        payload = None if bare else given.payload
        return [Messages.trusted(payload, States.trusted(given.fields, own), given.offsets, train)]
    empty = [given.payload is None for given in feeds]
    if any(empty) and not all(empty) and not bare:
        kinds = [[i for i, one in enumerate(empty) if one is kind] for kind in (empty[0], not empty[0])]
        return [m for some in kinds for m in merge_feeds([numbers[i] for i in some], [feeds[i] for i in some], train)]
    fields = feeds[0].fields
    columns = np.concatenate([given.columns for given in feeds], axis=1, dtype=np.int64)
    columns[0] = np.repeat(numbers, [given.columns.shape[1] for given in feeds])
    payload = None if bare else merge_payloads(feeds)
    return [Messages.trusted(payload, States.trusted(fields, columns), merge_offsets(feeds), train)]
