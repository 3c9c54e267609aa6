"""Ragged: a column whose entries are sequences (or trees) of different lengths.

    document = Seq(words=[torch.tensor([4, 8, 1]), torch.tensor([7, 7])], topic=torch.tensor([0, 3]))

    element of `document`      0             1
    its `words`             [ 4  8  1 ]   [ 7  7 ]
    flat                    [ 4  8  1       7  7 ]        all entries concatenated, as one space
    owner, inner              0  0  0       1  1          the entry of each element of `flat`, and its index there
                              0  1  2       0  1

An entry may have several columns, also ragged ones (a document of sentences of words of letters). The columns of all
entries are concatenated as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import DataError
from ampnet.lang.spaces import Seq, Space
from ampnet.lang.tree import Tree
from ampnet.state import Ints


def is_ragged(given: Any) -> bool:
    """Whether a column is a list of sequences."""
    if not isinstance(given, list | tuple) or not given:
        return False
    first = given[0]
    return isinstance(first, Space | list | tuple) or (isinstance(first, Tensor | np.ndarray) and first.ndim > 0)


class Ragged:
    """The spaces of a column, one for each element. All have the same columns."""

    ndim = 1

    def __init__(self, name: str, given: Sequence[Any]) -> None:
        self.spaces: list[Space] = []
        for i, one in enumerate(given):
            try:
                self.spaces.append(one if isinstance(one, Space) else Seq(one))
            except DataError as error:
                raise DataError(f"entry {i} of column '{name}': {error}") from None
        for i, one in enumerate(self.spaces):
            self._check(name, i, one, self.spaces[0])
        self.lengths: Ints = np.fromiter(map(len, self.spaces), dtype=np.int64, count=len(self.spaces))

    def _check(self, name: str, i: int, one: Space, first: Space) -> None:
        if not isinstance(one, Seq | Tree):
            raise DataError(
                f"entry {i} of column '{name}' is {one!r}; an entry is a sequence (a Seq, or a tensor or list of its "
                f"rows) or a Tree. A set of small graphs is one Seq of all nodes, one Edges of all edges"
            )
        if type(one) is not type(first) or _make(one) != _make(first):
            raise DataError(
                f"the entries of column '{name}' must be made alike: entry 0 is {first!r}, entry {i} is {one!r}. The "
                f"types, row shapes and dtypes of their columns must agree; their lengths may differ"
            )

    def __len__(self) -> int:
        return len(self.spaces)

    def __getitem__(self, i: int) -> Space:
        return self.spaces[i]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.spaces),)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "flat"}

    @cached_property
    def flat(self) -> Flat:
        """All entries, concatenated."""
        return Flat(self.spaces)


def _make(space: Space) -> dict[str, Any]:
    """Returns the structure that all entries of a column must share."""
    return {name: (*_kind(column), space._given.get(name)) for name, column in space._columns.items()}


def _kind(column: Any) -> tuple[Any, ...]:
    if isinstance(column, Tensor):
        return "tensor", column.shape[1:], column.dtype
    return ("ragged", *_make(column.spaces[0]).items()) if isinstance(column, Ragged) else ("integers",)


class Flat(Space):
    """The concatenated elements of several spaces of the same structure."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._spaces: Sequence[Any] = spaces
        lengths = np.fromiter(map(len, spaces), dtype=np.int64, count=len(spaces))
        start = np.cumsum(lengths) - lengths
        self._count = int(lengths.sum())
        self.owner: Ints = np.repeat(np.arange(len(spaces)), lengths)
        self.inner: Ints = np.arange(self._count) - start[self.owner]
        self._columns = {}
        self._only = {}
        if spaces:
            first = spaces[0]
            self._kind, self._given = first._kind, dict(first._given)
            self._columns = {name: _joined(name, [s._columns[name] for s in spaces]) for name in first._columns}
            self._only = {
                name: np.concatenate([s._only[name] + at for s, at in zip(spaces, start.tolist(), strict=True)])
                for name in first._only
            }

    def _integers(self, name: str) -> Ints:
        return super()._integers(name) if self._spaces else np.zeros(0, dtype=np.int64)

    def _ragged(self, name: str) -> Ragged:
        return super()._ragged(name) if self._spaces else Ragged(name, [])

    def _derived(self, what: str) -> Ints:
        """Returns concatenated arrays of trees; indices of nodes are relative to their tree."""
        if not self._spaces:
            return np.zeros(0, dtype=np.int64)
        return np.concatenate([tree._derived(what) for tree in self._spaces])

    def _arity(self) -> int | None:
        found = {tree._arity() for tree in self._spaces} - {0}
        return (found or {0}).pop() if len(found) < 2 else None

    def _check_arity(self, wanted: int) -> None:
        for tree in self._spaces:
            tree._check_arity(wanted)


def _joined(name: str, columns: Sequence[Any]) -> Any:
    if isinstance(columns[0], Tensor):
        return torch.cat(list(columns))
    if isinstance(columns[0], Ragged):
        return Ragged(name, [space for column in columns for space in column.spaces])
    return np.concatenate(columns)
