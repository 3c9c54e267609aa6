"""Whole: any module as one node, with autograd inside.

    states, last = self.gru(xs)               a module of sequences, on a Seq or a family
    scores, memory = self.reader(x, h, mode)  a module with parameters of its own: any inputs and outputs
    features = whole(self.backbone, image)    any module, instead of tracing its forward

Each value has its own input port; a family is grouped first, so that a message is a whole sequence:

    xs ──> group ──> module ──> ungroup ──> family            outputs for each element
                        └─────> sum ──────> value             outputs for the sequence: stored beside the first row

`ampnet.lang.taken` describes the supported modules. In eager mode the module is called with families as tensors
``[elements, ...]``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.errors import DataError, ModelError
from ampnet.lang import moves, ops
from ampnet.lang.eager import NoElements, unrecorded
from ampnet.lang.family import Family
from ampnet.lang.line import here
from ampnet.lang.proto import Proto
from ampnet.lang.scope import Axis
from ampnet.lang.spaces import Many, Space
from ampnet.lang.taken import KNOWN, Attention, Fault, Out, Taken, taken
from ampnet.lang.trace import Trace, current
from ampnet.lang.value import Value, meta
from ampnet.nodes import Module, Ungroup
from ampnet.nodes.bodies import Padded, Port, filled, later, mapped, tensors
from ampnet.nodes.node import Node

_STACKS = (nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer)


def whole(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Apply a module as one node, with autograd inside::

        features = whole(self.backbone, image[None])[0]       # a CNN, written for a batch
        summary, steps = whole(self.reader, tokens, query)    # a Seq is passed as a tensor [elements, ...]

    A `Seq` or family is passed to it as one tensor with a row for each element. An output tensor with a row for each
    element of the first sequence is returned as a family.
    """
    trace = current.get()
    if trace is None:
        return (
            eager(nn.Module.__call__, module, args, kwargs) if has_families((args, kwargs)) else module(*args, **kwargs)
        )
    from ampnet.lang.calls import kind_of

    return take(trace, module, kind_of(module), args, kwargs)


def self_attention(query: Any, key: Any, value: Any, *, heads: int = 1, causal: bool = False) -> Any:
    """Self-attention over a sequence: ``softmax(q k' / sqrt(width)) v``, by heads. Returns a family.

    ::

        ys = self_attention(each(self.q, xs), each(self.k, xs), each(self.v, xs), heads=4)

    ``causal``: each element attends to itself and to earlier elements only. Keys and values may be families over
    another sequence, with one value for each key.
    """
    module = Attention(heads, causal)
    trace = current.get()
    if trace is None:
        return eager(nn.Module.__call__, module, (query, key, value), {})
    trace.modules[id(module)] = trace.name("attention")
    trace.kept.append(module)
    return take(trace, module, Attention, (query, key, value), {})


def is_taken(module: nn.Module, kind: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a module called with families becomes one node: torch's sequence modules, and user modules with
    parameters. One that takes edges or several columns, or applies combinators to its arguments, is traced."""
    if kind in KNOWN:
        return True
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if not own or type(module).__module__.startswith("torch.nn."):
        return False
    ports = _Ports()
    args, kwargs = ports.placed(args), ports.placed(kwargs)
    rows = [row for row in map(_row, ports.given) if row is not None]
    if len(rows) < len(ports.given):
        return False
    try:
        with unrecorded():
            taken(module, None, args, kwargs, rows, _numbers([_sequence(given) for given in ports.given]))
    except Fault as fault:
        return not isinstance(fault.__cause__, NoElements)
    return True


def _sequence(given: Any) -> Any:
    """Returns the space or axis that an argument is over, or None."""
    if isinstance(given, Family) and not isinstance(given, Many):
        return given._axis
    return _space(given)


def _row(given: Any) -> Tensor | None:
    """Returns one row of an argument, on the meta device; None if its elements are not one tensor each."""
    over = _sequence(given)
    if over is not None:
        if (over._kind if isinstance(over, Space) else over.kind) not in ("elements", "tree"):
            return None
        if isinstance(given, Many):
            given = given.values[0] if given.values else torch.empty(0)
        else:
            given = given._element(0) if isinstance(given, Space) else given._element()
    if isinstance(given, Value):
        return given.row
    return meta(given) if isinstance(given, Tensor) else None


def has_families(nest: Any) -> bool:
    """Whether a Seq, Tree, Edges or family is among the arguments."""
    if isinstance(nest, Family | Space):
        return True
    if isinstance(nest, tuple | list):
        return any(has_families(item) for item in nest)
    return isinstance(nest, dict) and any(has_families(item) for item in nest.values())


def stack(module: nn.Module, kind: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the layers of a transformer one after the other; returns None for any other module."""
    if kind not in _STACKS:
        return None
    if isinstance(module, nn.Transformer):
        if len(args) != 2 or set(kwargs) - {"tgt_is_causal"}:
            raise Fault("takes source and target, and tgt_is_causal=True; masks of fixed size have no meaning here")
        return module.decoder(args[1], module.encoder(args[0]), **kwargs)
    x, *memory = args
    if len(args) != (2 if isinstance(module, nn.TransformerDecoder) else 1):
        raise Fault("takes sequences alone; masks of fixed size have no meaning here, is_causal=True hides later rows")
    assert isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder)
    for layer in module.layers:
        x = layer(x, *memory, **kwargs)
    if module.norm is None:
        return x
    from ampnet.lang.combinators import each

    return each(module.norm, x) if has_families(x) else module.norm(x)


