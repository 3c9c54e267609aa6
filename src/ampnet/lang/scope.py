"""Scope: the elements that a value exists for. It determines the value's state fields and key.

Every value of a model belongs to the instance as a whole, or to each element of something: each token, each node of a
tree, each edge, each round of a loop, or several of these at once. An **axis** is one such "each"; a scope is a set of
axes, and the state of a message holds its position on each of them:

    scope                          state                                  key
    instance                       (instance, steps)                      (instance)
    instance x tokens              (instance, tokens, length)             (instance, tokens)
    instance x atoms x round       (instance, atoms, round)               (instance, atoms, round)

Scalars such as ``length`` are in the state because control flow reads them; they are equal for all messages of an
instance, so they are not part of the key. Two values meet (in an addition, a concatenation, a loss) only in one scope:
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
    """Axes, and their fields in a state, are in the order in which the trace met them."""
    name: str
    """The state field with a message's position on the axis."""
    kind: Literal["elements", "tree", "edges", "rounds"]
    size: Int | int
    """The number of elements, as an expression over the outer scope."""
    carried: str | None = None
    """A further state field with the number of rounds, if it is computed at the start of each loop."""
    real: Guard | None = None
    """Edges only: the guard of real edges, as opposed to the null edges of nodes without any."""

    @property
    def fields(self) -> tuple[str, ...]:
        return (self.name,) if self.carried is None else (self.name, self.carried)


@dataclass(eq=False, slots=True)
class Choice:
    """A branching of the control flow by an integer."""

    index: Int
    names: tuple[str, ...]
    """The names of the branches."""
    line: Line | None = None
    """The line that made it."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One branch of a choice."""

    choice: Choice
    way: int


@dataclass(frozen=True, slots=True)
class Scope:
    """Axes, in the order of their numbers, and guards, in the order they were entered."""

    axes: tuple[Axis, ...] = ()
    guards: tuple[Guard, ...] = ()

    def entering(self, axis: Axis) -> Scope:
        """Returns this scope with one more axis."""
        return Scope(tuple(sorted((*self.axes, axis), key=lambda a: a.number)), self.guards)

    def leaving(self, axis: Axis) -> Scope:
        return Scope(tuple(a for a in self.axes if a is not axis), self.guards)

    def guarded(self, guard: Guard) -> Scope:
        return Scope(self.axes, (*self.guards, guard))

    def unguarded(self, guard: Guard) -> Scope:
        return Scope(self.axes, tuple(g for g in self.guards if g != guard))

    @property
    def key(self) -> tuple[str, ...]:
        """The fields that identify its messages."""
        return ("instance", *(a.name for a in self.axes))

    def fields(self, scalars: Iterable[str]) -> tuple[str, ...]:
        """Returns the fields of its states, with these scalars. Those of the key come first."""
        return (*self.key, *(a.carried for a in self.axes if a.carried is not None), *scalars)

    def __str__(self) -> str:
        where = " × ".join(("instance", *(a.name for a in self.axes)))
        ways = [f"{g.choice.names[g.way]}" for g in self.guards]
        return where + (f" where {' and '.join(ways)}" if ways else "")


Frame = Axis | Guard
"""An axis or a branch of a choice that encloses the current line."""
