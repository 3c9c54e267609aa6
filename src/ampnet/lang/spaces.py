"""Spaces: the parts of an instance. Sequences (or sets) of elements, trees, edges.

    tokens = Seq(torch.tensor([10, 3, 4, 8]))                      one value for each element
    atoms  = Seq(kind=torch.tensor([6, 1, 1]), charge=...)         several, by name
    bonds  = Edges(atoms, source=[0, 1], target=[1, 0], kind=[2, 2])
    tree   = Tree(parents=[2, 2, -1], leaves={"word": torch.tensor([17, 4])}, label=torch.tensor([3, 2, 4]))
    text   = Seq(words=[torch.tensor([4, 8, 1]), torch.tensor([7, 7])])      a sequence for each element

**Tensors are payload, plain integers are control.** Layers compute with columns that are tensors (a row for each
element). Columns that are lists or NumPy arrays of integers decide where messages go: the layer to use, the type of an
edge, the number of rounds. A list of sequences (`Seq`, tensors, lists of integers) or trees is a column with one
sequence or tree for each element, of any length (`ampnet.lang.ragged`). `Tree` and `Edges` have files of their own.

The same objects are passed to a model that runs eagerly and to `Compiled.instance`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ampnet.errors import DataError, ModelError
from ampnet.lang.family import Family
from ampnet.lang.line import here
from ampnet.state import Ints

if TYPE_CHECKING:
    from ampnet.lang.ragged import Ragged

Given = Tensor | ArrayLike | Sequence["Space"] | Sequence[Tensor]
"""A column as users give it: payload, control, or a sequence or tree for each element."""
Column = Any
"""A tensor, an array of integers, or a `Ragged`."""


class Space:
    """Elements with named columns."""

    _kind = "elements"
    _given: Mapping[str, str] = MappingProxyType({})
    """The nodes that a column has entries for, if not all elements: "leaves" or "branches"."""

    def __init__(self, count: int, columns: Mapping[str, Any], only: Mapping[str, Ints] | None = None) -> None:
        """``only``: by column, the elements it has entries for, if not all."""
        self._count = count
        self._only = dict(only or {})
        self._columns: dict[str, Column] = {}
        for name, given in columns.items():
            column = _column(name, given, type(self).__name__)
            wanted = len(self._only[name]) if name in self._only else count
            if column.ndim == 0 or len(column) != wanted:
                raise DataError(
                    f"column '{name}' of a {type(self).__name__} has shape {tuple(column.shape)}; "
                    f"{wanted} entries are needed, one for each {'of its ' if name in self._only else ''}element"
                )
            self._columns[name] = column

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> NoReturn:
        raise ModelError(
            f"a Python 'for' goes through {self!r}; each(function, elements) and fold(function, elements, start) work "
            f"on the elements",
            here(),
        )

    @property
    def length(self) -> Any:
        """The number of elements; unlike ``len`` it also works in compiled models. A column of this name takes
        precedence."""
        return self.__getattr__("length") if "length" in self._columns else self._count

    def __getitem__(self, index: int) -> Any:
        """Returns the element at ``index``, an integer of the instance; -1 is the last."""
        return self._element(place(index, self._count, repr(self)))

    @property
    def _plain(self) -> bool:
        """Whether it has one column without a name."""
        return list(self._columns) == ["value"]

    def _integers(self, name: str) -> Ints:
        """Returns a control column: integers that decide where messages go."""
        column = self._column(name)
        if not isinstance(column, np.ndarray):
            found = "a tensor (payload)" if isinstance(column, Tensor) else "a sequence for each element"
            raise DataError(
                f"column '{name}' of {self!r} is {found}; the model was compiled for integers there "
                f"(control: a list or NumPy array)"
            )
        return column

    def _ragged(self, name: str) -> Ragged:
        """Returns a column that has a sequence or tree for each element."""
        from ampnet.lang.ragged import Ragged

        column = self._column(name)
        if not isinstance(column, Ragged):
            if not self._count:  # the type of an empty list's items is unknown
                return Ragged(name, [])
            raise DataError(
                f"column '{name}' of {self!r} has one entry for each element; the model was compiled for a sequence "
                f"for each (a list of Seqs or tensors)"
            )
        return column

    def __getattr__(self, name: str) -> Many:
        if name.startswith("_"):  # also read while a copy is made, which has no columns yet
            raise AttributeError(f"a {type(self).__name__} has no '{name}'")
        if name not in self._columns:
            known = ", ".join(self._columns) or "none"
            raise AttributeError(f"no column '{name}' in this {type(self).__name__}; there are: {known}")
        return Many(self, [self._at(name, i) for i in range(len(self))])

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            known = ", ".join(self._columns) or "none"
            raise DataError(f"the model needs a column '{name}' in {self!r}; there are: {known}")
        return self._columns[name]

    def _at(self, name: str, i: int) -> Any:
        """Returns the entry of a column for an element; None if it has none."""
        column = self._columns[name]
        if name in self._only:
            place = int(np.searchsorted(self._only[name], i))
            if place == len(self._only[name]) or self._only[name][place] != i:
                return None
            i = place
        return int(column[i]) if isinstance(column, np.ndarray) else column[i]

    def _element(self, i: int) -> Any:
        return self._at("value", i) if self._plain else Element(self, i)

    def __eq__(self, other: object) -> bool:
        """Whether the elements are the same, by value. (Edges belong to a Seq by identity.)"""
        if type(self) is not type(other) or not isinstance(other, Space):
            return NotImplemented
        mine, others = self._parts(), other._parts()
        return mine.keys() == others.keys() and all(_equal(mine[name], others[name]) for name in mine)

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._count, *self._columns))

    def _parts(self) -> dict[str, Any]:
        """Returns what equality compares."""
        return {**self._columns, " given": dict(self._given)}

    def __repr__(self) -> str:
        count = f"{len(self)} element{'' if len(self) == 1 else 's'}"
        return f"{type(self).__name__}({count}{': ' * bool(self._columns)}{', '.join(self._columns)})"


class Element:
    """One element of a space, with its columns as attributes."""

    __slots__ = ("_index", "_space")

    def __init__(self, space: Space, index: int) -> None:
        self._space, self._index = space, index

    @property
    def index(self) -> Any:
        """Its index, or the column of this name."""
        return self.__getattr__("index") if "index" in self._space._columns else self._index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"an element has no '{name}'")
        if name not in self._space._columns:
            raise AttributeError(f"no column '{name}' in {self._space!r}")
        value = self._space._at(name, self._index)
        if value is None:
            raise DataError(f"column '{name}' has no entry for element {self._index} of {self._space!r}")
        return value


class Many(Family):
    """A value for each element of a space, in a model that runs eagerly."""

    def __init__(self, space: Space, values: list[Any]) -> None:
        self.space, self.values = space, values

    @property
    def _over(self) -> str:
        return repr(self.space)

    def __getitem__(self, index: Any) -> Any:
        return self.values[place(index, len(self.values), repr(self.space))]


class Members(Space):
    """The children of a node, or the messages that arrive at one: elements without columns."""

    def __init__(self, count: int) -> None:
        super().__init__(count, {})


class Seq(Space):
    """A sequence of elements: the tokens of a sentence, the atoms of a molecule. At least one.

    ``Seq(tensor)`` has one value for each element, ``Seq(word=..., tag=...)`` several by name. ``Seq([a, b])`` of
    sequences has a sequence for each element.
    """

    def __init__(self, value: Given | None = None, **columns: Given) -> None:
        given: dict[str, Any] = dict(columns) if value is None else {"value": value, **columns}
        if not given:
            raise DataError("a Seq needs at least one column")
        first = next(iter(given.values()))
        if isinstance(first, Tensor) and not first.ndim:
            raise DataError("a Seq is made of a tensor with a row for each element; got one number, of shape ()")
        count = len(first) if hasattr(first, "__len__") else 0
        if count == 0:
            raise DataError("a Seq needs at least one element (an empty sequence has nothing to go through)")
        super().__init__(count, given)


def place(index: Any, size: int, where: str) -> int:
    """Returns the index of an element, counted from 0. Raises `DataError` for an index out of range."""
    if isinstance(index, slice):
        raise ModelError(f"a slice of {where}: pass that part to the model as a Seq of its own", here())
    if not isinstance(index, int | np.integer):
        raise ModelError(
            f"the index of an element of {where} is a {type(index).__name__}. It must be an integer of the instance: "
            f"pass it as a plain integer, or as a column that is a list or NumPy array",
            here(),
        )
    if not -size <= index < size:
        raise DataError(f"element {int(index)} of {where} was asked for; it has {size}")
    return int(index) % size


def _column(name: str, given: Any, what: str) -> Column:
    from ampnet.lang.ragged import Ragged, is_ragged

    if isinstance(given, Tensor | Ragged):
        return given
    return Ragged(name, given) if is_ragged(given) else integers(name, given, what)


def integers(name: str, given: Any, what: str) -> Ints:
    """Returns a control column as an array. Raises `DataError` if it is not one row of integers."""
    array = np.asarray(given)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise DataError(
            f"column '{name}' of a {what} is {array.dtype} {array.shape}; a column is a tensor (payload), one row of "
            f"integers (control), or a list of sequences"
        )
    return array.astype(np.int64)


def _equal(a: Any, b: Any) -> bool:
    """Whether two columns are equal."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(a.spaces == b.spaces) if hasattr(a, "spaces") else bool(a == b)


def zero_like(space: Space) -> Any:
    """Returns an element of zeros, to infer the shape of a function's result for a space without elements."""
    fake = Element.__new__(_Blank)
    fake._space, fake._index = space, 0
    return fake


class _Blank(Element):
    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._space._columns:
            raise AttributeError(f"no column '{name}' in {self._space!r}")
        column = self._space._columns[name]
        return torch.zeros(column.shape[1:], dtype=column.dtype) if isinstance(column, Tensor) else Nothing()


class Nothing(int):
    """An entry of a column that is an empty list: used as an integer it is 0, else an empty sequence."""
