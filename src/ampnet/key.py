"""Keys: the part of a state that a node caches under, packed into one int64 so that a plain dict can find it.

A node must never mistake one live message for another, so packing is exact: each key field gets its own bits of a 63-bit
word. Widths are not guessed once and for all: a packer starts narrow and **widens** a field when a larger value comes by,
re-keying what is stored (`Packer.on_widen`). Only when the values really need more than 63 bits, or one is negative, is
there no honest key, and that is an error.

    field      instance                t                  edge
    bits    |<------- 24 ------->|<--- 8 --->|<----- 10 ----->|      widths as of now; all of them may grow
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampnet.errors import StateError
from ampnet.state import Ints, States

WORD = 63
"""Bits of a key: int64 without its sign."""


class Packer:
    """Packs chosen fields of `States` into int64 keys, without collision.

    ``fields=None`` keys on every field of the states it first sees.
    """

    def __init__(self, fields: Sequence[str] | None = None) -> None:
        self.fields = tuple(fields) if fields is not None else None
        self.on_widen: list[Callable[[Callable[[Ints], Ints]], None]] = []
        self._seen: tuple[str, ...] | None = None
        self._rows: list[int] | None = None
        self._bits: list[int] = []
        self._weights: Ints = np.zeros(0, dtype=np.int64)

    def pack(self, states: States) -> Ints:
        """One key per state. Raises `StateError` where no collision-free key exists."""
        if states.fields is not self._seen:
            self._meet(states.fields)
        columns = states.columns if self._rows is None else states.columns[self._rows]
        if columns.shape[1] == 0:
            return np.zeros(0, dtype=np.int64)
        # OR of a column is negative if any value is, and needs as many bits as its widest value.
        used = np.bitwise_or.reduce(columns, axis=1).tolist()
        for bits, value in zip(self._bits, used, strict=True):
            if value >> bits:
                self._widen(used, columns)
                break
        keys: Ints = self._weights @ columns
        return keys

    def unpack(self, keys: Ints) -> States:
        """The fields that these keys were made of."""
        assert self.fields is not None
        columns = []
        for bits in self._bits:
            columns.append(keys & ((1 << bits) - 1))
            keys = keys >> bits
        return States.trusted(self.fields, np.array(columns, dtype=np.int64))

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
        self._rows = None if fields == self.fields else [fields.index(f) for f in self.fields]
        if not self._bits:
            self._set_bits([1] * len(self.fields))

    def _set_bits(self, bits: list[int]) -> None:
        self._bits = bits
        shifts = np.cumsum([0, *bits[:-1]])
        self._weights = np.left_shift(np.int64(1), shifts.astype(np.int64))

    def _widen(self, used: list[int], columns: Ints) -> None:
        assert self.fields is not None
        for field, value, column in zip(self.fields, used, columns, strict=True):
            if value < 0:
                raise StateError(
                    f"field '{field}' is {int(column.min())} in a key; keys are made of numbers from 0 up. "
                    f"Usual cause: a state update or its inverse that runs past the start"
                )
        need = [max(bits, value.bit_length()) for bits, value in zip(self._bits, used, strict=True)]
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
        grown = [n + min(room, 6) if n > b else n for n, b in zip(need, self._bits, strict=True)]
        old_bits = self._bits
        self._set_bits(grown)
        new_weights = self._weights

        def rekey(keys: Ints) -> Ints:
            out = np.zeros_like(keys)
            for bits, weight in zip(old_bits, new_weights.tolist(), strict=True):
                out += (keys & ((1 << bits) - 1)) * weight
                keys = keys >> bits
            return out

        for listener in self.on_widen:
            listener(rekey)
