"""Keys: the fields of a state that index a node's cache, packed into one int64 for use in a plain dict.

A node must never confuse two live messages, so packing is exact: each key field gets its own bits of a 63-bit word.
Widths are not fixed: a packer starts narrow and **widens** a field when a larger value occurs, and re-keys the stored
entries (`Holder`). If the values need more than 63 bits, or one is negative, no exact key exists: `StateError`.

Nodes that key on the same fields share one `Layout` of bits, so the keys of a batch are packed once and cached with its
states while the batch passes from node to node.

    field      instance                t                  edge
    bits    |<------- 24 ------->|<--- 8 --->|<----- 10 ----->|      widths as of now; all of them may grow
"""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ampnet.errors import StateError
from ampnet.state import Ints, States, remember_keys

WORD = 63
"""Bits of a key: int64 without its sign."""


class Holder(Protocol):
    """An object that stores keys."""

    def live_keys(self) -> Ints:
        """Returns all stored keys."""

    def rekey(self, rekey: Callable[[Ints], Ints]) -> None:
        """Replace the stored keys by ``rekey(keys)``: the layout has changed."""


class Layout:
    """The current bits of each field in a key."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields
        self.bits: list[int] = []
        self.shifts: list[int] = []
        self.weights: Ints = np.zeros(0, dtype=np.int64)
        self.users: weakref.WeakSet[Packer] = weakref.WeakSet()
        self._set([1] * len(fields))

    def _set(self, bits: list[int]) -> None:
        self.bits = bits
        self.shifts = list(itertools.accumulate(bits[:-1], initial=0))
        self.weights = np.array([1 << s for s in self.shifts], dtype=np.int64)

    def pack(self, columns: Ints) -> Ints:
        n = columns.shape[1]
        if n == 0:
            return np.zeros(0, dtype=np.int64)
        if n == 1:  # plain integers are faster than arrays of one
            key = 0
            for value, bits, shift in zip(columns[:, 0].tolist(), self.bits, self.shifts, strict=True):
                if value >> bits:
                    break
                key |= value << shift
            else:
                return np.array([key])
        # OR of a column is negative if any value is, and needs as many bits as its widest value.
        used = np.bitwise_or.reduce(columns, axis=1).tolist()
        for bits, value in zip(self.bits, used, strict=True):
            if value >> bits:
                self._widen(used, columns)
                break
        keys: Ints = self.weights @ columns
        return keys

    def unpack(self, keys: Ints) -> Ints:
        columns = []
        for bits in self.bits:
            columns.append(keys & ((1 << bits) - 1))
            keys = keys >> bits
        return np.array(columns, dtype=np.int64)

    def _widen(self, used: list[int], columns: Ints) -> None:
        for field, value, column in zip(self.fields, used, columns, strict=True):
            if value < 0:
                raise StateError(
                    f"field '{field}' is {int(column.min())} in a key; keys are made of numbers from 0 up. "
                    f"Usual cause: a state update or its inverse that runs past the start"
                )
        need = [max(bits, value.bit_length()) for bits, value in zip(self.bits, used, strict=True)]
        if sum(need) > WORD:
            # Drop the earlier headroom: only live values count.
            live = [np.zeros((len(self.fields), 1), dtype=np.int64), columns]
            live += [self.unpack(holder.live_keys()) for packer in self.users for holder in packer.holders]
            need = [max(1, int(column.max()).bit_length()) for column in np.concatenate(live, axis=1)]
        if sum(need) > WORD:
            widest = ", ".join(
                f"{f} up to {int(c.max())} ({b} bits)" for f, c, b in zip(self.fields, columns, need, strict=True)
            )
            raise StateError(
                f"the key ({', '.join(self.fields)}) needs {sum(need)} bits and has {WORD}: {widest}. "
                f"Remedy: key on fewer fields (key=(...)), or number from zero within the instance"
            )
        # Headroom, so that a growing counter does not widen at every power of two.
        room = (WORD - sum(need)) // (2 * len(need))
        old = self.bits
        self._set([n + min(room, 6) if n > b else n for n, b in zip(need, old, strict=True)])

        def rekey(keys: Ints) -> Ints:
            out = np.zeros_like(keys)
            for bits, weight in zip(old, self.weights.tolist(), strict=True):
                out += (keys & ((1 << bits) - 1)) * weight
                keys = keys >> bits
            return out

        for packer in list(self.users):
            for holder in packer.holders:
                holder.rekey(rekey)


_layouts: weakref.WeakValueDictionary[tuple[str, ...], Layout] = weakref.WeakValueDictionary()


def _layout(fields: tuple[str, ...]) -> Layout:
    layout = _layouts.get(fields)
    if layout is None:
        layout = _layouts[fields] = Layout(fields)
    return layout


class Packer:
    """Packs chosen fields of `States` into int64 keys, without collision.

    ``fields=None`` keys on every field of the first states. Objects that store keys are in its ``holders``.
    """

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        self.fields = tuple(fields) if fields is not None else None
        self.holders: list[Holder] = []
        self._seen: tuple[str, ...] | None = None
        self._rows: list[int] | slice | None = None
        self._layout: Layout | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Packer:
        """Returns a packer of the same fields, for the copies of its holders. The layout stays shared."""
        twin = memo[id(self)] = Packer(self.fields)
        twin.holders = copy.deepcopy(self.holders, memo)
        return twin

    def pack(self, states: States) -> Ints:
        """Returns one key per state. Raises `StateError` if no collision-free key exists."""
        if states.fields is not self._seen:
            self._meet(states.fields)
        layout = self._layout
        assert layout is not None
        packed = states.packed
        if packed is not None and packed[0] is layout.weights:
            return packed[1]
        keys = layout.pack(states.columns if self._rows is None else states.columns[self._rows])
        remember_keys(states, (layout.weights, keys))
        return keys

    def unpack(self, keys: Ints) -> States:
        """Returns the fields of these keys."""
        assert self._layout is not None
        return States.trusted(self._layout.fields, self._layout.unpack(keys))

    def _meet(self, fields: tuple[str, ...]) -> None:
        if self.fields is None:
            self.fields = fields
        missing = [f for f in self.fields if f not in fields]
        if missing:
            raise StateError(
                f"the key ({', '.join(self.fields)}) needs field '{missing[0]}', but the state has only "
                f"({', '.join(fields)})"
            )
        self._seen = fields
        self._rows = None
        if fields != self.fields:
            rows = [fields.index(f) for f in self.fields]
            run = list(range(rows[0], rows[0] + len(rows))) if rows else []
            # Adjacent fields are a view of the columns; others must be copied.
            self._rows = slice(rows[0], rows[0] + len(rows)) if rows and rows == run else rows
        if self._layout is None:
            self._layout = _layout(self.fields)
            self._layout.users.add(self)
