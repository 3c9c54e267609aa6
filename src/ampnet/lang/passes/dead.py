"""Dead branches: protos that no loss or result depends on are removed."""

from __future__ import annotations

from collections.abc import Sequence

from ampnet.lang.proto import Proto


def remove_dead(protos: Sequence[Proto]) -> list[Proto]:
    """Returns the protos that a loss or a result depends on."""
    live: set[int] = set()
    todo = [p for p in protos if p.is_loss or p.is_result]
    while todo:
        proto = todo.pop()
        if id(proto) not in live:
            live.add(id(proto))
            todo += [value.proto for value in proto.inputs if value is not None]
    return [p for p in protos if id(p) in live]