class _Ports:
    """The tensors among the arguments of a module, each once."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def placed(self, nest: Any) -> Any:
        """Returns the arguments with a `Port` for each tensor."""
        return mapped(
            nest, lambda leaf: self._port(leaf) if isinstance(leaf, Value | Tensor | Family | Space) else leaf
        )

    def _port(self, leaf: Any) -> Port:
        at = next((i for i, known in enumerate(self.given) if _same(known, leaf)), len(self.given))
        self.given[at : at + 1] = [leaf]
        return Port(at)


def _numbers(sequences: Sequence[object | None]) -> list[int]:
    """Returns the sequence number of each; -1: not over a sequence."""
    ids = list(dict.fromkeys(id(one) for one in sequences))
    return [-1 if one is None else ids.index(id(one)) for one in sequences]


def _same(a: Any, b: Any) -> bool:
    """Whether two arguments are the same tensor, or families of the same values."""
    mine, theirs = (vars(x).get("value", x) if isinstance(x, Family) else x for x in (a, b))
    return mine is theirs


# -- compiled


def take(trace: Trace, module: nn.Module, kind: type | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call as one node."""
    from ampnet.lang.calls import check_module, named
    from ampnet.lang.ints import Int
    from ampnet.lang.nest import leaves

    if any(isinstance(a, Int) for a in leaves((args, kwargs))):
        trace.fail("an integer of the instance is given to a module as a tensor; pass it to the model as a tensor too")
    check_module(trace, module)
    ports = _Ports()
    args, kwargs = ports.placed(args), ports.placed(kwargs)
    axes = [_axis(trace, module, given) for given in ports.given]
    values = [_gathered(trace, given, axis) for given, axis in zip(ports.given, axes, strict=True)]
    if not values:
        trace.fail(f"{named(trace, module)} is given no tensor to compute with")
    first = next((i for i, axis in enumerate(axes) if axis is not None), 0)
    if first:  # the output has the rows of the first port
        order = [first, *(i for i in range(len(values)) if i != first)]
        values, axes = [values[i] for i in order], [axes[i] for i in order]
        moved = {old: new for new, old in enumerate(order)}
        args, kwargs = filled((args, kwargs), [Port(moved[i]) for i in range(len(order))])
    try:
        made = taken(module, kind, args, kwargs, [v.row for v in values], _numbers(axes))
    except Fault as fault:
        trace.fail(f"{named(trace, module)} {fault}")
    return _given(trace, axes[0], made, _emit(trace, module, made, values))


def _axis(trace: Trace, module: nn.Module, given: Any) -> Axis | None:
    if not isinstance(given, Family):
        return None
    axis: Axis = given._axis
    if axis.kind not in ("elements", "tree"):
        trace.fail(
            f"{type(module).__name__} is given the elements of '{axis.name}' ({axis.kind}) as one sequence; it takes "
            f"the elements of a Seq, or the nodes of a Tree"
        )
    return axis


def _gathered(trace: Trace, given: Any, axis: Axis | None) -> Value:
    """Returns a value at the current scope; a family as one message with all elements."""
    if axis is None:
        return trace.bring(given)
    from ampnet.lang.traced import Traced

    element = given._element()
    if not isinstance(element, Value):
        trace.fail(
            f"a module is given '{axis.name}', whose elements are not one tensor each (integers, several columns, or "
            f"sequences); give it a column, or what each(...) makes of them"
        )
    return Traced(trace)._grouped(axis, element)


