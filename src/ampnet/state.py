"""States: the named integers that every message carries and that decide all control flow.

A *state* holds the instance of a message and its position in the computation: ``(instance=7, t=3, length=9)``. It never
holds a tensor, so a node can route, join and cache by the state alone, without a scheduler.

Messages are sent in batches, so this class holds the states of a whole batch as **columns**: one row of a
``[fields, messages]`` int64 array per field. ``s.t`` is the column of ``t``; ``s.t + 1`` and ``s.t < s.length`` work on
all messages at once, and ``s.replace(t=s.t + 1)`` returns new states. States are immutable: columns are read-only
views.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ampnet.errors import NoSuchField, StateError

Ints = NDArray[np.int64]
Column = NDArray[Any]


class States:
    """The states of a batch of messages: field names and one int64 column per field. Immutable."""

    __slots__ = ("columns", "fields", "packed")

    fields: tuple[str, ...]
    columns: Ints
    packed: tuple[Ints, Ints] | None
    """(bit layout, keys) of the last packing; see `ampnet.key`. Parts and merged batches inherit them."""

    def __init__(self, fields: Sequence[str], columns: ArrayLike) -> None:
        given = np.array(columns, ndmin=2)
        _check_whole(given, "columns")
        array = given.astype(np.int64)
        if array.shape[0] != len(fields):
            raise StateError(f"{len(fields)} field(s) {tuple(fields)} but {array.shape[0]} column(s)")
        check_field_names(fields)
        array.flags.writeable = False
        _set_fields(self, tuple(fields))
        _set_columns(self, array)
        _set_packed(self, None)

    @classmethod
    def of(cls, **columns: ArrayLike) -> States:
        """``States.of(instance=7, t=[0, 1, 2])``: columns by name; scalars are repeated."""
        arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(c)) for c in columns.values()))
        for name, array in zip(columns, arrays, strict=True):
            _check_whole(array, f"state field '{name}'")
        return cls(tuple(columns), np.stack(arrays))

    @classmethod
    def trusted(cls, fields: tuple[str, ...], columns: Ints) -> States:
        """Wrap columns that the caller will not write to again. For inner loops: nothing is checked or copied."""
        self = cls.__new__(cls)
        columns.flags.writeable = False
        _set_fields(self, fields)
        _set_columns(self, columns)
        _set_packed(self, None)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        raise StateError(f"states are immutable; use states.replace({name}=...)")

    def __getattr__(self, name: str) -> Ints:
        return self.column(name)

    def __getstate__(self) -> tuple[tuple[str, ...], Ints]:
        return self.fields, self.columns

    def __setstate__(self, state: tuple[tuple[str, ...], Ints]) -> None:
        _set_fields(self, state[0])
        _set_columns(self, state[1])
        _set_packed(self, None)

    def column(self, name: str) -> Ints:
        try:
            column: Ints = self.columns[self.fields.index(name)]
        except ValueError:
            raise NoSuchField(f"no state field '{name}'; this state has {', '.join(self.fields)}") from None
        return column

    def __len__(self) -> int:
        return int(self.columns.shape[1])

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, States)
            and self.fields == other.fields
            and self.columns.shape == other.columns.shape
            and bool((self.columns == other.columns).all())
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"States({self.describe()})"

    def describe(self, most: int = 3) -> str:
        """Returns the first few states as text: ``(instance=7, t=3), (instance=7, t=4), ... 12 in all``."""
        shown = ["(" + ", ".join(f"{f}={v}" for f, v in self.row(i).items()) + ")" for i in range(min(most, len(self)))]
        if len(self) > most:
            shown.append(f"... {len(self)} in all")
        return ", ".join(shown) if shown else "no state"

    def row(self, i: int) -> dict[str, int]:
        """Returns one message's state as a dictionary."""
        return dict(zip(self.fields, self.columns[:, i].tolist(), strict=True))

    def replace(self, **columns: ArrayLike) -> States:
        """Returns new states with some columns replaced. Each name must be an existing field (see `adding`)."""
        array, fields = self.columns.copy(), self.fields
        for name, value in columns.items():
            value = np.asarray(value)
            _check_whole(value, f"state field '{name}'")
            try:
                array[fields.index(name)] = value
            except ValueError as error:
                if name in self.fields:
                    raise StateError(f"cannot put {value.tolist()} into '{name}' of {len(self)} states") from error
                raise StateError(f"no state field '{name}' to replace; to add one use states.adding") from None
        return States.trusted(self.fields, array)

    def adding(self, **columns: ArrayLike) -> States:
        """Returns new states with further fields."""
        twice = [name for name in columns if name in self.fields]
        if twice:
            raise StateError(f"state field '{twice[0]}' exists already; to change it use states.replace")
        fields = self.fields + tuple(columns)
        check_field_names(fields)
        array = np.empty((len(fields), len(self)), dtype=np.int64)
        array[: len(self.fields)] = self.columns
        for i, (name, value) in enumerate(columns.items(), start=len(self.fields)):
            value = np.asarray(value)
            _check_whole(value, f"state field '{name}'")
            array[i] = value
        return States.trusted(fields, array)

    def keep(self, *names: str) -> States:
        """Returns new states with only these fields, in this order."""
        missing = [name for name in names if name not in self.fields]
        if missing:
            raise StateError(f"no state field '{missing[0]}' to keep; this state has {', '.join(self.fields)}")
        return States.trusted(names, self.columns[[self.fields.index(n) for n in names]])

    def dropping(self, *names: str) -> States:
        """Returns new states without these fields."""
        missing = [name for name in names if name not in self.fields]
        if missing:
            raise StateError(f"no state field '{missing[0]}' to drop; this state has {', '.join(self.fields)}")
        return self.keep(*(f for f in self.fields if f not in names))

    def take(self, index: Column) -> States:
        """Returns the states at these positions (repeats allowed), or where a mask is true."""
        if index.dtype == bool:
            index = np.flatnonzero(index)
        taken = States.trusted(self.fields, self.columns.take(index, axis=1))
        if self.packed is not None:
            _set_packed(taken, (self.packed[0], self.packed[1].take(index)))
        return taken

    def slice(self, start: int, stop: int) -> States:
        some = States.__new__(States)  # a view of columns that are read-only is read-only
        _set_fields(some, self.fields)
        _set_columns(some, self.columns[:, start:stop])
        packed = self.packed
        _set_packed(some, None if packed is None else (packed[0], packed[1][start:stop]))
        return some

    @staticmethod
    def merge(parts: Sequence[States]) -> States:
        """Concatenate the states of several batches. All must have the same fields in the same order."""
        first = parts[0]
        if len(parts) == 1:
            return first
        fields = first.fields
        layout = None if first.packed is None else first.packed[0]
        keys = []
        for part in parts:
            if part.fields is not fields and part.fields != fields:
                raise StateError(
                    f"messages with fields ({', '.join(fields)}) and ({', '.join(part.fields)}) meet on one edge"
                )
            if part.packed is not None and part.packed[0] is layout:
                keys.append(part.packed[1])
        merged = States.trusted(fields, np.concatenate([p.columns for p in parts], axis=1))
        if layout is not None and len(keys) == len(parts):
            _set_packed(merged, (layout, np.concatenate(keys)))
        return merged


# The slots' own setters: they bypass __setattr__, and are cheaper than object.__setattr__.
_set_fields = States.__dict__["fields"].__set__
_set_columns = States.__dict__["columns"].__set__
_set_packed = remember_keys = States.__dict__["packed"].__set__

_RESERVED = frozenset(n for n in dir(States) if not n.startswith("__"))


def _check_whole(array: Column, what: str) -> None:
    if array.dtype.kind not in "iub" and array.size:
        raise StateError(f"{what} must be integers, got {array.dtype}")


def check_field_names(fields: Sequence[str]) -> None:
    """Raise `StateError` if a field name is unusable or occurs twice."""
    for name in fields:
        if not name.isidentifier() or name in _RESERVED or name.startswith("_"):
            raise StateError(f"'{name}' cannot be a state field: use a plain name that is no attribute of States")
    if len(set(fields)) != len(fields):
        raise StateError(f"a state field occurs twice in ({', '.join(fields)})")
