"""Calls: a submodule applied to values becomes a node with parameters, which updates itself.

    module                                   node
    nn.Linear, nn.Embedding, nn.LayerNorm    the node of that name
    nn.GRUCell, nn.LSTMCell, tree cells      the node of that name, its inputs side by side
    nn.Dropout                               Dropout, with a mask for each message
    any other with parameters of its own     Module: its forward, repeated under autograd on the way back
    without parameters of its own            no node: what its forward does is traced

A module that is called in several places is one node with as many sites: its parameters are updated in one place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ampnet.errors import GraphError
from ampnet.lang import ops
from ampnet.lang.line import here
from ampnet.lang.nest import leaves, rebuild
from ampnet.lang.trace import Proto, Trace, Value, current, meta
from ampnet.nodes import (
    Dropout,
    Embedding,
    GruCell,
    LayerNorm,
    Linear,
    LstmCell,
    Module,
    TreeBranchCell,
    TreeLeafCell,
    TreeLstmBranch,
    TreeLstmLeaf,
)
from ampnet.nodes.module import not_row_wise
from ampnet.nodes.node import Node

_NODES: dict[type[nn.Module], Callable[..., Node]] = {
    nn.Linear: Linear,
    nn.Embedding: Embedding,
    nn.LayerNorm: LayerNorm,
    TreeLeafCell: TreeLstmLeaf,
    TreeBranchCell: TreeLstmBranch,
}
"""Modules of one tensor that have a node of their own."""

_COMPILING = threading.RLock()
"""Calls of modules are intercepted for one compilation at a time."""


class Bare(TorchFunctionMode):
    """Functions of nothing but parameters. Torch would work them out at once, and the model would go on with the
    weights of that moment for ever."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        trace, given = current.get(), list(leaves((args, kwargs or {})))
        bare = any(isinstance(a, nn.Parameter) for a in given) and not any(isinstance(a, Value) for a in given)
        name = getattr(function, "__name__", "")
        if trace is not None and name in _DRAWN:
            trace.fail(f"torch's {name} draws random numbers, which would be those of the compilation for ever")
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
"""What can be asked of a parameter without asking for its numbers."""


_DRAWN = {"rand", "randn", "randint", "randperm", "normal"}
"""Functions that make a tensor of random numbers of nothing."""


@contextmanager
def intercepted() -> Iterator[None]:
    """While a model is traced, calls of modules with a value (or parameter) among their arguments come by here."""
    _COMPILING.acquire()
    plain = nn.Module.__call__

    def traced(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        trace = current.get()
        if trace is None or not any(isinstance(a, Value | nn.Parameter) for a in leaves((args, kwargs))):
            return plain(module, *args, **kwargs)
        return _call(trace, module, args, kwargs, lambda: plain(module, *args, **kwargs))

    nn.Module.__call__ = traced  # type: ignore[method-assign]
    try:
        with Bare():
            yield
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]
        _COMPILING.release()


def _call(
    trace: Trace, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], inside: Callable[[], Any]
) -> Any:
    kind = kind_of(module)
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
    if not own or module is trace.model:
        return inside()
    fault = not_row_wise(module)
    if fault is not None:
        trace.fail(fault)
    if kwargs:
        trace.fail(f"{type(module).__name__} is called with keyword arguments; pass tensors by position")
    return apply(trace, module, list(leaves(args)), Module, args)


def kind_of(module: nn.Module | None) -> type | None:
    """What decides about its node. One with hooks, or a forward of its own, does more than its type says: a Module
    calls it as it is."""
    if module is None:
        return None
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return nn.Module if any(hooks) or "forward" in vars(module) else type(module)


def _with_state(trace: Trace, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], parts: int) -> Any:
    """The input of a cell and its state; zeros where none is given, as in torch."""
    x = args[0] if args else kwargs["input"]
    state = args[1] if len(args) > 1 else kwargs.get("hx")
    if state is None:
        zero = torch.zeros(module.hidden_size, dtype=module.weight_hh.dtype)
        state = zero if parts == 1 else (zero, zero)
    return x, state


