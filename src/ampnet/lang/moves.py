"""Moves: functions of states that take messages from scope to scope. Users of the IR write these by hand.

All work on whole batches of states, and return states with fields in the order of their scope. A function that reads
the structure takes it as its second argument, as nodes expect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ampnet.lang.ints import Int, function, needs_structure
from ampnet.lang.scope import Axis, Guard, Scope
from ampnet.message import ranges
from ampnet.state import Column, Ints, States

if TYPE_CHECKING:
    from ampnet.lang.proto import Plan

Move = Callable[..., States]
_Moves = tuple[Move, Move]


def _arity(made: Callable[[States, Any], Any], structure: bool) -> Callable[..., Any]:
    """Returns a function of (states, structure), or of states alone if it does not read the structure."""
    return made if structure else lambda s: made(s, None)


def _of(value: Int | int, fields: tuple[str, ...]) -> Callable[[States, Any], Column]:
    made = function(value, fields)
    return made if needs_structure(value) else lambda s, v: made(s)


def _places(source: tuple[str, ...], target: tuple[str, ...]) -> slice | list[int]:
    """Returns the indices of ``source``'s fields in ``target``."""
    at = [target.index(f) for f in source]
    return slice(at[0], at[-1] + 1) if at == list(range(at[0], at[-1] + 1)) else at


class _Change:
    """Converts states to states with other fields: common fields are copied, new ones are passed in."""

    def __init__(self, source: tuple[str, ...], target: tuple[str, ...], new: str | None = None) -> None:
        """``new``: a field that is passed in although the source has it."""
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
    """Returns the moves into the first round of a loop, and back."""
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
    """Returns the moves to the next round, and back."""
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
    """Returns the moves out of a loop after its last round, and back; and the test for states of the last round."""
    inner, outer = plan.fields(scope.entering(axis)), plan.fields(scope)
    there, back = _Change(inner, outer), _Change(outer, inner)
    count = _of(axis.size, outer)

    def undo(s: States, v: Any) -> States:
        rounds = count(s, v)
        return back(s.columns, **dict.fromkeys(axis.fields, rounds))

    return lambda s: there(s.columns), _arity(undo, needs_structure(axis.size)), going_on(plan, scope, axis, last=True)


def going_on(plan: Plan, scope: Scope, axis: Axis, last: bool = False) -> Callable[..., Column]:
    """Returns the test whether there is another round (``last``: whether this was the last)."""
    fields = plan.fields(scope.entering(axis))
    k = fields.index(axis.name)
    if axis.carried is not None and not last:
        n = fields.index(axis.carried)
        return lambda s: s.columns[k] < s.columns[n]
    count = _of(axis.size, fields)
    if last:  # also compare the carried number of rounds with the loop's: a sample state may have any
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
    """Returns the function that computes the branch of a choice."""
    return function(index, plan.fields(scope))


def spread(plan: Plan, scope: Scope, axis: Axis) -> Callable[..., tuple[Column, States]]:
    """Returns the function that makes a state for each element of an axis."""
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


def picked(
    plan: Plan, source: Scope, frames: Sequence[Axis | Guard], at: Mapping[Axis, Int]
) -> Callable[..., tuple[Column, States]]:
    """Returns the move from an element to all states inside ``frames`` that refer to it; ``at``: position by axis."""
    scope = Scope(tuple(axis for axis in source.axes if axis not in at))
    base = _Change(plan.fields(source), plan.fields(scope))
    steps: list[tuple[Callable[..., Any], bool, int | None]] = []
    for frame in frames:
        if isinstance(frame, Guard):
            index = frame.choice.index
            steps.append((function(index, plan.fields(scope)), needs_structure(index), frame.way))
        elif frame not in scope.axes:
            steps.append((spread(plan, scope, frame), needs_structure(frame.size), None))
            scope = scope.entering(frame)
    named = [_of(place, plan.fields(scope)) for place in at.values()]
    own = [plan.fields(source).index(axis.name) for axis in at]

    def generate(s: States, v: Any) -> tuple[Column, States]:
        states = base(s.columns)
        _, first, group = np.unique(states.columns, axis=1, return_index=True, return_inverse=True)
        group, of = group.reshape(-1), np.arange(len(first))
        states = states.take(first)
        for step, structured, way in steps:
            found = step(states, v.at(states)) if structured else step(states)
            owner, states = found if way is None else _where(states, found == way)
            of = of[owner]
        here, there = [group], [of]
        for place, k in zip(named, own, strict=True):
            here.append(s.columns[k])
            there.append(np.broadcast_to(place(states, v.at(states)), (len(states),)))
        mine, asked = _codes(here, there)
        order = np.argsort(mine)
        owner = order.take(np.searchsorted(mine[order], asked), mode="clip")
        there_too = np.flatnonzero(mine[owner] == asked)  # elements of other instances come in another batch
        there_too = there_too[np.argsort(owner[there_too], kind="stable")]
        return owner[there_too], states.take(there_too)

    return generate


