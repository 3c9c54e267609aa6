"""Symbols: sequences, trees and edges, their elements and columns, as a model that is being compiled sees them.

They look like what `ampnet.lang.spaces` hands to a model that runs eagerly. A tensor column that is used becomes an
input of the graph, a column of integers an array of the instance's structure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ampnet.lang.family import Family
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.nest import takes
from ampnet.lang.scope import Axis, Choice, Scope
from ampnet.lang.spaces import Edges, Space, Tree
from ampnet.lang.trace import Proto, Pump, Trace, Value, meta


class Each(Family):
    """A value (or integer) for each element of an axis."""

    def __init__(self, trace: Trace, axis: Axis, value: Value | Int) -> None:
        self.trace, self.axis, self.value = trace, axis, value

    @property
    def over(self) -> str:
        return f"'{self.axis.name}'"


class Symbol(Family):
    """A Seq, Tree or Edges that is an argument of the model."""

    def __init__(self, trace: Trace, position: int, name: str, example: Space, nodes: Symbol | None = None) -> None:
        self.trace, self.position, self.example = trace, position, example
        size = trace.field(f"{name}_length")
        trace.scalars[size] = lambda args: len(args[position])
        self.length = Int("scalar", size)
        self.axis = trace.axis(name, example.kind, self.length)
        self.index = Int("index", self.axis, axes=frozenset({self.axis}))
        self.nodes = nodes.axis if nodes is not None else None
        self._columns: dict[str, Value | Int] = {}
        self._choice: Choice | None = None
        if isinstance(example, Edges):
            null = Int("lookup", self.array("null"), self.index)
            self._choice = Choice(null, ("real", "none"))
            self.axis.real = trace.guard(self._choice, 0)

    @property
    def over(self) -> str:
        return f"'{self.axis.name}'"

    def __len__(self) -> int:
        self.trace.fail(
            f"len(...) of '{self.axis.name}' differs from instance to instance and is not known while the model is "
            f"compiled. '{self.axis.name}.length' is an integer that repeat(..., times=...) can take; to calculate "
            f"with it, pass it to the model as a tensor"
        )

    def element(self) -> Any:
        """The element at hand."""
        return self.column("value") if self.example.plain else Place(self)

    def __getattr__(self, name: str) -> Each:
        if name.startswith("_") or name not in self.example._columns:
            if not name.startswith("_") and hasattr(Tensor, name):
                self._refuse(f"'.{name}'")
            known = ", ".join(self.example._columns) or "none"
            raise AttributeError(f"no column '{name}' in '{self.axis.name}'; there are: {known}")
        return Each(self.trace, self.axis, self.column(name))

    def column(self, name: str) -> Value | Int:
        """What a column has for the element at hand."""
        if name not in self._columns:
            given = self.example._columns[name]
            self._columns[name] = self._tensor(name, given) if isinstance(given, Tensor) else self._integer(name)
        return self._columns[name]

    def _tensor(self, name: str, given: Tensor) -> Value:
        scope = Scope((self.axis,), (self.axis.real,) if self.axis.real is not None else ())
        at = self.example._given.get(name)
        if at is not None:
            scope = scope.guarded(self.trace.guard(self.leaf_or_branch(), int(at == "leaves")))
        label = self.axis.name if self.example.plain else f"{self.axis.name}_{name}"
        proto = Proto(
            self.trace.name(label), [], ("out",), here(),
            pump=Pump(self.position, name, at, self.axis),
        )  # fmt: skip
        row = torch.empty(given.shape[1:], dtype=given.dtype)
        return self.trace.emit(proto, (scope, meta(row)))

    def _integer(self, name: str) -> Int:
        if name in self.example._only:
            self.trace.fail(f"integers such as '{name}' must be given for all nodes of a tree, not for some")
        array, position = f"{self.axis.name}_{name}", self.position
        self.trace.arrays[array] = lambda args: args[position]._integers(name)
        return Int("lookup", array, self.index)

    def array(self, what: str) -> str:
        """The name of an array that follows from the tree or the edges."""
        name, position = f"{self.axis.name}__{what}", self.position
        if what in ("out", "in"):
            self.trace.arrays[name] = lambda args: args[position]._lists(what)[0]
            self.trace.arrays[f"{name}_start"] = lambda args: args[position]._lists(what)[1]
        else:
            self.trace.arrays[name] = lambda args: args[position]._derived(what)
        return name

    def leaf_or_branch(self) -> Choice:
        """Which kind of node of a tree: 0 a branch, 1 a leaf."""
        if self._choice is None:
            self._choice = Choice(Int("lookup", self.array("leaf"), self.index), ("branch", "leaf"))
        return self._choice

    def arity(self, branch: Callable[..., Any]) -> int:
        """How many children inner nodes have: as many as those of the example, or as the branch function takes."""
        assert isinstance(self.example, Tree)
        arity = self.example._arity()
        if arity == 0:  # an example without inner nodes
            arity = next((n for n in range(1, 9) if takes(branch, n)), None)
        if arity is None:
            self.trace.fail(
                "the inner nodes of the example tree differ in their number of children, so the branch function cannot "
                "take them one by one; use fold_tree(..., reduction='sum')"
            )
        position = self.position
        self.trace.checks.append(lambda args: args[position]._check_arity(arity))
        return arity


class Place:
    """One element of a space with several columns."""

    __slots__ = ("_symbol",)

    def __init__(self, symbol: Symbol) -> None:
        self._symbol = symbol

    @property
    def index(self) -> Int:
        """Its place."""
        return self._symbol.index

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._symbol.example._columns:
            raise AttributeError(f"no column '{name}' in '{self._symbol.axis.name}'")
        return self._symbol.column(name)
