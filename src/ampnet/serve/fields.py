"""Fields: the JSON form of a model's arguments, made from the example that the model was compiled with.

    in the example              JSON                                                   Field
    a tensor [2, 3]             [[1, 2, 3], [4, 5, 6]]                                 Rows
    an integer                  4                                                      Count
    Seq(tensor)                 [7, 2, 9]                                              SeqOf
    Seq(word=..., tag=...)      {"word": [...], "tag": [...]}                          SeqOf
    Seq([Seq, Seq])             [[7, 2], [9]]                                          SeqOf, its column Nested
    Tree(parents, ...)          {"parents": [2, 2, -1], "word": [17, 4]}               TreeOf
    Edges(nodes, ...)           {"source": [0, 1], "target": [1, 0], "kind": [2, 2]}   EdgesOf

Each field does three things that must agree, so they are in one place: it describes its JSON (`schema`), reads it
(`read`), and shows the example in it (`shown`). Columns that no prediction depends on (labels) have no field.

Reading is strict: an integer is not a boolean, nor a number with a fraction, and everything has a limit. A fault is a
`DataError` with the path to it: ``tokens[3]: expected an integer, got true``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import DataError, nearest
from ampnet.lang.edges import Edges
from ampnet.lang.ragged import Ragged
from ampnet.lang.spaces import Seq, Space
from ampnet.lang.tree import Tree

S = TypeVar("S", bound=Space)
Needed = Callable[[str], bool]
"""Whether predictions depend on a column."""


class Field(ABC):
    """The JSON form of one argument or column. See the head of this file."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Returns its JSON schema."""

    @abstractmethod
    def read(self, given: Any, where: str) -> Any:
        """Returns the argument. Raises `DataError`; ``where`` is the path to it."""

    @abstractmethod
    def shown(self) -> Any:
        """Returns the example as JSON."""


class Count(Field):
    """An integer that decides control flow: a number of rounds, the index of a layer."""

    def __init__(self, like: int, limit: int) -> None:
        self.like, self.limit = int(like), max(limit, int(like))

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": 0, "maximum": self.limit}

    def read(self, given: Any, where: str) -> int:
        if type(given) is not int:
            raise _wrong(where, "an integer", given)
        if not 0 <= given <= self.limit:
            raise DataError(f"{where}: {_short(given)} is not from 0 to {self.limit}")
        return given

    def shown(self) -> int:
        return self.like


