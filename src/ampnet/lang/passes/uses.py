"""Uses: who uses what a proto gives."""

from __future__ import annotations

from collections.abc import Sequence

from ampnet.lang.trace import Proto, Value


def uses(protos: Sequence[Proto]) -> dict[int, list[tuple[Proto, int]]]:
    """By the id of a value: the protos that use it, and on which port."""
    out: dict[int, list[tuple[Proto, int]]] = {}
    for proto in protos:
        for port, value in enumerate(proto.inputs):
            assert value is not None
            out.setdefault(id(value), []).append((proto, port))
    return out


def redirect(users: Sequence[tuple[Proto, int]], new: Value) -> None:
    """Let them use another value instead."""
    for proto, port in users:
        proto.inputs[port] = new