def _emit(trace: Trace, module: nn.Module, made: Taken, values: Sequence[Value]) -> Value:
    outs, body = made.flat(), made.body
    if not outs:
        trace.fail(f"{type(module).__name__} returns no tensor")
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), None)
    known = [out.dtype for out in outs if out.dtype is not None]
    if known:
        dtype = functools.reduce(torch.promote_types, known)
    elif dtype is None:
        dtype = next((v.row.dtype for v in values if v.row.is_floating_point()), torch.get_default_dtype())
    shape = outs[0].shape if made.as_it_is else (sum(out.width for out in outs),)

    def make(module: nn.Module, key: Any) -> Node:
        return Module(module, key, body=body, ports=len(values))

    proto = Proto(trace.modules[id(module)], list(values), ("out",), here(), module=module, make=make)
    proto.alike = (type(body), len(values), repr((body.args, body.kwargs)), repr(vars(body)))
    return trace.emit(proto, (trace.scope, torch.empty(shape, dtype=dtype, device="meta")))


def _given(trace: Trace, axis: Axis | None, made: Taken, value: Value) -> Any:
    """Split the one value that holds all outputs into the module's outputs."""
    if axis is None:
        if made.as_it_is:
            return value
        starts = iter(_starts(made.flat()))
        return _each_out(made.outs, lambda out: _shaped(trace, value, next(starts), out))
    from ampnet.lang.symbols import Each
    from ampnet.lang.traced import Traced

    apart: list[Value] = []

    def single(start: int, out: Out) -> Any:
        if out.follows:
            if not apart:
                apart.append(_ungrouped(trace, axis, value))
            with trace.inside(axis):
                return Each(trace, axis, _shaped(trace, apart[0], start, out))
        rows = ops.cut(trace, value, start, start + out.width)
        return _shaped(trace, Traced(trace)._reduced(rows, "sum"), 0, out)

    starts = iter(_starts(made.flat()))
    return _each_out(made.outs, lambda out: single(next(starts), out))


def _each_out(nest: Any, make: Callable[[Out], Any]) -> Any:
    return mapped(nest, lambda leaf: make(leaf) if isinstance(leaf, Out) else leaf)


def _starts(outs: Sequence[Out]) -> list[int]:
    """Returns the first column of each output."""
    return [sum(out.width for out in outs[:i]) for i in range(len(outs))]


def _shaped(trace: Trace, value: Value, start: int, out: Out) -> Value:
    part = ops.cut(trace, value, start, start + out.width)
    if out.dtype not in (None, part.row.dtype):
        part = ops.call(Tensor.to, (part, out.dtype), {})
    return part if len(out.shape) == 1 else ops.call(torch.reshape, (part, out.shape), {})


def _ungrouped(trace: Trace, axis: Axis, value: Value) -> Value:
    """Returns a message for each row."""
    scope = value.scope
    after = scope.entering(axis)
    proto = Proto(
        trace.name(f"{axis.name}_apart"), [value], ("out",), here(),
        lambda plan: Ungroup(moves.apart(plan, scope, axis), key=after.key),
        note=f"to each of {axis.name}",
    )  # fmt: skip
    return trace.emit(proto, (after, value.row))


# -- eager


def eager(plain: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the module in plain torch, for one instance."""
    from ampnet.lang.calls import kind_of

    kind = Attention if isinstance(module, Attention) else kind_of(module)
    ports = _Ports()
    args, kwargs = ports.placed(args), ports.placed(kwargs)
    spaces = [_space(given) for given in ports.given]
    xs = [given if space is None else _stacked(given, space) for given, space in zip(ports.given, spaces, strict=True)]
    rows = [meta(x if space is None else x[0]) for x, space in zip(xs, spaces, strict=True)]
    try:
        made = taken(module, kind if kind in KNOWN else None, args, kwargs, rows, _numbers(spaces))
    except Fault as fault:
        raise ModelError(f"{type(module).__name__} {fault}", here()) from None
    args, kwargs = filled((made.body.args, made.body.kwargs), xs)
    if isinstance(made.body, Padded) and made.body.causal is not None:
        name, of, columns = made.body.causal
        kwargs[name] = later(len(xs[of]), len(xs[columns]), xs[of].device)
    found: Iterator[Tensor] = tensors(plain(module, *args, **kwargs))
    space = next(s for s in spaces if s is not None)
    return _each_out(made.outs, lambda out: Many(space, list(next(found).unbind(0))) if out.follows else next(found))


def _space(given: Any) -> Space | None:
    if isinstance(given, Space):
        return given
    return given.space if isinstance(given, Many) else None


def _stacked(given: Any, space: Space) -> Tensor:
    values = [given._element(i) for i in range(len(space))] if isinstance(given, Space) else given.values
    if not values:
        raise DataError(f"{space!r} has no element, and the model puts all its elements together")
    if not all(isinstance(v, Tensor) for v in values):
        raise ModelError(
            f"a module is given {space!r}, whose elements are not one tensor each (integers, several columns, or "
            f"sequences); give it a column, or what each(...) makes of them",
            here(),
        )
    return torch.stack(values)
