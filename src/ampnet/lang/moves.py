"""Moves: the functions of states by which messages go from scope to scope. What users of the IR write by hand.

All work on whole batches of states, and give states whose fields are in the order of their scope. A function that looks
into the structure takes it as its second argument, as nodes expect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ampnet.lang.ints import Int, function, needs_structure
from ampnet.lang.scope import Axis, Scope
from ampnet.message import ranges
from ampnet.state import Column, Ints, States

if TYPE_CHECKING:
    from ampnet.lang.trace import Plan

Move = Callable[..., States]


def _arity(made: Callable[[States, Any], Any], structure: bool) -> Callable[..., Any]:
    """With the structure as an argument only where it is needed."""
    return made if structure else lambda s: made(s, None)


def _of(value: Int | int, fields: tuple[str, ...]) -> Callable[[States, Any], Column]:
    made = function(value, fields)
    return made if needs_structure(value) else lambda s, v: made(s)


def _places(source: tuple[str, ...], target: tuple[str, ...]) -> slice | list[int]:
    """Where the fields of ``source`` are in ``target``."""
    at = [target.index(f) for f in source]
    return slice(at[0], at[-1] + 1) if at == list(range(at[0], at[-1] + 1)) else at


class _Change:
    """From states with some fields to states with others: what is common is copied, what is new is given."""

    def __init__(self, source: tuple[str, ...], target: tuple[str, ...], new: str | None = None) -> None:
        """``new``: a field that is given anew although the source has it."""
        common = tuple(f for f in source if f in target and f != new)
        self.target = target
        self.here, self.there = _places(common, source), _places(common, target)
        self.whole = len(common) == len(target)

    def __call__(self, columns: Ints, **new: Column | int) -> States:
        if self.whole:
            kept = columns[self.here]
            return States.trusted(self.target, kept.copy() if isinstance(self.here, slice) else kept)
        out = np.empty((len(self.target), columns.shape[1]), dtype=np.int64)
        out[self.there] = columns[self.here]
        for name, column in new.items():
            out[self.target.index(name)] = column
        return States.trusted(self.target, out)


def enter(plan: Plan, scope: Scope, axis: Axis) -> tuple[Move, Move]:
    """Into the first round of a loop, and back."""
    outer, inner = plan.fields(scope), plan.fields(scope.entering(axis))
    there, back = _Change(outer, inner), _Change(inner, outer)
    if axis.carried is None:
        return lambda s: there(s.columns, **{axis.name: 0}), lambda s: back(s.columns)
    count, carried = _of(axis.size, outer), axis.carried

    def first(s: States, v: Any) -> States:
        new: dict[str, Any] = {axis.name: 0, carried: count(s, v)}
        return there(s.columns, **new)

    return _arity(first, needs_structure(axis.size)), lambda s: back(s.columns)


def onward(plan: Plan, scope: Scope, axis: Axis) -> tuple[Move, Move]:
    """To the next round, and back."""
    fields = plan.fields(scope)
    k = fields.index(axis.name)

    def moved(by: int) -> Move:
        def move(s: States) -> States:
            columns = s.columns.copy()
            columns[k] += by
            return States.trusted(fields, columns)

        return move

    return moved(1), moved(-1)


def leave(plan: Plan, scope: Scope, axis: Axis) -> tuple[Move, Move, Callable[..., Column]]:
    """Out of a loop after its last round, and back; and for which states that is."""
    inner, outer = plan.fields(scope.entering(axis)), plan.fields(scope)
    there, back = _Change(inner, outer), _Change(outer, inner)
    count = _of(axis.size, outer)

    def undo(s: States, v: Any) -> States:
        rounds = count(s, v)
        return back(s.columns, **dict.fromkeys(axis.fields, rounds))

    return lambda s: there(s.columns), _arity(undo, needs_structure(axis.size)), going_on(plan, scope, axis, last=True)


def going_on(plan: Plan, scope: Scope, axis: Axis, last: bool = False) -> Callable[..., Column]:
    """Whether there is another round (or: whether that was the last)."""
    fields = plan.fields(scope.entering(axis))
    k = fields.index(axis.name)
    if axis.carried is not None and not last:
        n = fields.index(axis.carried)
        return lambda s: s.columns[k] < s.columns[n]
    count = _of(axis.size, fields)
    if last:  # the number that is carried along is that of the loop, too: a made-up state may have any
        counters = [fields.index(name) for name in axis.fields]
        return _arity(
            lambda s, v: (s.columns[counters] == np.broadcast_to(count(s, v), (len(s),))).all(0),
            needs_structure(axis.size),
        )
    if isinstance(axis.size, int):
        most = axis.size
        return lambda s: s.columns[k] < most
    return _arity(lambda s, v: s.columns[k] < count(s, v), needs_structure(axis.size))


def route(plan: Plan, scope: Scope, index: Int) -> Callable[..., Column]:
    """Which way of a choice."""
    return function(index, plan.fields(scope))


def spread(plan: Plan, scope: Scope, axis: Axis) -> Callable[..., tuple[Column, States]]:
    """A state for each element of an axis."""
    outer, inner = plan.fields(scope), plan.fields(scope.entering(axis))
    change, count, carried = _Change(outer, inner), _of(axis.size, outer), axis.carried

    def generate(s: States, v: Any) -> tuple[Column, States]:
        counts = np.asarray(count(s, v), dtype=np.int64)
        owner = np.repeat(np.arange(len(s)), counts)
        new: dict[str, Any] = {axis.name: ranges(np.zeros_like(counts), counts)}
        if carried is not None:
            new[carried] = counts[owner]
        return owner, change(s.columns.take(owner, axis=1), **new)

    return _arity(generate, needs_structure(axis.size))


def across(plan: Plan, scope: Scope, nodes: Axis, edges: Axis, lists: str) -> Callable[..., tuple[Column, States]]:
    """From a node to each of its edges."""
    source, target = plan.fields(scope), plan.fields(scope.leaving(nodes).entering(edges))
    change, k = _Change(source, target), source.index(nodes.name)

    def generate(s: States, v: Any) -> tuple[Column, States]:
        owner, edge = v.entries(lists, s.columns[k])
        return owner, change(s.columns.take(owner, axis=1), **{edges.name: edge})

    return generate


def replaced(plan: Plan, scope: Scope, old: Axis, new: Axis, array: str) -> Move:
    """From an element of one axis to the element of another that an array names: an edge's target, a node's parent."""
    source, target = plan.fields(scope), plan.fields(scope.leaving(old).entering(new))
    change, k = _Change(source, target, new.name), source.index(old.name)
    return lambda s, v: change(s.columns, **{new.name: v.get(array, s.columns[k])})


def without(plan: Plan, scope: Scope, axis: Axis) -> Move:
    """The states without an axis: of the group that an element belongs to."""
    change = _Change(plan.fields(scope), plan.fields(scope.leaving(axis)))
    return lambda s: change(s.columns)


def place(plan: Plan, scope: Scope, axis: Axis) -> Callable[[States], Column]:
    """Where on an axis."""
    k = plan.fields(scope).index(axis.name)
    return lambda s: s.columns[k]


def looked_up(plan: Plan, scope: Scope, axis: Axis, array: str) -> Callable[[States, Any], Column]:
    """What an array has for the element."""
    k = plan.fields(scope).index(axis.name)

    def look(s: States, v: Any) -> Column:
        found: Column = v.get(array, s.columns[k])
        return found

    return look


def number(plan: Plan, scope: Scope, value: Int | int) -> Callable[..., Column]:
    """An integer expression."""
    return function(value, plan.fields(scope))


def up_to_root(plan: Plan, scope: Scope, axis: Axis, root: str) -> tuple[Move, Move]:
    """Out of a tree at its root, and back."""
    inner, outer = plan.fields(scope.entering(axis)), plan.fields(scope)
    there, back = _Change(inner, outer), _Change(outer, inner)

    def undo(s: States, v: Any) -> States:
        return back(s.columns, **{axis.name: v.get(root, np.zeros(len(s), dtype=np.int64))})

    return lambda s: there(s.columns), undo