def _where(states: States, keep: Column) -> tuple[Column, States]:
    owner = np.flatnonzero(np.broadcast_to(keep, (len(states),)))
    return owner, states.take(owner)


def _codes(here: Sequence[Column], there: Sequence[Column]) -> tuple[Ints, Ints]:
    """Encode rows of integers as one integer each, with the same code for both."""
    a, b = np.zeros(len(here[0]), dtype=np.int64), np.zeros(len(there[0]), dtype=np.int64)
    for mine, theirs in zip(here, there, strict=True):
        most = 1 + max(int(mine.max(initial=0)), int(theirs.max(initial=0)))
        a, b = a * most + mine, b * most + theirs
    return a, b


def member(plan: Plan, scope: Scope, old: Axis, new: Axis, members: Axis, to: Int, rank: Int, back: Int) -> _Moves:
    """Returns the moves from a member of a group (an edge, a child) to its position in the group, and back.

    ``to`` and ``rank``: the element of ``new`` and the position there; ``back``: the element of ``old``, from those.
    """
    inner = scope.leaving(old).entering(new).entering(members)
    source, target = plan.fields(scope), plan.fields(inner)
    there, home = _Change(source, target, new.name), _Change(target, source, old.name)
    owner, place, came = _of(to, source), _of(rank, source), _of(back, target)
    return (
        lambda s, v: there(s.columns, **{new.name: owner(s, v), members.name: place(s, v)}),
        lambda s, v: home(s.columns, **{old.name: came(s, v)}),
    )


def across(plan: Plan, scope: Scope, nodes: Axis, edges: Axis, lists: str) -> Callable[..., tuple[Column, States]]:
    """Returns the move from a node to each of its edges."""
    source, target = plan.fields(scope), plan.fields(scope.leaving(nodes).entering(edges))
    change, k = _Change(source, target), source.index(nodes.name)

    def generate(s: States, v: Any) -> tuple[Column, States]:
        owner, edge = v.entries(lists, s.columns[k])
        return owner, change(s.columns.take(owner, axis=1), **{edges.name: edge})

    return generate


def replaced(plan: Plan, scope: Scope, old: Axis, new: Axis, to: Int) -> Move:
    """Returns the move from an element of one axis to an element of another: an edge's target, a node's parent."""
    source, target = plan.fields(scope), plan.fields(scope.leaving(old).entering(new))
    change, place = _Change(source, target, new.name), _of(to, source)
    return lambda s, v: change(s.columns, **{new.name: place(s, v)})


def apart(plan: Plan, scope: Scope, axis: Axis) -> Callable[[States, Column], States]:
    """Returns the move from a message of several rows to a state for each row, by its position on an axis."""
    change = _Change(plan.fields(scope), plan.fields(scope.entering(axis)))
    return lambda s, place: change(s.columns, **{axis.name: place})


def without(plan: Plan, scope: Scope, axis: Axis) -> Move:
    """Returns the move that drops an axis: from an element to its group."""
    change = _Change(plan.fields(scope), plan.fields(scope.leaving(axis)))
    return lambda s: change(s.columns)


def place(plan: Plan, scope: Scope, axis: Axis) -> Callable[[States], Column]:
    """Returns the function that reads the position on an axis."""
    k = plan.fields(scope).index(axis.name)
    return lambda s: s.columns[k]


def number(plan: Plan, scope: Scope, value: Int | int) -> Callable[..., Column]:
    """Returns the function that evaluates an integer expression."""
    return function(value, plan.fields(scope))


def up_to_root(plan: Plan, scope: Scope, axis: Axis, root: Int) -> _Moves:
    """Returns the moves out of a tree at its root, and back."""
    inner, outer = plan.fields(scope.entering(axis)), plan.fields(scope)
    there, back, place = _Change(inner, outer), _Change(outer, inner), _of(root, outer)
    return lambda s: there(s.columns), lambda s, v: back(s.columns, **{axis.name: place(s, v)})
