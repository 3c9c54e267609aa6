"""Symbols: sequences, trees and edges, their elements and columns, as a model that is being compiled sees them.

They have the interface of the eager classes in `ampnet.lang.spaces`. A tensor column that is used becomes an input of
the graph, a column of integers an array of the instance's structure, and a column of sequences a further axis, inside
the axis of its owner:

    document              axis `document`                     size: a scalar of the instance
    document.words        axis `document_words` inside it     size: an array, by the position on `document`

Arrays of an inner axis hold the concatenated entries of all outer elements; the index of an element's entry is
``start[outer position] + inner position`` (`Symbol._flat`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.lang.edges import Edges
from ampnet.lang.family import Family
from ampnet.lang.ints import Int, substituted
from ampnet.lang.line import here
from ampnet.lang.pick import pick
from ampnet.lang.proto import Proto, Pump
from ampnet.lang.ragged import Flat, Ragged
from ampnet.lang.scope import Axis, Choice, Scope
from ampnet.lang.trace import Trace
from ampnet.lang.value import Value, meta
from ampnet.state import Ints


class Symbolic(Family):
    """A value, integer, element or family for each element of an axis."""

    _trace: Trace
    _axis: Axis

    @property
    def _over(self) -> str:
        return f"'{self._axis.name}'"

    def _element(self) -> Any:
        """Returns its entry for the current element."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        return _at(self._trace, self._element(), {self._axis: self._place(index)})

    def _place(self, index: Any) -> Int:
        if isinstance(index, slice):
            self._trace.fail(f"a slice of {self._over}: pass that part to the model as a Seq of its own")
        index = self._trace.check_int(index, f"the index of an element of {self._over}")
        return Int("place", index, self._axis.size, self._axis.name)


def _at(trace: Trace, what: Any, at: Mapping[Axis, Int]) -> Any:
    """Convert an entry for the current element to the entry at these positions."""
    if isinstance(what, Value):
        return pick(trace, what, at)
    if isinstance(what, Int):
        return substituted(what, at)
    return Place(what._symbol, at) if isinstance(what, Place) else Moved(trace, what, at)


class Each(Symbolic):
    """A value, integer or family for each element of an axis."""

    def __init__(self, trace: Trace, axis: Axis, value: Any) -> None:
        self._trace, self._axis, self.axis, self.value = trace, axis, axis, value

    def _element(self) -> Any:
        return self.value


class Moved(Symbolic):
    """A family of one outer element that was picked by its index, as a separate axis."""

    def __init__(self, trace: Trace, family: Symbolic, at: Mapping[Axis, Int]) -> None:
        inner = family._axis
        size = substituted(inner.size, at) if isinstance(inner.size, Int) else inner.size
        self._trace, self._family = trace, family
        self._axis = trace.axis(inner.name, "elements", size)
        self._places = {**at, inner: Int("index", self._axis, axes=frozenset({self._axis}))}

    def _element(self) -> Any:
        return _at(self._trace, self._family._element(), self._places)

    def __getitem__(self, index: Any) -> Any:
        return _at(self._trace, self._family._element(), {**self._places, self._family._axis: self._place(index)})

    def __getattr__(self, name: str) -> Any:
        if isinstance(self._family, Symbol) and name in self._family._example._columns:
            column = self._family._column(name)
            with self._trace.inside(self._axis):
                return Each(self._trace, self._axis, _at(self._trace, column, self._places))
        return super().__getattr__(name)


