"""Uses: the users of each value, and the protos that are in a loop together."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence

from ampnet.lang.proto import Proto
from ampnet.lang.value import Value


def uses(protos: Sequence[Proto]) -> dict[int, list[tuple[Proto, int]]]:
    """Returns, by the id of a value, its users: protos and input ports."""
    out: dict[int, list[tuple[Proto, int]]] = {}
    for proto in protos:
        for port, value in enumerate(proto.inputs):
            assert value is not None
            out.setdefault(id(value), []).append((proto, port))
    return out


def redirect(users: Sequence[tuple[Proto, int]], new: Value) -> None:
    """Replace the value that these ports use."""
    for proto, port in users:
        proto.inputs[port] = new


def unused(wanted: str, taken: Container[str]) -> str:
    """Returns this name if it is free, else the first free one with a number appended."""
    numbered = (f"{wanted}{n}" for n in itertools.count(2))
    return next(name for name in itertools.chain([wanted], numbered) if name not in taken)


def in_loops(protos: Sequence[Proto]) -> dict[int, int]:
    """Returns, by the id of a proto in a loop, the number of its loop (Tarjan's strongly connected components)."""
    before = {id(p): [v.proto for v in p.inputs if v is not None] for p in protos}
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[Proto] = []
    on_stack: set[int] = set()
    out: dict[int, int] = {}
    for root in protos:
        if id(root) in index:
            continue
        path: list[tuple[Proto, int]] = [(root, -1)]
        while path:
            proto, at = path.pop()
            if at < 0:
                index[id(proto)] = low[id(proto)] = len(index)
                stack.append(proto)
                on_stack.add(id(proto))
            for i in range(max(at, 0), len(before[id(proto)])):
                other = before[id(proto)][i]
                if id(other) not in index:
                    path += [(proto, i), (other, -1)]
                    break
                if id(other) in on_stack:
                    low[id(proto)] = min(low[id(proto)], low[id(other)])
            else:
                if low[id(proto)] == index[id(proto)]:
                    _close(proto, stack, on_stack, out)
    return out


def _close(proto: Proto, stack: list[Proto], on_stack: set[int], out: dict[int, int]) -> None:
    """Pop a finished component off the stack."""
    members = []
    while True:
        member = stack.pop()
        on_stack.discard(id(member))
        members.append(member)
        if member is proto:
            break
    if len(members) > 1:
        out.update({id(m): id(proto) for m in members})
