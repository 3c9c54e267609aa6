"""Counting: how many messages an instance has at a scope, from its arguments alone.

An instance is complete in inference when all its losses or results were reported, so their number must be known before
it runs.

    scope                          number
    instance                       1
    each of an argument's elements the length of the argument
    nested elements, branches      one state is expanded along the axes; those that take the branches are counted
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampnet.lang import moves
from ampnet.lang.ints import Int, function, needs_structure, parts
from ampnet.lang.proto import Plan
from ampnet.lang.scope import Scope
from ampnet.lang.trace import Trace
from ampnet.state import States
from ampnet.structure import Shelf, Structure


def counter(trace: Trace, scope: Scope) -> Callable[[Sequence[Any]], int]:
    """Returns a function of the arguments of ``forward``: the number of messages that the instance has at a scope."""
    real = {a.real for a in scope.axes}
    guards = [g for g in scope.guards if g not in real]
    if not scope.axes and not guards:
        return lambda arguments: 1
    sizes = trace.scalars
    axis = scope.axes[0] if len(scope.axes) == 1 else None
    if axis is not None and not guards and isinstance(axis.size, Int) and axis.size.op == "scalar":
        return sizes[axis.size.args[0]]
    # Follow the path to the scope with one state that stands for the instance.
    plan, steps, at = Plan(tuple(sizes)), [], Scope()
    ints = [*(a.size for a in scope.axes), *(g.choice.index for g in guards)]
    arrays = {part.args[0]: trace.arrays[part.args[0]] for part in parts(*ints) if part.op == "lookup"}
    for axis in scope.axes:
        steps.append((moves.spread(plan, at, axis), needs_structure(axis.size)))
        at = at.entering(axis)
    tests = [(function(g.choice.index, plan.fields(at)), needs_structure(g.choice.index), g.way) for g in guards]

    def count(arguments: Sequence[Any]) -> int:
        shelf = Shelf()
        shelf.add({0: Structure(**{name: get(arguments) for name, get in arrays.items()})})
        states = States(("instance", *sizes), np.array([[0, *(get(arguments) for get in sizes.values())]]).T)
        for generate, structured in steps:
            states = generate(states, shelf.at(states))[1] if structured else generate(states)[1]
        keep = np.ones(len(states), dtype=bool)
        for test, structured, way in tests:
            keep &= (test(states, shelf.at(states)) if structured else test(states)) == way
        return int(keep.sum())

    return count
