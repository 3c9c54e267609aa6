"""Pick: a family by an index. ``h[edge.head]`` is row ``edge.head`` of the family h, inside of each edge.

    h of atoms       0        1        2        3            a Flatmap sends a row to each user of its index
                     |     /  |  |              |
    edge.head       e1   e0  e3  e4            e2            a row that is not used gets a gradient of zero

The index is an integer of the instance, so the users of each row are known before anything is computed. If the current
line is inside other axes than the family was made in (edges here), the indices of all their elements are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping

from ampnet.lang import moves
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.proto import Proto
from ampnet.lang.scope import Axis, Guard
from ampnet.lang.trace import Trace
from ampnet.lang.value import Value
from ampnet.nodes import Flatmap


def pick(trace: Trace, value: Value, at: Mapping[Axis, Int]) -> Value:
    """Returns the row of a value at these positions on some of its axes, at the scope of the current line."""
    source = value.scope
    real = {axis.real for axis in at}
    own = [guard for guard in source.guards if any(axis in guard.choice.index.axes for axis in at)]
    for guard in source.guards:
        if guard not in (real if guard in own else trace.frames):
            way = guard.choice.names[guard.way]
            trace.fail(
                f"an element is asked for by its index in values that are there for some elements only ({way}): made "
                f"inside of a choice, or a column of leaves or branches. Give the column for all elements, or take the "
                f"value out of the choice first"
            )
    kept = [axis for axis in source.axes if axis not in at]
    for axis in kept:
        if axis not in trace.frames:
            trace.fail(
                f"an element is asked for by its index in values that there are for each element of '{axis.name}' as "
                f"well, and this line is not inside of that: each(lambda family: family[i], families)"
            )
    frames = [f for f in trace.frames if not isinstance(f, Guard) or f not in source.guards or f in own]
    scope = trace.scope
    sizes = [f.size if isinstance(f, Axis) else f.choice.index for f in frames if f not in kept]
    proto = Proto(
        trace.name(f"{next(iter(at)).name}_at"), [value], ("out",), here(),
        lambda plan: Flatmap(moves.picked(plan, source, frames, at), key=scope.key),
        ints=(*at.values(), *sizes), note=", ".join(f"{axis.name} {i!r}" for axis, i in at.items()),
    )  # fmt: skip
    return trace.emit(proto, (scope, value.row))