class Rows(Field):
    """Numbers to compute with. ``shape[0]`` is None for a column: its length is that of its space."""

    def __init__(self, like: Tensor, column: bool, limit: int) -> None:
        self.like, self.limit = like, max(limit, len(like) if column else 0)
        self.shape: tuple[int | None, ...] = (None, *like.shape[1:]) if column else tuple(like.shape)
        self.dtype = like.dtype
        self.floats = like.dtype.is_floating_point
        self.kind = bool if like.dtype == torch.bool else float if self.floats else int

    def schema(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": {bool: "boolean", float: "number", int: "integer"}[self.kind]}
        if self.kind is int:
            info = torch.iinfo(self.dtype)
            out |= {"minimum": info.min, "maximum": info.max}
        for size in reversed(self.shape):
            limits = {"maxItems": self.limit} if size is None else {"minItems": size, "maxItems": size}
            out = {"type": "array", "items": out, **limits}
        return out

    def read(self, given: Any, where: str) -> Tensor:
        flat, shape = self._flat(given, where)
        if self.kind is int and flat:
            info, least, most = torch.iinfo(self.dtype), min(flat), max(flat)
            if least < info.min or most > info.max:
                raise DataError(f"{where}: {_short(least if least < info.min else most)} is no {_name(self.dtype)}")
        try:
            made = torch.tensor(flat, dtype=self.dtype)
        except (OverflowError, RuntimeError):
            raise DataError(f"{where}: a number is too large for {_name(self.dtype)}") from None
        if self.floats and not bool(torch.isfinite(made).all()):
            at = int(torch.nonzero(~torch.isfinite(made).flatten())[0, 0])
            raise DataError(f"{where}: {_short(flat[at])} is too large for {_name(self.dtype)}")
        return made.view(shape)

    def _flat(self, given: Any, where: str) -> tuple[list[Any], list[int]]:
        """Returns all numbers, and the shape."""
        level, shape = [given], list[int]()
        for depth, size in enumerate(self.shape):
            for at, one in enumerate(level):
                path = where + _path(at, shape)
                if not isinstance(one, list):
                    raise _wrong(path, "a list", one)
                if size is not None and len(one) != size:
                    raise DataError(f"{path}: expected {size} items, got {len(one)}")
                if len(one) > self.limit and size is None:
                    raise DataError(f"{path}: {len(one):,} items; at most {self.limit:,} are taken")
            shape.append(len(level[0]) if level and depth == 0 else size or 0)
            level = list(chain.from_iterable(level))
        taken = {int, float} if self.floats else {self.kind}
        if not set(map(type, level)) <= taken:
            at = next(i for i, one in enumerate(level) if type(one) not in taken)
            wanted = {bool: "true or false", float: "a number", int: "an integer"}[self.kind]
            raise _wrong(where + _path(at, shape), wanted, level[at])
        return level, shape

    def shown(self) -> Any:
        return self.like.tolist()


class Integers(Field):
    """A column of integers that decide control flow."""

    def __init__(self, like: np.ndarray, limit: int) -> None:
        self.like, self.limit = like, max(limit, len(like))
        self.most = max(limit, int(np.abs(like).max(initial=0)))

    def schema(self) -> dict[str, Any]:
        item = {"type": "integer", "minimum": -self.most, "maximum": self.most}
        return {"type": "array", "items": item, "maxItems": self.limit}

    def read(self, given: Any, where: str) -> np.ndarray:
        if not isinstance(given, list):
            raise _wrong(where, "a list of integers", given)
        if len(given) > self.limit:
            raise DataError(f"{where}: {len(given):,} items; at most {self.limit:,} are taken")
        for at, one in enumerate(given):
            if type(one) is not int:
                raise _wrong(f"{where}[{at}]", "an integer", one)
            if not -self.most <= one <= self.most:
                raise DataError(f"{where}[{at}]: {_short(one)} is not from {-self.most} to {self.most}")
        return np.array(given, dtype=np.int64)

    def shown(self) -> Any:
        return self.like.tolist()


class Nested(Field):
    """A column with a sequence or tree for each element."""

    def __init__(self, like: Ragged, limit: int) -> None:
        self.like, self.limit = like, limit
        self.entry = space_field(like[0], lambda column: True, limit)

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": self.entry.schema(), "maxItems": self.limit}

    def read(self, given: Any, where: str) -> list[Any]:
        if not isinstance(given, list):
            raise _wrong(where, "a list with an entry for each element", given)
        out, count = [], 0
        for at, one in enumerate(given):
            out.append(self.entry.read(one, f"{where}[{at}]"))
            count += len(out[-1])
            if count > self.limit:
                raise DataError(f"{where}: more than {self.limit:,} inner elements")
        return out

    def shown(self) -> Any:
        return [space_field(one, lambda column: True, self.limit).shown() for one in self.like.spaces]


class Columns(Field):
    """Base of the fields of spaces: columns by name."""

    ends: tuple[str, ...] = ()
    """Names of lists of integers beside the columns."""

    def __init__(self, like: Space, needed: Needed, limit: int) -> None:
        self.like, self.limit = like, limit
        self.columns = {name: column_field(c, limit) for name, c in like._columns.items() if needed(name)}

    def schema(self) -> dict[str, Any]:
        ends = {name: self._end_schema(name) for name in self.ends}
        columns = ends | {name: column.schema() for name, column in self.columns.items()}
        return {"type": "object", "properties": columns, "required": [*columns], "additionalProperties": False}

    def _end_schema(self, name: str) -> dict[str, Any]:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": self.limit}

    def _read(self, given: Any, where: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        wanted = [*self.ends, *self.columns]
        if not isinstance(given, dict):
            raise _wrong(where, f"an object with {', '.join(wanted)}", given)
        check_keys(given, wanted, where, [*self.like._columns])
        of_ends = Integers(np.zeros(0, dtype=np.int64), self.limit)
        ends = {name: of_ends.read(given[name], f"{where}.{name}") for name in self.ends}
        return ends, {name: column.read(given[name], f"{where}.{name}") for name, column in self.columns.items()}

    def shown(self) -> Any:
        return {name: column.shown() for name, column in self.columns.items()}


class SeqOf(Columns):
    """A `Seq`."""

    def __init__(self, like: Seq, needed: Needed, limit: int) -> None:
        super().__init__(like, needed, limit)
        if not self.columns:  # its length counts, and nothing else of it
            name = next(iter(like._columns))
            self.columns = {name: column_field(like._columns[name], limit)}

    def schema(self) -> dict[str, Any]:
        if self.like._plain:
            return {**self.columns["value"].schema(), "minItems": 1}
        made = super().schema()
        for column in made["properties"].values():
            column["minItems"] = 1
        return made

    def read(self, given: Any, where: str) -> Seq:
        if self.like._plain:
            value = self.columns["value"].read(given, where)
            return _made(where, lambda: Seq(value))
        _, columns = self._read(given, where)
        return _made(where, lambda: Seq(**columns))

    def shown(self) -> Any:
        return self.columns["value"].shown() if self.like._plain else super().shown()


class TreeOf(Columns):
    """A `Tree`."""

    ends = ("parents",)

    def _end_schema(self, name: str) -> dict[str, Any]:
        made = super()._end_schema(name)
        made["items"]["minimum"] = -1
        return {**made, "minItems": 1, "description": "parents[i] is the parent of node i; -1 for the root"}

    def read(self, given: Any, where: str) -> Tree:
        ends, columns = self._read(given, where)
        parts: dict[str, dict[str, Any]] = {"leaves": {}, "branches": {}}
        for name, at in self.like._given.items():
            if name in columns:
                parts[at][name] = columns.pop(name)
        leaves, branches = parts["leaves"], parts["branches"]
        return _made(where, lambda: Tree(ends["parents"], leaves=leaves, branches=branches, **columns))

    def shown(self) -> Any:
        assert isinstance(self.like, Tree)
        return {"parents": self.like._parents.tolist(), **super().shown()}


class EdgesOf(Columns):
    """`Edges`. `read` returns a function of the instance's nodes, which the edges connect."""

    ends = ("source", "target")

    def read(self, given: Any, where: str) -> Any:
        ends, columns = self._read(given, where)
        return lambda nodes: _made(where, lambda: Edges(nodes, ends["source"], ends["target"], **columns))

    def shown(self) -> Any:
        assert isinstance(self.like, Edges)
        ends = {"source": self.like._source.tolist(), "target": self.like._target.tolist()}
        return {**ends, **super().shown()}


def argument_field(like: Any, needed: Needed, limit: int) -> Field:
    """Returns the field of an argument of the example."""
    if isinstance(like, Tensor):
        return Rows(like, False, limit)
    return space_field(like, needed, limit) if isinstance(like, Space) else Count(like, limit)


def space_field(like: Space, needed: Needed, limit: int) -> Field:
    """Returns the field of a sequence, tree or edges."""
    kind = TreeOf if isinstance(like, Tree) else EdgesOf if isinstance(like, Edges) else SeqOf
    return kind(like, needed, limit)  # type: ignore[arg-type]


def column_field(like: Any, limit: int) -> Field:
    """Returns the field of a column."""
    if isinstance(like, Tensor):
        return Rows(like, True, limit)
    return Nested(like, limit) if isinstance(like, Ragged) else Integers(like, limit)


def check_keys(given: Mapping[str, Any], known: Sequence[str], where: str, unneeded: Sequence[str] = ()) -> None:
    """Raise `DataError` unless an object has exactly these keys. ``unneeded``: names that the model has, and no
    prediction depends on."""
    at = f"{where}: " if where else ""
    for name in given:
        if name not in known:
            if name in unneeded:
                raise DataError(f"{at}no prediction depends on '{_short(name)}'; leave it out")
            raise DataError(f"{at}there is no '{_short(name)}'; {nearest(name[:80], known)}")
    missing = [name for name in known if name not in given]
    if missing:
        raise DataError(f"{at}'{missing[0]}' is missing")


def _made(where: str, make: Callable[[], S]) -> S:
    """Returns the space that a function makes; its `DataError` gets the path."""
    try:
        return make()
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _path(at: int, shape: Sequence[int]) -> str:
    """Returns the indices of an item of the flattened list, as text."""
    if not shape:
        return ""
    return "".join(f"[{i}]" for i in np.unravel_index(at, shape)) if math.prod(shape) > at else f"[{at}]"


def _wrong(where: str, wanted: str, given: Any) -> DataError:
    kinds = {dict: "an object", list: "a list", str: "a text", type(None): "null", bool: "true or false"}
    found = {True: "true", False: "false"}[given] if isinstance(given, bool) else kinds.get(type(given))
    return DataError(f"{where}: expected {wanted}, got {found or _short(given)}")


def _short(given: Any) -> str:
    if isinstance(given, int) and not -(10**18) < given < 10**18:
        return "an integer of more than 18 digits"
    text = str(given)
    return text if len(text) <= 40 else text[:40] + "..."


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
