"""Calls: a submodule applied to values becomes a node with parameters, which updates itself.

    module                                   node
    nn.Linear, nn.Embedding, nn.LayerNorm    the node of that name
    nn.GRUCell, nn.LSTMCell, tree cells      the node of that name, its inputs side by side
    nn.Dropout                               Dropout, with a mask for each message
    nn.GRU, attention, transformer layers    Module: taken whole, all sequences at once (`ampnet.lang.taken`)
    any other with parameters of its own     Module: taken whole, with autograd inside (`ampnet.lang.whole`), unless
                                             its forward applies combinators to its arguments: then it is traced
    without parameters of its own            no node: its forward is traced

A module that is called in several places is one node with as many sites: its parameters are updated in one place. So
are those that several modules share: all of them become one node (`ampnet.nodes.tied`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ampnet.errors import GraphError, ModelError
from ampnet.lang import ops
from ampnet.lang.family import Family
from ampnet.lang.line import here
from ampnet.lang.nest import leaves, rebuild
from ampnet.lang.proto import Proto
from ampnet.lang.taken import KNOWN, Fault, shapes_of
from ampnet.lang.trace import Trace, current
from ampnet.lang.value import Value, meta
from ampnet.lang.whole import eager, has_families, is_taken, stack, take
from ampnet.nodes import (
    Dropout,
    Embedding,
    GruCell,
    LayerNorm,
    Linear,
    LstmCell,
    TreeBranchCell,
    TreeLeafCell,
    TreeLstmBranch,
    TreeLstmLeaf,
)
from ampnet.nodes.module import not_repeatable
from ampnet.nodes.node import Node

_NODES: dict[type[nn.Module], Callable[..., Node]] = {
    nn.Linear: Linear,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    TreeLeafCell: TreeLstmLeaf,
    TreeBranchCell: TreeLstmBranch,
}
"""Modules of one tensor that have a node of their own."""

_patching, _patched = threading.Lock(), 0
"""The number of models being compiled or run eagerly. Calls of modules are intercepted while it is not zero."""


class Bare(TorchFunctionMode):
    """Intercepts functions of parameters alone. Torch would evaluate them at compile time, and the graph would keep
    that result while the weights change."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        trace, given = current.get(), list(leaves((args, kwargs or {})))
        bare = any(isinstance(a, nn.Parameter) for a in given) and not any(isinstance(a, Value) for a in given)
        name = getattr(function, "__name__", "")
        if trace is not None and name in _DRAWN:
            trace.fail(f"torch's {name} draws random numbers, which would be drawn once, at compile time. {ops.NOISE}")
        if name == "__getitem__" and any(isinstance(a, Value) for a in given):  # torch would iterate over the value
            return ops.call(function, args, {})
        if trace is None or not bare or name in _ABOUT:
            return function(*args, **(kwargs or {}))
        if name == "__get__":  # an attribute: shape and dtype are known, views such as T are values
            found = function(*args)
            what = getattr(getattr(function, "__self__", None), "__name__", "")
            return ops.attribute(trace.value(args[0]), what) if isinstance(found, Tensor) else found
        values = [trace.value(a) if isinstance(a, nn.Parameter) else a for a in given]
        args, kwargs = rebuild((args, kwargs or {}), iter(values))
        return ops.call(function, args, kwargs)


_ABOUT = {"size", "dim", "numel", "stride", "is_floating_point", "is_complex", "__len__", "__repr__", "__format__"}
"""Attributes of a parameter that do not depend on its values."""


_DRAWN = {"rand", "randn", "randint", "randperm", "normal"}
"""Functions without tensor arguments that return random numbers."""


_plain = nn.Module.__call__