class Symbol(Symbolic):
    """A Seq, Tree or Edges that is an argument of the model, or a column of one."""

    def __init__(
        self,
        trace: Trace,
        position: int,
        name: str,
        example: Any,
        nodes: Symbol | None = None,
        outer: tuple[Symbol, str] | None = None,
    ) -> None:
        """``outer``: the symbol and column that it is an entry of."""
        self._trace, self._position, self._example = trace, position, example
        self._nodes, self._outer = nodes, outer
        self._columns: dict[str, Value | Int | Symbol] = {}
        self._choice: Choice | None = None
        if outer is None:
            size = trace.field(f"{name}_length")
            trace.scalars[size] = lambda args: len(args[position])
            self._axis = trace.axis(name, example._kind, Int("scalar", size))
            self._index = Int("index", self._axis, axes=frozenset({self._axis}))
            self._base: Int | int = 0
        else:
            self._axis = trace.axis(name, example._kind, 0)
            self._index = Int("index", self._axis, axes=frozenset({self._axis}))
            self._axis.size = Int("lookup", self._array("length"), outer[0]._flat)
            self._base = Int("lookup", self._array("start"), outer[0]._flat)
        self._flat: Int = self._index if outer is None else self._base + self._index
        """The index of the current element's entries in the concatenated arrays."""
        if isinstance(example, Edges):
            self._choice = Choice(self._lookup("null"), ("real", "none"))
            self._axis.real = trace.guard(self._choice, 0)

    @property
    def length(self) -> Any:
        """The number of elements, or the column of this name."""
        return self.__getattr__("length") if "length" in self._example._columns else self._axis.size

    def __len__(self) -> int:
        name = self._axis.name
        self._trace.fail(
            f"len(...) of '{name}' differs from instance to instance and is not known while the model is compiled. "
            f"'{name}.length' is an integer that repeat(..., times=...) can take; to calculate with it, pass it to the "
            f"model as a tensor"
        )

    def _element(self) -> Any:
        return self._column("value") if self._example._plain else Place(self)

    def __getattr__(self, name: str) -> Each:
        if name.startswith("_"):  # also read while a copy is made, which has no example yet
            raise AttributeError(f"a {type(self).__name__} has no '{name}'")
        if name not in self._example._columns:
            if hasattr(Tensor, name):
                self._refuse(f"'.{name}'")
            known = ", ".join(self._example._columns) or "none"
            raise AttributeError(f"no column '{name}' in '{self._axis.name}'; there are: {known}")
        return Each(self._trace, self._axis, self._column(name))

    def _column(self, name: str) -> Value | Int | Symbol:
        """Returns the entry of a column for the current element."""
        if name not in self._columns:
            given = self._example._columns[name]
            if isinstance(given, Ragged):
                inner = f"{self._axis.name}_{name}"
                made: Any = Symbol(self._trace, self._position, inner, given.flat, outer=(self, name))
            else:
                made = self._tensor(name, given) if isinstance(given, Tensor) else self._integer(name)
            self._columns[name] = made
        return self._columns[name]

    def _scope(self, name: str) -> Scope:
        """Returns the scope of a column's entries."""
        outer = Scope() if self._outer is None else self._outer[0]._scope(self._outer[1])
        scope = outer.entering(self._axis)
        if self._axis.real is not None:
            scope = scope.guarded(self._axis.real)
        at = self._example._given.get(name)
        return scope if at is None else scope.guarded(self._trace.guard(self._leaf_or_branch(), int(at == "leaves")))

    def _tensor(self, name: str, given: Tensor) -> Value:
        label = self._axis.name if self._example._plain else f"{self._axis.name}_{name}"
        proto = Proto(
            self._trace.name(label), [], ("out",), here(),
            pump=Pump(self._position, name, self._example._given.get(name), self),
        )  # fmt: skip
        row = torch.empty(given.shape[1:], dtype=given.dtype)
        return self._trace.emit(proto, (self._scope(name), meta(row)))

    def _integer(self, name: str) -> Int:
        if name in self._example._only:
            self._trace.fail(f"integers such as '{name}' must be given for all nodes of a tree, not for some")
        array = f"{self._axis.name}_{name}"
        self._trace.arrays[array] = lambda args: self._table(args)._integers(name)
        return Int("lookup", array, self._flat)

    # -- from the arguments of an instance

    def _table(self, args: Sequence[Any]) -> Any:
        """Returns the space of its elements, concatenated over all outer elements."""
        if self._outer is None:
            return args[self._position]
        symbol, column = self._outer
        return symbol._table(args)._ragged(column).flat

    def _places(self, args: Sequence[Any], column: str) -> list[tuple[Axis, Ints]]:
        """Returns the positions of a column's entries, by axis."""
        table = self._table(args)
        only = table._only.get(column)
        return self._where(args, np.arange(len(table)) if only is None else only)

    def _where(self, args: Sequence[Any], flat: Ints) -> list[tuple[Axis, Ints]]:
        if self._outer is None:
            return [(self._axis, flat)]
        symbol, column = self._outer
        table, only = self._table(args), symbol._table(args)._only.get(column)
        assert isinstance(table, Flat)
        owner = table.owner[flat]
        return [*symbol._where(args, owner if only is None else only[owner]), (self._axis, table.inner[flat])]

    def _array(self, what: str) -> str:
        """Returns the name of an array derived from the tree, the edges, or the lengths of inner sequences."""
        name = f"{self._axis.name}__{what}"
        arrays: dict[str, Callable[[Sequence[Any]], Any]] = self._trace.arrays
        if what in ("out", "in"):
            arrays[name] = lambda args: self._table(args)._lists(what)[0]
            arrays[f"{name}_start"] = lambda args: self._table(args)._lists(what)[1]
        elif what in ("length", "start") or (what == "root" and self._outer is not None):
            arrays[name] = lambda args: self._by_outer(args, what)
        else:
            arrays[name] = lambda args: self._table(args)._derived(what)
        return name

    def _by_outer(self, args: Sequence[Any], what: str) -> Ints:
        """Returns an array over the outer elements: the length of the entry, its start, or its root."""
        assert self._outer is not None
        symbol, column = self._outer
        outer = symbol._table(args)
        ragged, only = outer._ragged(column), outer._only.get(column)
        entries = ragged.flat._derived("root") if what == "root" else ragged.lengths
        out: Ints = entries
        if only is not None:  # the other elements have no entry
            out = np.zeros(len(outer), dtype=np.int64)
            out[only] = entries
        return np.cumsum(out) - out if what == "start" else out

    def _lookup(self, what: str) -> Int:
        """Returns the entry of an array for the current element."""
        return Int("lookup", self._array(what), self._flat)

    def _root(self) -> Int:
        """Returns the root of the current tree."""
        return Int("lookup", self._array("root"), 0 if self._outer is None else self._outer[0]._flat)

    def _leaf_or_branch(self) -> Choice:
        """Returns the choice by kind of tree node: 0 for a branch, 1 for a leaf."""
        if self._choice is None:
            self._choice = Choice(self._lookup("leaf"), ("branch", "leaf"))
        return self._choice

    def _arity(self, branch: Callable[..., Any], wanted: int | None) -> int:
        """Returns the number of children of inner nodes, from the model, the example, or the function's signature."""
        arity = self._example._arity() if wanted is None else wanted
        if arity is None:
            self._trace.fail(
                "the inner nodes of the example tree differ in their number of children, so the branch function cannot "
                "take them one by one; with fold_tree(..., children='family') it gets them as a family"
            )
        if arity == 0:  # an example without inner nodes
            kinds = [p.kind for p in inspect.signature(branch).parameters.values() if p.default is p.empty]
            arity = len(kinds)
            if arity not in (1, 2) or inspect.Parameter.VAR_POSITIONAL in kinds:
                self._trace.fail(
                    "the example tree has no inner node, so it is not known how many children the branch function "
                    "takes, and whether its last argument is the node itself. Compile with a tree that has inner "
                    "nodes, or say it: fold_tree(..., children=2)"
                )
        self._trace.checks.append(lambda args: self._table(args)._check_arity(arity))
        return int(arity)


class Place:
    """One element of a space with several columns: the current one, or the one at given positions."""

    __slots__ = ("_picked", "_symbol")

    def __init__(self, symbol: Symbol, at: Mapping[Axis, Int] | None = None) -> None:
        self._symbol, self._picked = symbol, at

    @property
    def index(self) -> Any:
        """Its index, or the column of this name."""
        if "index" in self._symbol._example._columns:
            return self.__getattr__("index")
        return self._symbol._index if self._picked is None else self._picked[self._symbol._axis]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._symbol._example._columns:
            raise AttributeError(f"no column '{name}' in '{self._symbol._axis.name}'")
        found = self._symbol._column(name)
        return found if self._picked is None else _at(self._symbol._trace, found, self._picked)
