"""Linear and activation: ``relu(linear(x))`` becomes one node. The activation is computed in place on the new product;
the backward pass needs the output only."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ampnet.lang.calls import kind_of
from ampnet.lang.passes.uses import redirect, uses
from ampnet.lang.proto import Arg, Proto

_ACTIVATIONS = ("relu", "tanh", "sigmoid")


def fuse_linear(protos: Sequence[Proto]) -> list[Proto]:
    """Returns the protos, with activations fused into the Linear before them."""
    used = uses(protos)
    sites: dict[int, list[Proto]] = {}
    for proto in protos:
        if proto.module is not None and kind_of(proto.module) is nn.Linear:
            sites.setdefault(id(proto.module), []).append(proto)
    gone: set[int] = set()
    for calls in sites.values():
        following = [_activation(used.get(id(call.outputs[0]), [])) for call in calls]
        names = {f.operation.op if f is not None and f.operation is not None else None for f in following}
        if len(names) != 1 or None in names:
            continue  # the sites of one node must all do the same
        for call, activation in zip(calls, following, strict=True):
            assert activation is not None
            assert activation.operation is not None
            call.activation = activation.operation.op
            redirect(used.get(id(activation.outputs[0]), []), call.outputs[0])
            gone.add(id(activation))
    return [p for p in protos if id(p) not in gone]


def _activation(users: Sequence[tuple[Proto, int]]) -> Proto | None:
    """Returns the only user of a value if it is an activation, else None."""
    if len(users) != 1 or users[0][0].operation is None:
        return None
    proto = users[0][0]
    assert proto.operation is not None
    return proto if proto.operation.op in _ACTIVATIONS and proto.operation.operands == (Arg(0),) else None
