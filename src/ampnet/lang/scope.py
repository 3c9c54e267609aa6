"""Scope: where a value lives. The fields of its states, and its key, follow from that.

Every value of a model belongs to the instance as a whole, or to each element of something: each token, each node of a
tree, each edge, each round of a loop, or several of these at once. An **axis** is one such "each"; a scope is a set of
axes, and the state of a message says where it stands on each of them:

    scope                          state                                  key
    instance                       (instance, steps)                      (instance)
    instance x tokens              (instance, tokens, length)             (instance, tokens)
    instance x atoms x round       (instance, atoms, round)               (instance, atoms, round)

Scalars such as ``length`` travel along because control flow asks for them; they are the same for all messages of an
instance, so they are no part of the key. Two values meet (in an addition, a concatenation, a loss) only in one scope:
then their states are equal, field by field.

A **guard** is a branch of a choice: values made inside it exist only for the messages that were sent that way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ampnet.lang.ints import Int

if TYPE_CHECKING:
    from ampnet.lang.line import Line


@dataclass(eq=False, slots=True)
class Axis:
    """One "each": the elements of a sequence, tree or set of edges, or the rounds of a loop."""

    number: int
    """Axes are ordered as they came up; so are their fields in a state."""
    name: str
    """The state field that says where on the axis a message stands."""
    kind: Literal["elements", "tree", "edges", "rounds"]
    size: Int | int
    """How many elements there are, as an expression over the scope outside."""
    carried: str | None = None
    """A further state field, holding the number of rounds, where it is worked out anew for every loop."""
    real: Guard | None = None
    """Edges only: the guard of edges that are given, as against those made up for nodes without any."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.name,) if self.carried is None else (self.name, self.carried)


@dataclass(eq=False, slots=True)
class Choice:
    """A way that parts by an integer."""

    index: Int
    names: tuple[str, ...]
    """Of the ways."""
    line: Line | None = None
    """Where it was made."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One way of a choice."""

    choice: Choice
    way: int


@dataclass(frozen=True, slots=True)
class Scope:
    """Axes, in the order of their numbers, and guards, in the order they were entered."""

    axes: tuple[Axis, ...] = ()
    guards: tuple[Guard, ...] = ()

    def entering(self, axis: Axis) -> Scope:
        """This scope and one more axis."""
        return Scope(tuple(sorted((*self.axes, axis), key=lambda a: a.number)), self.guards)

    def leaving(self, axis: Axis) -> Scope:
        return Scope(tuple(a for a in self.axes if a is not axis), self.guards)

    def guarded(self, guard: Guard) -> Scope:
        return Scope(self.axes, (*self.guards, guard))

    def unguarded(self, guard: Guard) -> Scope:
        return Scope(self.axes, tuple(g for g in self.guards if g != guard))

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that tell its messages apart."""
        return ("instance", *(a.name for a in self.axes))

    def fields(self, scalars: Iterable[str]) -> tuple[str, ...]:
        """The fields of its states, where these scalars travel along. Those of the key come first."""
        return (*self.key, *(a.carried for a in self.axes if a.carried is not None), *scalars)

    def __str__(self) -> str:
        where = " × ".join(("instance", *(a.name for a in self.axes)))
        ways = [f"{g.choice.names[g.way]}" for g in self.guards]
        return where + (f" where {' and '.join(ways)}" if ways else "")


Frame = Axis | Guard
"""What the model is inside of, at some line."""
