"""Store: what a node remembers between a message's forward and its backward, under the message's key.

A forward batch and the backward batches of the same messages differ in composition, so what is kept must be found message
by message. A key leads to a **ticket**, (record, position). A large batch is its own record, kept as the tensors it came
with; small batches are copied one behind the other into an open **block**, so that a backward batch put together from
many of them is gathered from few places:

    put   [k0 k1 k2] large   ->  record 7 = the tensors themselves
    put   [k3] small         ->  block 8: . . . k3 _ _ _ _
    take  [k0 k1 k2]         ->  record 7 as it is: nothing is copied; the same for any run of neighbours
    take  [k2 k3]            ->  a row of record 7, a row of block 8, in the order asked for

A record whose messages are mostly gone is compacted, so a straggler does not keep a large batch alive: a store holds at
most `_SPARSE` times the rows that are live, and its open blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import PairingError
from ampnet.key import Packer
from ampnet.message import index_tensor, offsets_of, row_index, take_rows
from ampnet.state import Column, Ints, States

_SPARSE = 4
_SMALL = 64
"""Batches of fewer single-row messages than this are copied into a block."""
_BLOCK = 1024
"""Messages of a block, once a store has seen many."""
_POSITION = 32
_MASK = (1 << _POSITION) - 1

Rows = tuple[Tensor | None, ...]


class Record:
    """Messages kept together: the first ``size`` rows of ``rows``, keys and columns of ``states``."""

    __slots__ = ("alive", "columns", "fields", "keys", "live", "number", "offsets", "rows", "size", "tag")

    def __init__(
        self, number: int, keys: Ints, rows: Rows, states: States | None, offsets: Ints | None, tag: int
    ) -> None:
        self.number, self.keys, self.rows, self.offsets, self.tag = number, keys, rows, offsets, tag
        self.fields = () if states is None else states.fields
        self.columns: Ints | None = None if states is None else states.columns
        self.size = self.live = len(keys)
        self.alive: Column | None = None


@dataclass(slots=True)
class Part:
    """Some of the messages asked for, all of one record."""

    record: Record
    positions: Column | slice
    """Where in the record."""
    where: Column | None
    """Where in the batch that asked; None: all of it, in order."""

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
        first, last = (at.start, at.stop) if offsets is None else (int(offsets[at.start]), int(offsets[at.stop]))
        return rows if first == 0 and last == rows.shape[0] else rows[first:last]

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


class Store:
    """Messages kept under their keys. Putting a key twice, or taking one that is not there, is a `PairingError`."""

    def __init__(self, packer: Packer, what: str) -> None:
        self.what = what
        self.packer = packer
        self._tickets: dict[int, int] = {}
        self._records: dict[int, Record] = {}
        self._open: dict[int, Record] = {}
        self._next = 0
        self._capacity = _SMALL
        packer.on_widen.append(self._rekey)

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
        """Keep a batch. ``tag`` is any integer of the caller's (a weight version, a port); messages of a record share it.

        ``states`` are kept only if given. ``alone``: do not put the batch into a block with others.
        """
        n = len(keys)
        if n == 0:
            return
        record = None
        if offsets is None and n < _SMALL and not alone:
            record = self._append(keys, rows, states, tag)
        if record is None:
            record = Record(self._next, keys, rows, states, offsets, tag)
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
            block = self._new_block(rows, states, tag)
            if block is None:
                return None
        start, stop = block.size, block.size + n
        block.keys[start:stop] = keys
        for kept, given in zip(block.rows, rows, strict=True):
            assert kept is not None and given is not None
            kept[start:stop] = given
        if states is not None:
            assert block.columns is not None
            block.columns[:, start:stop] = states.columns
        block.size = stop
        block.live += n
        return block

    def _new_block(self, rows: Rows, states: States | None, tag: int) -> Record | None:
        if any(r is None for r in rows):
            return None
        size = self._capacity
        self._capacity = min(2 * size, _BLOCK)
        kept = tuple(r.new_empty(size, *r.shape[1:]) for r in rows if r is not None)
        block = Record(self._next, np.zeros(size, dtype=np.int64), kept, states, None, tag)
        block.size = block.live = 0
        if states is not None:
            block.columns = np.zeros((len(states.fields), size), dtype=np.int64)
        self._records[self._next] = block
        self._next += 1
        old = self._open.pop(tag, None)
        self._open[tag] = block
        if old is not None and not old.live:
            self._records.pop(old.number, None)
        if len(self._open) > 4:
            oldest = next(iter(self._open))
            if not self._open.pop(oldest).live:
                self._records = {k: r for k, r in self._records.items() if r.live or r in self._open.values()}
        return block

    def find(self, keys: Ints, *, remove: bool = True) -> tuple[list[Part], Column | None]:
        """The parts that hold these keys, and the positions of keys that are not here (None: all are)."""
        n = len(keys)
        if n == 0:
            return [], None
        if not self._tickets:
            return [], np.arange(n)
        first = int(keys[0])
        ticket = self._tickets.get(first)
        if ticket is not None:
            part = self._run(ticket, keys)
            if part is not None:
                if remove:
                    if n == 1:
                        del self._tickets[first]
                    else:
                        deque(map(self._tickets.pop, keys.tolist()), maxlen=0)
                    self._release(part.record, part.positions, n)
                return [part], None
        elif n == 1:
            return [], np.zeros(1, dtype=np.int64)
        return self._search(keys, remove)

    def take(self, keys: Ints, states: States) -> list[Part]:
        """Remove and return the messages of these keys. All must be here; ``states`` are for the error."""
        parts, missing = self.find(keys)
        if missing is not None and len(missing):
            raise PairingError(self._explain_missing(states.take(missing[:1])))
        return parts

    def _run(self, ticket: int, keys: Ints) -> Part | None:
        """These keys as neighbours in one record, if that is what they are."""
        record, start, n = self._records[ticket >> _POSITION], ticket & _MASK, len(keys)
        stop = start + n
        if n > 1:
            if stop > record.size or not (record.keys[start:stop] == keys).all():
                return None
            if record.alive is not None and not record.alive[start:stop].all():
                return None
        return Part(record, slice(start, stop), None)

    def _search(self, keys: Ints, remove: bool) -> tuple[list[Part], Column | None]:
        tickets = np.fromiter(map(self._tickets.get, keys.tolist(), repeat(-1)), dtype=np.int64, count=len(keys))
        missing: Column | None = None
        where: Column | None = None
        if tickets.min() < 0:
            missing, where = np.flatnonzero(tickets < 0), np.flatnonzero(tickets >= 0)
            tickets = tickets[where]
            if not len(tickets):
                return [], missing
        numbers, positions = tickets >> _POSITION, tickets & _MASK
        first = int(numbers[0])
        if (numbers == first).all():
            parts = [Part(self._records[first], positions, where)]
        else:
            order = np.argsort(numbers, kind="stable")
            ordered = numbers[order]
            cuts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
            positions, at = positions[order], order if where is None else where[order]
            parts = [
                Part(self._records[int(ordered[a])], positions[a:b], at[a:b])
                for a, b in zip(cuts, cuts[1:], strict=False)
            ]
        if remove:
            found = keys if where is None else keys[where]
            deque(map(self._tickets.pop, found.tolist(), repeat(-1)), maxlen=0)
            for part in parts:
                self._release(part.record, part.positions, len(part))
        return parts, missing

    def _release(self, record: Record, positions: Column | slice, count: int) -> None:
        record.live -= count
        is_open = self._open.get(record.tag) is record
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
        assert record.alive is not None
        keep = np.flatnonzero(record.alive[: record.size])
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

    def holds_any(self, keys: Ints) -> bool:
        """Whether any of these keys is here."""
        return any(map(self._tickets.__contains__, keys.tolist()))

    def live_tags(self) -> set[int]:
        """The tags of all records with live messages."""
        return {r.tag for r in self._records.values() if r.live}

    def some_states(self, most: int = 3) -> States | None:
        """What the keys kept here say of the states, for error messages."""
        if not self._tickets:
            return None
        keys = np.fromiter(self._tickets, dtype=np.int64, count=len(self._tickets))
        return self.packer.unpack(keys[:most])

    def clear(self) -> None:
        self._tickets.clear()
        self._records.clear()
        self._open.clear()

    def _rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        if not self._tickets:
            self.clear()
            return
        keys = np.fromiter(self._tickets, dtype=np.int64, count=len(self._tickets))
        self._tickets = dict(zip(rekey(keys).tolist(), self._tickets.values(), strict=True))
        for record in self._records.values():
            record.keys = rekey(record.keys)

    def _explain_clash(self, keys: Ints) -> str:
        values, counts = np.unique(keys, return_counts=True)
        again = values[counts > 1] if (counts > 1).any() else keys
        which = self.packer.unpack(again[:1]).describe()
        return (
            f"two messages with one key {which} at the same time in {self.what}. "
            f"Usual cause: the key leaves out a field that tells the messages apart, or one message was sent twice"
        )

    def _explain_missing(self, states: States) -> str:
        fields = ", ".join(self.packer.fields or ())
        held = self.some_states()
        shown = f": {held.describe()}" if held is not None else ""
        return (
            f"got a backward for {states.describe()} that it never forwarded; {self.what}, keyed by ({fields}), holds "
            f"{len(self)} message(s){shown}. Usual cause: a wrong inverse in an Isu behind this node, or an answer that "
            f"was sent twice"
        )


def _fits(block: Record, rows: Rows, states: States | None) -> bool:
    """Whether rows of this kind can go into the block."""
    if len(rows) != len(block.rows) or (states is None) != (block.columns is None):
        return False
    if states is not None and states.fields != block.fields:
        return False
    for kept, given in zip(block.rows, rows, strict=True):
        if given is None or kept is None or kept.shape[1:] != given.shape[1:] or kept.dtype != given.dtype:
            return False
    return True


def gather(parts: Sequence[Part], i: int) -> Tensor | None:
    """The rows of the ``i``-th tensor of all parts, in the order of the batch that asked for them.

    The parts must cover that batch.
    """
    if len(parts) == 1:
        return parts[0].rows(i)
    pieces = [p.rows(i) for p in parts]
    known = [p for p in pieces if p is not None]
    if not known:
        return None
    if len(known) < len(pieces):
        like = known[0]
        pieces = [
            like.new_zeros(int(part.counts().sum()), *like.shape[1:]) if piece is None else piece
            for part, piece in zip(parts, pieces, strict=True)
        ]
    rows = torch.cat([p for p in pieces if p is not None])
    order = _restore(parts)
    if order is None:
        return rows
    offsets = None
    if any(p.record.offsets is not None for p in parts):
        offsets = offsets_of(np.concatenate([p.counts() for p in parts]))
    return take_rows(rows, offsets, order)[0]


def gather_states(parts: Sequence[Part]) -> States:
    """The states of all parts, in the order of the batch that asked for them."""
    if len(parts) == 1:
        return parts[0].states()
    states = States.merge([p.states() for p in parts])
    order = _restore(parts)
    return states if order is None else states.take(order)


def gather_counts(parts: Sequence[Part]) -> Ints | None:
    """Rows of each message of all parts, in the order of the batch that asked for them; None: one each."""
    if all(p.record.offsets is None for p in parts):
        return None
    if len(parts) == 1:
        return parts[0].counts()
    counts = np.concatenate([p.counts() for p in parts])
    order = _restore(parts)
    return counts if order is None else counts[order]


def _restore(parts: Sequence[Part]) -> Column | None:
    """The order that undoes the grouping by record; None where there is nothing to undo."""
    where = np.concatenate([p.where for p in parts if p.where is not None])
    if (where[1:] > where[:-1]).all():
        return None
    return np.argsort(where, kind="stable")
