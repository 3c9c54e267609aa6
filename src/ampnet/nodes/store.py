"""Store: what a node remembers between a message's forward and its backward, under the message's key.

A forward batch and the backward batches of the same messages differ in composition, so what is kept must be found
message by message. A key leads to a **ticket**, (record, position). A large batch is its own record, kept as the
tensors it came with; small batches are copied one behind the other into an open **block**, so that a backward batch
put together from many of them is gathered from few places. A store from which batches keep coming back as they went
(many instances in step) puts them into records of their own, however small, and copies nothing:

    put   [k0 k1 k2] large   ->  record 7 = the tensors themselves
    put   [k3] small         ->  block 8: . . . k3 _ _ _ _
    take  [k0 k1 k2]         ->  record 7 as it is: nothing is copied; the same for any run of neighbours
    take  [k2 k3]            ->  a row of record 7, a row of block 8

The order of messages in a batch has no meaning, so a batch with messages of several records is put into the
order of the records, instead of putting what they hold into the order of the batch.

A record whose messages are mostly gone is compacted, so a straggler does not keep a large batch alive: a store holds at
most `_SPARSE` times the rows that are live, and its open blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, repeat

import numpy as np
from torch import Tensor

from ampnet.errors import PairingError
from ampnet.key import Packer
from ampnet.message import Messages, index_tensor, row_index, take_rows
from ampnet.nodes.keyed import Keyed
from ampnet.state import Column, Ints, States

_SPARSE = 4
_SMALL = 256
"""Batches of fewer single-row messages than this are copied into a block."""
_TINY = 4
"""Batches of fewer messages always go into a block."""
_TRUST = 8
"""The number of batches that must return unchanged before the next ones are stored separately."""
_BLOCK = 4096
"""Messages of the largest blocks."""
_POSITION = 32
_MASK = (1 << _POSITION) - 1

Rows = tuple[Tensor | None, ...]


class Record:
    """Messages kept together: the first ``size`` rows of ``rows``, keys and columns of ``states``."""

    __slots__ = ("alive", "block", "columns", "fields", "keys", "live", "number", "offsets", "rows", "size", "tag")

    def __init__(
        self, number: int, keys: Ints, rows: Rows, states: States | None, offsets: Ints | None, tag: int
    ) -> None:
        self.number, self.keys, self.rows, self.offsets, self.tag = number, keys, rows, offsets, tag
        self.fields = () if states is None else states.fields
        self.columns: Ints | None = None if states is None else states.columns
        self.size = self.live = len(keys)
        self.alive: Column | None = None
        self.block = False


@dataclass(slots=True)
class Part:
    """Neighbouring messages of a batch that are all in one record."""

    record: Record
    positions: Column | slice
    """The position in the record."""

    def __len__(self) -> int:
        if isinstance(self.positions, slice):
            return int(self.positions.stop - self.positions.start)
        return len(self.positions)

    def rows(self, i: int) -> Tensor | None:
        """The rows of the ``i``-th tensor, of these messages. Neighbours are not copied."""
        rows, at, offsets = self.record.rows[i], self.positions, self.record.offsets
        if rows is None:
            return None
        if not isinstance(at, slice):
            return take_rows(rows, offsets, at)[0]
        if at.start == 0 and at.stop == self.record.size and not self.record.block:
            return rows
        first, last = (at.start, at.stop) if offsets is None else (int(offsets[at.start]), int(offsets[at.stop]))
        return rows[first:last]

    def counts(self) -> Ints:
        """Rows of each message."""
        if self.record.offsets is None:
            return np.ones(len(self), dtype=np.int64)
        counts: Ints = (self.record.offsets[1:] - self.record.offsets[:-1])[self.positions]
        return counts

    def states(self) -> States:
        columns = self.record.columns
        assert columns is not None
        chosen = (
            columns[:, self.positions] if isinstance(self.positions, slice) else columns.take(self.positions, axis=1)
        )
        return States.trusted(self.record.fields, chosen)


class Store(Keyed):
    """Messages kept under their keys. Putting a key twice, or taking one that is not there, is a `PairingError`."""

    def __init__(self, packer: Packer, what: str) -> None:
        self._tickets: dict[int, int] = {}
        super().__init__(packer, what)
        self._records: dict[int, Record] = {}
        self._open: dict[int, Record] = {}
        self._next = 0
        self._whole = 0
        """Rises with batches that return unchanged, falls with those that do not."""
        self.may_hold_empty = False
        """Whether a batch without rows was ever put here (gradients that are not there)."""

    def __len__(self) -> int:
        return len(self._tickets)

    def put(
        self,
        keys: Ints,
        rows: Rows = (),
        states: States | None = None,
        offsets: Ints | None = None,
        tag: int = 0,
        *,
        alone: bool = False,
    ) -> None:
        """Keep a batch. ``tag`` is any integer of the caller's (a weight version, a port); messages of a record share
        it.

        ``states`` are kept only if given. ``alone``: do not put the batch into a block with others.
        """
        n = len(keys)
        if n == 0:
            return
        record = None
        if offsets is None and n < _SMALL and not alone and (self._whole < _TRUST or n < _TINY):
            record = self._append(keys, rows, states, tag)
        if record is None:
            if any(r is None for r in rows):
                self.may_hold_empty = True
            record = Record(self._next, keys, tuple(map(_unpinned, rows)), states, offsets, tag)
            self._records[self._next] = record
            self._next += 1
        tickets, before = self._tickets, len(self._tickets)
        base = (record.number << _POSITION) + record.size - n
        if n == 1:
            tickets[int(keys[0])] = base
        else:
            tickets.update(zip(keys.tolist(), range(base, base + n), strict=True))
        if len(tickets) != before + n:
            raise PairingError(self._explain_clash(keys))

    def _append(self, keys: Ints, rows: Rows, states: States | None, tag: int) -> Record | None:
        """Copy a small batch to the end of the open block of its tag. None where its rows cannot be copied."""
        block = self._open.get(tag)
        n = len(keys)
        if block is None or block.size + n > len(block.keys) or not _fits(block, rows, states):
            block = self._new_block(n, rows, states, tag)
            if block is None:
                return None
        start, stop = block.size, block.size + n
        block.keys[start:stop] = keys
        for kept, given in zip(block.rows, rows, strict=True):
            assert kept is not None
            assert given is not None
            kept[start:stop] = given
        if states is not None:
            assert block.columns is not None
            block.columns[:, start:stop] = states.columns
        block.size = stop
        block.live += n
        return block

    def _new_block(self, n: int, rows: Rows, states: States | None, tag: int) -> Record | None:
        if any(r is None for r in rows):
            return None
        old = self._open.pop(tag, None)
        before = old if old is not None else next(reversed(self._open.values()), None)
        # As large as the last one turned out to be, and growing: a block is memory that is not used yet.
        size = max(2 * n, 16 if before is None else min(2 * before.size, _BLOCK))
        kept = tuple(r.new_empty(size, *r.shape[1:]) for r in rows if r is not None)
        block = Record(self._next, np.zeros(size, dtype=np.int64), kept, states, None, tag)
        block.size = block.live = 0
        block.block = True
        if states is not None:
            block.columns = np.zeros((len(states.fields), size), dtype=np.int64)
        self._records[self._next] = block
        self._next += 1
        self._open[tag] = block
        if old is not None:
            self._close(old)
        if len(self._open) > 4:
            self._close(self._open.pop(next(iter(self._open))))
        return block

    def _close(self, block: Record) -> None:
        """Close a block to further rows: drop it if it is empty, or trim its memory."""
        if not block.live:
            del self._records[block.number]
        elif block.live * _SPARSE <= len(block.keys):
            self._compact(block)

    def take(self, messages: Messages, keys: Ints | None = None) -> tuple[Messages, list[Part]]:
        """Remove the messages of these keys (default: the batch's own). All must be here.

        Returns the batch in the order in which the parts, one after the other, hold its messages.
        """
        if keys is None:
            keys = self.packer.pack(messages.states)
        if len(keys) == 1:  # the short way for a single message
            ticket = self._tickets.pop(keys.item(), -1)
            if ticket >= 0:
                record, at = self._records[ticket >> _POSITION], ticket & _MASK
                part = Part(record, slice(at, at + 1))
                if record.size == 1 and not record.block:
                    del self._records[record.number]
                else:
                    self._release(record, part.positions, 1)
                return messages, [part]
        found, _, parts = self.match(messages, keys)
        if found is None or len(found) < len(messages):
            lost = messages if found is None else _without(messages, found)
            held = self.some_states() if found is None else found.states
            count = len(self) + (0 if found is None else len(found))
            raise PairingError(self._explain_missing(lost.states.take(np.zeros(1, dtype=np.int64)), held, count))
        return found, parts

    def match(self, messages: Messages, keys: Ints) -> tuple[Messages | None, Messages | None, list[Part]]:
        """Remove the messages of these keys that are here: (found, in the order of the parts; not found; the parts)."""
        n = len(keys)
        if n == 0 or not self._tickets:
            return None, messages, []
        tickets = list(map(self._tickets.pop, keys.tolist(), repeat(-1)))
        first = tickets[0]
        if first >= 0 and tickets[-1] == first + n - 1 and (n <= 2 or tickets == list(range(first, first + n))):
            part = Part(self._records[first >> _POSITION], slice(first & _MASK, (first & _MASK) + n))
            self._release(part.record, part.positions, n)
            if n >= _TINY and self._whole < 2 * _TRUST:
                self._whole += 1
            return messages, None, [part]
        return self._search(messages, np.array(tickets))

    def empty(self, keys: Ints) -> Column:
        """Which of these keys are here without rows."""
        tickets = np.fromiter(map(self._tickets.get, keys.tolist(), repeat(-1)), dtype=np.int64, count=len(keys))
        numbers = tickets >> _POSITION
        bare = [n for n in np.unique(numbers).tolist() if n >= 0 and self._records[n].rows[0] is None]
        found: Column = np.isin(numbers, bare)
        return found

    def drop_instances(self, instances: Column) -> None:
        """Drop the messages of these instances."""
        if not self._tickets or "instance" not in (self.packer.fields or ()):
            return
        keys = self.live_keys()
        states = self.packer.unpack(keys)
        gone = np.flatnonzero(np.isin(states.column("instance"), instances))
        if len(gone):
            self.take(Messages.trusted(None, states.take(gone), None, False), keys[gone])

    def _search(self, messages: Messages, tickets: Ints) -> tuple[Messages | None, Messages | None, list[Part]]:
        """Returns the entries with these tickets (-1 for none), record by record."""
        others: Messages | None = None
        if tickets.min() < 0:
            here = np.flatnonzero(tickets >= 0)
            if not len(here):
                return None, messages, []
            others = messages.take(np.flatnonzero(tickets < 0))
            messages, tickets = messages.take(here), tickets[here]
        numbers = tickets >> _POSITION
        if (numbers == numbers[0]).all():
            part = Part(self._records[int(numbers[0])], tickets & _MASK)
            self._release(part.record, part.positions, len(numbers))
            return messages, others, [part]
        if (numbers[1:] < numbers[:-1]).any():
            order = np.argsort(numbers, kind="stable")
            messages, tickets, numbers = messages.take(order), tickets[order], numbers[order]
        self._whole = max(0, self._whole - _TRUST)
        positions = tickets & _MASK
        cuts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(numbers)]
        parts = []
        for a, b in pairwise(cuts):
            part = Part(self._records[int(numbers[a])], positions[a:b])
            self._release(part.record, part.positions, b - a)
            parts.append(part)
        return messages, others, parts

    def _release(self, record: Record, positions: Column | slice, count: int) -> None:
        record.live -= count
        is_open = record.block and self._open.get(record.tag) is record
        if record.live == 0 and not is_open:
            self._records.pop(record.number, None)
            return
        if record.alive is None:
            record.alive = np.ones(len(record.keys), dtype=bool)
        record.alive[positions] = False
        if not is_open and record.size >= 16 and record.live * _SPARSE <= record.size:
            self._compact(record)

    def _compact(self, record: Record) -> None:
        """Keep a copy of the live messages only, under a new record number: earlier parts still see the old one."""
        keep = np.arange(record.size) if record.alive is None else np.flatnonzero(record.alive[: record.size])
        index, offsets = row_index(record.offsets, keep)
        rows = tuple(None if r is None else r.index_select(0, index_tensor(index, r)) for r in record.rows)
        states = None
        if record.columns is not None:
            states = States.trusted(record.fields, record.columns.take(keep, axis=1))
        del self._records[record.number]
        fresh = Record(self._next, record.keys[keep], rows, states, offsets, record.tag)
        self._next += 1
        self._records[fresh.number] = fresh
        base = fresh.number << _POSITION
        self._tickets.update(zip(fresh.keys.tolist(), range(base, base + fresh.size), strict=True))

    def live_tags(self) -> set[int]:
        """The tags of all records with live messages."""
        return {r.tag for r in self._records.values() if r.live}

    def records(self) -> list[Record]:
        """All records, open blocks included."""
        return list(self._records.values())

    def missing(self, keys: Ints) -> Column:
        """The positions of keys that are not here."""
        here = np.fromiter(map(self._tickets.__contains__, keys.tolist()), dtype=bool, count=len(keys))
        return np.flatnonzero(~here)

    def some_states(self, most: int = 3) -> States | None:
        if not self._tickets:
            return None
        return self.packer.unpack(self.live_keys()[:most])

    def clear(self) -> None:
        self._tickets.clear()
        self._records.clear()
        self._open.clear()

    def live_keys(self) -> Ints:
        return np.fromiter(self._tickets, dtype=np.int64, count=len(self._tickets))

    def rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        if not self._tickets:
            self.clear()
            return
        self._tickets = dict(zip(rekey(self.live_keys()).tolist(), self._tickets.values(), strict=True))
        for record in self._records.values():
            record.keys = rekey(record.keys)


def _unpinned(rows: Tensor | None) -> Tensor | None:
    """Rows that do not keep a much larger tensor alive (a slice of a batch would keep the whole batch)."""
    if rows is None or rows.untyped_storage().nbytes() <= _SPARSE * rows.numel() * rows.element_size():
        return rows
    return rows.clone()


def _fits(block: Record, rows: Rows, states: States | None) -> bool:
    """Whether rows of this kind can go into the block."""
    if len(rows) != len(block.rows) or (states is None) != (block.columns is None):
        return False
    if states is not None and states.fields != block.fields:
        return False
    for kept, given in zip(block.rows, rows, strict=True):
        if given is None or kept is None or kept.shape[1:] != given.shape[1:]:
            return False
        if kept.dtype != given.dtype or kept.device != given.device:
            return False
    return True


def _without(messages: Messages, found: Messages) -> Messages:
    """The messages of the first batch that are not in the second, by state."""
    seen = {tuple(c) for c in found.states.columns.T.tolist()}
    left = [i for i, c in enumerate(messages.states.columns.T.tolist()) if tuple(c) not in seen]
    return messages.take(np.array(left[:1] or [0]))
