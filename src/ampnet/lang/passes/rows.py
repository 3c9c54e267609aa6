"""Chains of row-wise operations: an operation whose result has one user is computed in that user's node.

Two operations are not fused if only one of them is in a loop: an operation that does not depend on the loop is computed
once for all rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ampnet.lang.passes.uses import in_loops, uses
from ampnet.lang.proto import Arg, Operation, Proto
from ampnet.lang.value import Value
from ampnet.nodes.program import Program, Ref


def program_of(proto: Proto) -> Program:
    """Returns the operations of a row-wise proto as a program, with one input for each of the proto's."""
    if proto.program is None:
        assert proto.operation is not None
        proto.program = Program(len(proto.inputs))
        operation: Operation = proto.operation
        operands = [Ref(o.port) if isinstance(o, Arg) else o for o in operation.operands]
        proto.program.add(operation.op, *operands, **operation.settings)
    return proto.program


def fuse_rows(protos: Sequence[Proto]) -> list[Proto]:
    """Returns the protos, with each chain of row-wise operations as one."""
    left = list(protos)
    loops = in_loops(left)
    while (pair := _next(left, loops)) is not None:
        first, second = pair
        _fuse(first, second)
        left.remove(first)
    return left


def _next(protos: Sequence[Proto], loops: dict[int, int]) -> tuple[Proto, Proto] | None:
    used = uses(protos)
    for proto in protos:
        users = used.get(id(proto.outputs[0]), []) if proto.operation is not None else []
        if len(users) == 1 and users[0][0].operation is not None:
            other = users[0][0]
            if loops.get(id(proto)) == loops.get(id(other)):
                return proto, other
    return None


def _fuse(first: Proto, second: Proto) -> None:
    """Compute the first in the second's node."""
    made = first.outputs[0]
    inputs: list[Value | None] = []
    for value in (*second.inputs, *first.inputs):
        if value is not made and not any(value is known for known in inputs):
            inputs.append(value)
    refs = {id(value): Ref(i) for i, value in enumerate(inputs)}
    program = Program(len(inputs))
    result = program.inline(program_of(first), [refs[id(v)] for v in first.inputs])
    operands = [result if v is made else refs[id(v)] for v in second.inputs]
    program.out = program.inline(program_of(second), operands)
    second.program, second.inputs = program, inputs
    second.into = ("in",) if len(inputs) == 1 else tuple(f"in{i}" for i in range(1, len(inputs) + 1))