def _intercepting(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Replaces `nn.Module.__call__`; intercepts calls that have a value, a parameter or a family among their
    arguments."""
    trace = current.get()
    if trace is not None and _symbolic((args, kwargs)):
        return _call(trace, module, args, kwargs)
    if trace is None and has_families((args, kwargs)):
        kind = kind_of(module)
        try:
            made = stack(module, kind, args, kwargs)
        except Fault as fault:
            raise ModelError(f"{type(module).__name__} {fault}", here()) from None
        if made is not None:
            return made
        if is_taken(module, kind, args, kwargs):
            return eager(_plain, module, args, kwargs)
    return _plain(module, *args, **kwargs)


def _symbolic(nest: Any) -> bool:
    return any(isinstance(a, Value | nn.Parameter | Family) for a in leaves(nest))


@contextmanager
def families_taken() -> Iterator[Callable[..., Any]]:
    """A context in which modules that become one node (see `ampnet.lang.taken`) accept families. Yields the
    original `nn.Module.__call__`."""
    global _patched, _plain
    with _patching:
        if nn.Module.__call__ is not _intercepting:
            _plain = nn.Module.__call__  # torch's, or another library's
        _patched += 1
        nn.Module.__call__ = _intercepting  # type: ignore[method-assign]
    try:
        yield _plain
    finally:
        with _patching:
            _patched -= 1
            if not _patched and nn.Module.__call__ is _intercepting:
                nn.Module.__call__ = _plain  # type: ignore[method-assign]


@contextmanager
def intercepted() -> Iterator[None]:
    """A context for tracing: intercepts calls of modules that have a value or parameter among their arguments."""
    with families_taken(), Bare():
        yield


def _call(trace: Trace, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kind = kind_of(module)
    if has_families((args, kwargs)) and not is_taken(module, kind, args, kwargs):
        return _stacked(trace, module, kind, args, kwargs)
    if kind in _NODES:
        (x,) = (*args, *kwargs.values())
        return apply(trace, module, [x], _NODES[kind])
    if kind is nn.GRUCell:
        x, h = _with_state(trace, module, args, kwargs, 1)
        return apply(trace, module, [x, h], GruCell)
    if kind is nn.LSTMCell:
        x, (h, c) = _with_state(trace, module, args, kwargs, 2)
        made = apply(trace, module, [x, h, c], LstmCell)
        n = int(module.hidden_size)  # type: ignore[arg-type]
        return ops.cut(trace, made, 0, n), ops.cut(trace, made, n, 2 * n)
    if isinstance(module, nn.Dropout):
        return _dropout(trace, module, args[0])
    own = list(module.parameters(recurse=False)) + list(module.buffers(recurse=False))
    if kind not in KNOWN and (not own or module is trace.model):
        return _stacked(trace, module, kind, args, kwargs)
    return take(trace, module, kind, args, kwargs)


def _stacked(trace: Trace, module: nn.Module, kind: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace the module's forward; a stack of transformer layers is traced layer by layer."""
    try:
        made = stack(module, kind, args, kwargs)
    except Fault as fault:
        trace.fail(f"{named(trace, module)} {fault}")
    return _plain(module, *args, **kwargs) if made is None else made


def kind_of(module: nn.Module | None) -> type | None:
    """Returns the type that selects its node. It is `nn.Module` for a module with hooks or its own ``forward``
    attribute: a Module node calls it unchanged."""
    if module is None:
        return None
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return nn.Module if any(hooks) or "forward" in vars(module) else type(module)


def _with_state(trace: Trace, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], parts: int) -> Any:
    """Returns the input and the state of a cell; the state defaults to zeros, as in torch."""
    x = args[0] if args else kwargs["input"]
    state = args[1] if len(args) > 1 else kwargs.get("hx")
    if state is None:
        zero = torch.zeros(module.hidden_size, dtype=module.weight_hh.dtype)
        state = zero if parts == 1 else (zero, zero)
    return x, state


def apply(trace: Trace, module: nn.Module, args: Sequence[Any], node: Callable[..., Node]) -> Value:
    """Add the proto of a module call; returns its output. Several input tensors are concatenated."""
    check_module(trace, module)
    values = [trace.bring(a) for a in args]
    row = _output(trace, module, args)
    joined = values[0]
    if len(values) > 1:
        for value in values:
            if value.row.dim() != 1 or value.row.dtype != values[0].row.dtype:
                trace.fail(
                    f"{type(module).__name__} is given several tensors that cannot be put side by side: "
                    f"{', '.join(f'{tuple(v.row.shape)} {v.row.dtype}' for v in values)}"
                )
        joined = ops.beside(trace, values, torch.cat([v.row for v in values], -1))

    def make(module: nn.Module, key: Any) -> Node:
        return node(module, key=key)

    proto = Proto(trace.modules[id(module)], [joined], ("out",), here(), module=module, make=make)
    return trace.emit(proto, (trace.scope, row))