def apply(trace: Trace, module: nn.Module, args: Sequence[Any], node: Callable[..., Node], nest: Any = None) -> Value:
    """A call as a proto. Several tensors go in side by side."""
    values = [trace.bring(a) for a in args]
    row = _output(trace, module, args, nest)
    joined = values[0]
    if len(values) > 1:
        for value in values:
            if value.row.dim() != 1 or value.row.dtype != values[0].row.dtype:
                trace.fail(
                    f"{type(module).__name__} is given several tensors that cannot be put side by side: "
                    f"{', '.join(f'{tuple(v.row.shape)} {v.row.dtype}' for v in values)}"
                )
        joined = ops.beside(trace, values, torch.cat([v.row for v in values], -1))
    widths = [v.row.shape[-1] if v.row.dim() else 1 for v in values]

    def make(module: nn.Module, key: Any) -> Node:
        return node(module if node is not Module else _OnRows(module, widths, nest), key=key)

    if id(module) not in trace.modules:
        trace.fail(f"a {type(module).__name__} is called that is no submodule of the model, so nothing would train it")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            trace.fail(
                f"the parameter '{name}' of {_named(trace, module)} has a hook, which nobody would call: its gradient "
                f"adds up in its node. An Update can clip it; a function of your own can go before the loss"
            )
    proto = Proto(trace.modules[id(module)], [joined], ("out",), here(), module=module, make=make)
    return trace.emit(proto, (trace.scope, row))


class _OnRows(nn.Module):
    """A module that was written for one row, on many: torch's own take a batch, others, and those with hooks or a
    forward of their own, are mapped over the rows.

    Several tensors come in side by side.
    """

    def __init__(self, module: nn.Module, widths: Sequence[int], nest: Any) -> None:
        super().__init__()
        self.module, self.widths, self.nest = module, list(widths), nest
        one_row = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
        self.takes_batches = type(module).__module__.startswith("torch.nn.") and not one_row

    def _one(self, *parts: Tensor) -> Any:
        return self.module(*rebuild(self.nest, iter(parts)))

    def forward(self, rows: Tensor) -> Any:
        parts = rows.split(self.widths, -1) if len(self.widths) > 1 else (rows,)
        return self._one(*parts) if self.takes_batches else torch.func.vmap(self._one)(*parts)


def _output(trace: Trace, module: nn.Module, args: Sequence[Any], nest: Any) -> Tensor:
    """Shape and dtype of what a module makes of one row."""
    rows = [a.row if isinstance(a, Value) else meta(trace.value(a).row) for a in args]
    weights = {name: meta(p) for name, p in [*module.named_parameters(), *module.named_buffers()]}
    if isinstance(module, nn.LSTMCell):
        given: tuple[Any, ...] = (rows[0], (rows[1], rows[2]))
    else:
        given = tuple(rows) if nest is None else rebuild(nest, iter(rows))
    token = current.set(None)
    try:
        out = torch.func.functional_call(module, weights, given)
    except Exception as error:
        shapes = ", ".join(f"{tuple(r.shape)} {r.dtype}" for r in rows)
        trace.fail(f"{_named(trace, module)} cannot be applied to one row of {shapes}: {error}")
    finally:
        current.reset(token)
    if isinstance(module, nn.LSTMCell):
        out = torch.cat(out, -1)
    if not isinstance(out, Tensor):
        trace.fail(f"{_named(trace, module)} must give one tensor, gave a {type(out).__name__}")
    return meta(out)


def _named(trace: Trace, module: nn.Module) -> str:
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
    """The node of a module that is called in these places."""
    assert proto.module is not None
    assert proto.make is not None
    try:
        node: Any = proto.make(proto.module, keys[0])
    except GraphError as error:
        from ampnet.errors import ModelError

        raise ModelError(error.faults[0], proto.line) from error
    return node.with_sites(keys) if len(keys) > 1 else node  # type: ignore[no-any-return]
