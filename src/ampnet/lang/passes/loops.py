"""The control of a loop becomes one node.

start ──> enter ──> phi ──> cond ── again ──> body ──> next ──┐          start ──> loop ── again ──> body ──┐
                     ^        └─── done ───> leave            │                     ^  └─── done            │
                     └────────────────────────────────────────┘                     └───────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampnet.lang import moves
from ampnet.lang.passes.uses import redirect, unused, uses
from ampnet.lang.proto import Plan, Proto
from ampnet.lang.scope import Axis, Scope
from ampnet.nodes import Loop
from ampnet.nodes.node import Node


@dataclass(eq=False, slots=True)
class Control:
    """The control protos of one value that a loop carries."""

    axis: Axis
    enter: Proto | None
    """None if the first round is pumped."""
    phi: Proto
    test: Proto
    onward: Proto
    leave: Proto


def fuse_loops(protos: Sequence[Proto], loops: Sequence[Control]) -> list[Proto]:
    """Returns the protos, with the control of every loop as one."""
    out = list(protos)
    for control in loops:
        parts = [p for p in (control.enter, control.phi, control.test, control.onward, control.leave) if p is not None]
        here = [p for p in parts if any(p is other for other in out)]
        needed = [p for p in parts if p is not control.leave]
        if not all(any(p is other for other in here) for p in needed):
            continue  # its outputs are not used
        used = uses(out)
        if len(used.get(id(control.phi.outputs[0]), [])) != 1:
            continue
        one = _one(control)
        one.name = unused(one.name, {p.name for p in out})
        done, again = control.leave.outputs[0], control.test.outputs[1]
        redirect(used.get(id(done), []), one.outputs[0])
        redirect(used.get(id(again), []), one.outputs[1])
        one.inputs[1] = control.onward.inputs[0]  # redirected, too, if the body returns its argument
        at = next(i for i, p in enumerate(out) if p is control.phi)
        out = [p for p in (*out[:at], one, *out[at:]) if not any(p is part for part in parts)]
    return out


def _one(control: Control) -> Proto:
    axis, inner = control.axis, control.test.outputs[1].scope
    outer = control.leave.outputs[0].scope
    enter, before = control.enter, control.enter.inputs[0] if control.enter is not None else None
    came: Scope | None = before.scope if before is not None else None

    def build(plan: Plan) -> Node:
        there, back, _ = moves.leave(plan, outer, axis)
        return Loop(
            axis.name,
            onward=moves.onward(plan, inner, axis),
            more=moves.going_on(plan, inner.leaving(axis), axis),
            enter=None if came is None else moves.enter(plan, came, axis),
            leave=(there, back),
            fields=(plan.fields(inner), plan.fields(outer)),
        )

    start = control.phi.inputs[0] if enter is None else enter.inputs[0]
    test = control.test
    proto = Proto(
        f"{axis.name}_loop" if test.name == f"{axis.name}_cond" else test.name.replace("_cond", "_loop"),
        [start, control.onward.inputs[0]], ("done", "again"), control.phi.line, build, ("start", "back"),
        ints=test.ints, note=test.note,
    )  # fmt: skip
    kind = type(test.outputs[0])
    trace, row = test.outputs[0].trace, test.outputs[0].row
    proto.outputs = [kind(trace, proto, 0, outer, row), kind(trace, proto, 1, inner, row)]
    return proto
