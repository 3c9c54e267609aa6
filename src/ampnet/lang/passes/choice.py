"""A choice among Linear layers of one shape becomes one node that holds them all: Cond, layers and Phi in one.

          ┌──> layer 0 ──┐
x ──> cond ──> layer 1 ──> phi ──> y          x ──> bank ──> y
          └──> layer 2 ──┘
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ampnet.lang import moves
from ampnet.lang.calls import kind_of
from ampnet.lang.passes.uses import redirect, unused, uses
from ampnet.lang.trace import Plan, Proto
from ampnet.nodes import LinearBank
from ampnet.nodes.node import Node

Users = dict[int, list[tuple[Proto, int]]]


def fuse_choice(protos: Sequence[Proto]) -> list[Proto]:
    """The protos, with choices among layers of one shape as one."""
    out = list(protos)
    for proto in protos:
        if proto.choice is None:
            continue
        used = uses(out)
        found = _layers(proto, used, out)
        if found is None:
            continue
        layers, phi = found
        bank = _bank(proto, layers, phi)
        bank.name = unused(bank.name, {p.name for p in out})
        redirect(used.get(id(phi.outputs[0]), []), bank.outputs[0])
        gone = {id(p) for p in (proto, phi, *layers)}
        at = out.index(proto)
        out = [*out[:at], bank, *out[at:]]
        out = [p for p in out if id(p) not in gone]
    return out


def _layers(proto: Proto, used: Users, protos: Sequence[Proto]) -> tuple[list[Proto], Proto] | None:
    """The layers of a choice and the Phi behind them, if that is all there is to it."""
    layers: list[Proto] = []
    phi: Proto | None = None
    for way, value in enumerate(proto.outputs):
        users = used.get(id(value), [])
        if len(users) != 1 or kind_of(users[0][0].module) is not nn.Linear:
            return None
        call = users[0][0]
        after = used.get(id(call.outputs[0]), [])
        if len(after) != 1 or after[0][1] != way or (phi is not None and after[0][0] is not phi):
            return None
        phi = after[0][0]
        layers.append(call)
    if phi is None or len(phi.inputs) != len(layers) or not phi.joins:
        return None
    given = proto.inputs[0]
    if given is None or given.scope != phi.outputs[0].scope:
        return None
    kinds = {_kind(call) for call in layers}
    modules = [id(call.module) for call in layers]
    sites = [p for p in protos if p.module is not None and id(p.module) in modules]
    if len(kinds) != 1 or not len(set(modules)) == len(modules) == len(sites):
        return None
    weights = [id(p) for call in layers if call.module is not None for p in call.module.parameters()]
    return (layers, phi) if len(set(weights)) == len(weights) else None


def _kind(call: Proto) -> Any:
    module = call.module
    assert isinstance(module, nn.Linear)
    grads = tuple(p.requires_grad for p in module.parameters())
    return module.in_features, module.out_features, module.bias is not None, call.activation, grads


def _bank(proto: Proto, layers: Sequence[Proto], phi: Proto) -> Proto:
    choice = proto.choice
    assert choice is not None
    scope, activation = phi.outputs[0].scope, layers[0].activation
    modules: list[Any] = [call.module for call in layers]

    def build(plan: Plan) -> Node:
        route = moves.route(plan, scope, choice.index)
        return LinearBank(modules, route, activation=activation, key=scope.key)  # type: ignore[arg-type]

    bank = Proto(
        _common(layers), proto.inputs, ("out",), layers[0].line, build, ("in",), ints=(choice.index,),
        note=f"by {choice.index!r}", arrays=proto.arrays, scalars=proto.scalars,
    )  # fmt: skip
    bank.outputs = [type(phi.outputs[0])(proto.outputs[0].trace, bank, 0, scope, phi.outputs[0].row)]
    return bank


def _common(layers: Sequence[Proto]) -> str:
    """``layers_0``, ``layers_1``, ... -> ``layers``."""
    names = [call.name.rsplit("_", 1)[0] for call in layers]
    return names[0] if len(set(names)) == 1 and names[0] != layers[0].name else f"{layers[0].name}_and_others"