def check_module(trace: Trace, module: nn.Module) -> None:
    """Raise `ModelError` if a module cannot become a node with its own updates."""
    if id(module) not in trace.modules:
        trace.fail(f"a {type(module).__name__} is called that is no submodule of the model, so nothing would train it")
    fault = not_repeatable(module)
    if fault is not None:
        trace.fail(fault)
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            trace.fail(
                f"the parameter '{name}' of {named(trace, module)} has a hook, which would never be called: its "
                f"gradient is summed in its node. An Update can clip it; a function of your own can go before the loss"
            )


def of_parameter(trace: Trace, kind: type[nn.Linear] | type[nn.Embedding], x: Any, *given: nn.Parameter) -> Value:
    """Add ``F.linear(x, weight, bias)`` or ``F.embedding(x, weight)`` of bare parameters as the call of a module."""
    for module in trace.kept:
        if type(module) is kind and [id(p) for p in module.parameters()] == [id(p) for p in given]:
            return apply(trace, module, [x], _NODES[kind])
    for parameter in given:
        if id(parameter) not in trace.parameters:
            trace.fail("a parameter is used that does not belong to the model: register it as an attribute")
    weight, *bias = given
    rows, width = weight.shape
    if kind is nn.Linear:
        module = nn.Linear(width, rows, bias=bool(bias), device="meta")
    else:
        module = nn.Embedding(rows, width, device="meta")
    for name, parameter in zip(("weight", "bias"), given, strict=False):
        setattr(module, name, parameter)
    trace.kept.append(module)
    trace.modules[id(module)] = trace.name(f"{trace.parameters[id(weight)]}_{kind.__name__.lower()}")
    return apply(trace, module, [x], _NODES[kind])


def _output(trace: Trace, module: nn.Module, args: Sequence[Any]) -> Tensor:
    """Returns a meta tensor with the shape and dtype of a module's output for one row."""
    rows = [a.row if isinstance(a, Value) else meta(trace.value(a).row) for a in args]
    given: tuple[Any, ...] = (rows[0], (rows[1], rows[2])) if isinstance(module, nn.LSTMCell) else tuple(rows)
    try:
        out = shapes_of(module, given, {})
    except Exception as error:
        shapes = ", ".join(f"{tuple(r.shape)} {r.dtype}" for r in rows)
        trace.fail(f"{named(trace, module)} cannot be applied to one row of {shapes}: {error}")
    if isinstance(module, nn.LSTMCell):
        out = torch.cat(out, -1)
    if not isinstance(out, Tensor):
        trace.fail(f"{named(trace, module)} must give one tensor, gave a {type(out).__name__}")
    return meta(out)


def named(trace: Trace, module: nn.Module) -> str:
    """Returns the module's type and its name in the model, for error messages."""
    return f"{type(module).__name__} '{trace.modules.get(id(module), '?')}'"


def _dropout(trace: Trace, module: nn.Dropout, x: Any) -> Value:
    value = trace.bring(x)
    if module.p == 0:
        return value
    seed = sum(p.name.startswith("dropout") for p in trace.protos) + 1
    key = value.scope.key
    proto = Proto(trace.name("dropout"), [value], ("out",), here(), lambda plan: Dropout(module.p, seed=seed, key=key))
    return trace.emit(proto, (trace.scope, value.row))


def make_node(proto: Proto, keys: Sequence[Sequence[str]]) -> Node:
    """Build the node of a module, with a site for each call."""
    assert proto.module is not None
    assert proto.make is not None
    try:
        node: Any = proto.make(proto.module, keys[0])
    except GraphError as error:
        raise ModelError(error.faults[0], proto.line) from error
    return node.with_sites(keys) if len(keys) > 1 else node  # type: ignore[no-any-return]
