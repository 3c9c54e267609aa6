"""Ops: torch functions on values, recorded as row-wise operations.

A value is one row, so a function means the same eagerly (on the row) and compiled (on each row of a batch). Common
functions have a specialised form; any other differentiable function of rows is mapped over the rows unchanged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.errors import ModelError
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.proto import Arg, Operation, Proto
from ampnet.lang.trace import Trace, current
from ampnet.lang.value import Value, in_place, meta

_ELEMENTWISE = {
    "add": "add", "sub": "sub", "subtract": "sub", "mul": "mul", "multiply": "mul", "div": "div", "divide": "div",
    "true_divide": "div", "neg": "neg", "negative": "neg", "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid",
    "exp": "exp", "log": "log", "square": "square",
}  # fmt: skip
"""Torch's names of functions that have a specialised form."""

_TOTALS = ("sum", "mean")
_SHAPED = ("reshape", "view", "flatten", "unflatten", "unsqueeze", "squeeze")
"""Further names: reductions of a row, and changes of its shape."""

NOISE = "Noise is an argument of forward, drawn where instances are made"
"""The remedy for a function that draws random numbers."""

_RANDOM = {
    "dropout",
    "alpha_dropout",
    "feature_dropout",
    "bernoulli",
    "rand_like",
    "randn_like",
    "rrelu",
    "multinomial",
}

_SIGNS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "matmul": operator.matmul, "pow": operator.pow, "mod": operator.mod, "floordiv": operator.floordiv,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip
_NAMED = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}


def trace_of(args: Sequence[Any]) -> Trace:
    trace = current.get()
    if trace is None:
        found = next(a for a in _values(args))
        found.trace.fail("a value of a compilation is used after it: was it stored on the model?")
    return trace


def _values(nest: Any) -> list[Value]:
    if isinstance(nest, Value):
        return [nest]
    if isinstance(nest, dict):
        nest = list(nest.values())
    if isinstance(nest, tuple | list):
        return [v for item in nest for v in _values(item)]
    return []


def attribute(value: Value, name: str) -> Any:
    """``value.name``: a property of the row, or a method of tensors."""
    if name in ("shape", "dtype", "ndim"):
        return getattr(value.row, name)
    if name == "device":
        return torch.device("cpu")
    if name in ("size", "dim", "numel", "is_floating_point"):
        return getattr(value.row, name)
    if name.startswith("__") or not hasattr(Tensor, name):
        raise AttributeError(f"neither a Value nor a tensor has an attribute '{name}'")
    method = getattr(Tensor, name)
    if not callable(method):
        if name == "T" or name == "mT":
            return call(getattr(torch, "t" if value.row.dim() <= 2 else "adjoint"), (value,), {})
        value.trace.fail(f"'{name}' of a tensor is not known while the model is compiled")
    return lambda *args, **kwargs: call(method, (value, *args), kwargs)


def call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a torch function of values."""
    trace = trace_of((args, kwargs))
    name = getattr(function, "__name__", "function")
    if name in ("item", "tolist", "numpy", "__int__", "__float__", "__bool__", "__index__"):
        trace.fail(f"'{name}' asks for the number in a tensor, which is not known while the model is compiled")
    if (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None or kwargs.get("inplace"):
        trace.fail(in_place(f"'{name}'"))
    if (name.startswith("__i") and name not in ("__invert__", "__index__")) or name == "__setitem__":
        trace.fail(in_place(f"'{name.strip('_')}'"))
    if name in _RANDOM:
        if name.endswith("dropout") and not kwargs.get("training", args[2] if len(args) > 2 else True):
            return args[0]
        trace.fail(
            f"'{name}' draws random numbers, anew at every call, and a message must be computed the same way twice. "
            f"For a random mask use an nn.Dropout submodule. {NOISE}"
        )
    kwargs = {k: v for k, v in kwargs.items() if k not in ("inplace", "out")}
    if name in ("linear", "embedding", "matmul", "mm", "mv", "__getitem__"):
        made = _of_parameter(trace, name, args, kwargs)
        if made is not None:
            return made
    if name == "__getitem__" and isinstance(args[0], nn.Parameter) and args[0].dim() == 1:
        return index(trace.value(args[0]), args[1])
    if name == "__getitem__" and isinstance(args[0], Value):
        return index(*args)
    if name in ("cat", "concat", "concatenate", "hstack"):
        made = _cat(trace, args, kwargs, name)
        if made is not None:
            return made
    if name in ("chunk", "split", "tensor_split") and isinstance(args[0], Value):
        return _split(trace, name, *args, **kwargs)
    if name in _TOTALS and isinstance(args[0], Value):
        made = _total(trace, name, function, args, kwargs)
        if made is not None:
            return made
    if name in _SHAPED and isinstance(args[0], Value):
        row = _try(trace, function, args, kwargs)
        if isinstance(row, Tensor) and row.dtype == args[0].row.dtype and row.numel() == args[0].row.numel():
            return operation(trace, "reshape", [args[0]], row, name, shape=tuple(row.shape))
    if name in _ELEMENTWISE and not kwargs and len(args) <= 2:
        made = elementwise(trace, _ELEMENTWISE[name], args, function)
        if made is not None:
            return made
    return anything(trace, function, args, kwargs)


def _of_parameter(trace: Trace, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Value | None:
    """Record ``F.linear(x, weight)``, ``x @ weight.T``, ``F.embedding(i, weight)`` or ``weight[i]`` of a bare parameter
    as a node with parameters. Returns None for any other call."""
    from ampnet.lang.calls import of_parameter

    if name == "__getitem__":
        at, *others = args[1] if isinstance(args[1], tuple) else (args[1],)
        if not _matrix(args[0]) or not isinstance(at, Value) or at.row.dtype != torch.int64:
            return None
        if others and at.row.dim():
            return None
        row = of_parameter(trace, nn.Embedding, at, args[0])
        return index(row, tuple(others)) if others else row
    if name == "embedding":
        plain = len(args) == 2 and not kwargs
        return of_parameter(trace, nn.Embedding, args[0], args[1]) if plain and _matrix(args[1]) else None
    if name == "linear":
        x, weight, bias = (*args, *kwargs.values(), None)[:3]
        if isinstance(x, Value) and _matrix(weight) and isinstance(bias, nn.Parameter | None):
            return of_parameter(trace, nn.Linear, x, *([weight] if bias is None else [weight, bias]))
        return None
    x, turned = args[0], args[1]
    weight = _transposed(turned)
    if weight is not None and isinstance(x, Value) and not trace.is_parameter(x):
        return of_parameter(trace, nn.Linear, x, weight)
    return None


def _matrix(given: Any) -> bool:
    return isinstance(given, nn.Parameter) and given.dim() == 2


def _transposed(given: Any) -> nn.Parameter | None:
    """Returns the parameter if a value is its transpose, else None."""
    if not isinstance(given, Value) or given.proto.operation is None or given.proto.operation.op != "call":
        return None
    function, source = given.proto.operation.settings["function"], given.proto.inputs[0]
    if function.__name__ not in ("t", "transpose", "adjoint", "swapaxes") or source is None or source.row.dim() != 2:
        return None
    return source.proto.parameter


def elementwise(trace: Trace, op: str, args: Sequence[Any], function: Callable[..., Any]) -> Value | None:
    """Record an operation with a specialised form; returns None if it does not support these operands."""
    args = [trace.value(a) if isinstance(a, nn.Parameter) else a for a in args]
    if not all(isinstance(a, Value | Tensor | int | float) and not isinstance(a, bool) for a in args):
        return None
    rank = max(a.row.dim() for a in args if isinstance(a, Value))
    if any(isinstance(a, Tensor) and a.dim() > rank for a in args):
        return None  # a constant with more dimensions than the rows
    row = _try(trace, function, args, {})
    if not isinstance(row, Tensor) or not row.is_floating_point():
        return None
    if any(isinstance(a, Value) and a.row.dtype != row.dtype for a in args):
        return None  # a change of dtype: torch's own function knows how
    if any(isinstance(a, Tensor) and a.dtype != row.dtype for a in args):
        return None
    return operation(trace, op, args, row)


def _total(
    trace: Trace, op: str, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Value | None:
    """Record a sum or mean over the last dimension; returns None for any other."""
    value, rank = args[0], args[0].row.dim()
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", -1 if rank == 1 else None))
    if len(args) > 3 or not kwargs.keys() <= {"dim", "axis", "keepdim"} or not value.row.is_floating_point():
        return None
    if isinstance(dim, bool) or dim not in (-1, rank - 1) or not rank:
        return None
    keepdim = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
    return operation(trace, op, [value], _try(trace, function, args, kwargs), keepdim=keepdim)


def operation(trace: Trace, op: str, operands: Sequence[Any], row: Tensor, name: str = "", **settings: Any) -> Value:
    """Record a row-wise operation."""
    inputs: list[Value | None] = []
    places: dict[int, Arg] = {}
    packed: list[Any] = []
    for operand in operands:
        if not isinstance(operand, Value):
            packed.append(operand.detach() if isinstance(operand, Tensor) else operand)
            continue
        value = trace.bring(operand)
        if id(value) not in places:
            places[id(value)] = Arg(len(inputs))
            inputs.append(value)
        packed.append(places[id(value)])
    proto = Proto(
        trace.name(name or op),
        inputs,
        ("out",),
        here(),
        operation=Operation(op, tuple(packed), settings),
    )
    return trace.emit(proto, (trace.scope, meta(row)))


def _try(trace: Trace, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Apply a function to rows on the meta device, to get the shape and dtype of its result."""
    try:
        return function(*_rows(args), **_rows(kwargs))
    except ModelError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{tuple(v.row.shape)}" for v in _values((args, kwargs)))
        trace.fail(
            f"torch's {getattr(function, '__name__', 'function')} cannot be applied to one row each of shape {shapes}: "
            f"{error}"
        )


def _rows(nest: Any) -> Any:
    if isinstance(nest, Value):
        return nest.row
    if isinstance(nest, Tensor):
        return meta(nest)
    if isinstance(nest, tuple | list):
        return type(nest)(_rows(item) for item in nest)
    if isinstance(nest, dict):
        return {name: _rows(item) for name, item in nest.items()}
    return nest


def anything(trace: Trace, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record any differentiable function of rows, mapped over the rows of a batch."""
    operands: list[Any] = []

    def placed(nest: Any) -> Any:
        if isinstance(nest, nn.Parameter):
            nest = trace.value(nest)
            if nest.row.dim() > 1:
                trace.fail(
                    f"a parameter of shape {tuple(nest.row.shape)} is used by itself; F.linear(x, parameter) and "
                    f"parameter[i] are nodes that update themselves, and so is a module (nn.Linear, or an nn.Module of "
                    f"your own) that has it"
                )
        if isinstance(nest, Value | Tensor):
            operands.append(nest)
            return _Place(len(operands) - 1)
        if isinstance(nest, tuple | list):
            return type(nest)(placed(item) for item in nest)
        if isinstance(nest, dict):
            return {name: placed(item) for name, item in nest.items()}
        return nest

    inside = (placed(args), placed(kwargs))

    def applied(*rows: Tensor) -> Any:
        filled = _filled(inside, rows)
        return function(*filled[0], **filled[1])

    result = _try(trace, function, args, kwargs)
    name = getattr(function, "__name__", "function").strip("_")
    if isinstance(result, Tensor):
        return operation(trace, "call", operands, result, name, function=_named(applied, name))
    if isinstance(result, tuple | list) and all(isinstance(r, Tensor) for r in result):
        picked = [
            operation(trace, "call", operands, row, name, function=_named(_picked(applied, i), name))
            for i, row in enumerate(result)
        ]
        named = isinstance(result, tuple) and hasattr(result, "n_fields")  # values and indices, say
        return type(result)(picked) if named else tuple(picked)
    if isinstance(result, bool | int | float | torch.Size | torch.dtype | tuple):
        return result  # depends on the shape alone
    return trace.fail(f"torch's {name} gives a {type(result).__name__}, which is not known while the model is compiled")


def _picked(function: Callable[..., Any], i: int) -> Callable[..., Any]:
    return lambda *rows: function(*rows)[i]


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = name
    return function


class _Place:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


def _filled(nest: Any, rows: Sequence[Tensor]) -> Any:
    if isinstance(nest, _Place):
        return rows[nest.number]
    if isinstance(nest, tuple | list):
        return type(nest)(_filled(item, rows) for item in nest)
    if isinstance(nest, dict):
        return {name: _filled(item, rows) for name, item in nest.items()}
    return nest


# -- concatenation and slices


def _cat(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Value | None:
    parts = list(args[0] if args else kwargs["tensors"])
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    parts = [trace.value(p) if isinstance(p, nn.Parameter) else p for p in parts]
    if not all(isinstance(p, Value | Tensor) for p in parts):
        return None
    rows = [_rows(p) for p in parts]
    rank = rows[0].dim()
    row = _try(trace, torch.cat, (parts, dim), {})
    if rank == 0 or dim not in (-1, rank - 1) or any(r.dtype != rows[0].dtype for r in rows):
        return None
    return beside(trace, parts, row)


def beside(trace: Trace, parts: Sequence[Value | Tensor], row: Tensor) -> Value:
    """Concatenate rows. Adjacent slices of one value are joined again without a copy."""
    merged: list[Any] = []
    for part in parts:
        piece = _piece(part)
        last = _piece(merged[-1]) if merged else None
        if piece is not None and last is not None and piece[0] is last[0] and piece[1] == last[2]:
            merged[-1] = cut(trace, piece[0], last[1], piece[2])
        else:
            merged.append(part)
    if len(merged) == 1 and isinstance(merged[0], Value):
        return trace.bring(merged[0])
    constants = [p.proto.pump.constant if isinstance(p, Value) and p.proto.pump is not None else None for p in merged]
    if all(c is not None for c in constants):
        return trace.bring(torch.cat([c for c in constants if c is not None], -1))
    return operation(trace, "cat", merged, row)


def _piece(part: Any) -> tuple[Value, int, int] | None:
    """Returns (base, start, stop) if a value is a slice, else None."""
    if isinstance(part, Value) and part.proto.operation is not None and part.proto.operation.op == "slice":
        base = part.proto.inputs[0]
        assert base is not None
        settings = part.proto.operation.settings
        return base, settings["start"], settings["stop"]
    return None


def cut(trace: Trace, value: Value, start: int, stop: int) -> Value:
    """Returns columns of a value. If they are one whole part of a concatenation, that part is returned."""
    width = value.row.shape[-1]
    if (start, stop) == (0, width):
        return value
    made = value.proto.operation
    if made is not None and made.op == "cat" and value.proto.inputs:
        at = 0
        for operand in made.operands:
            part = value.proto.inputs[operand.port] if isinstance(operand, Arg) else operand
            size = _rows(part).shape[-1]
            if (start, stop) == (at, at + size) and isinstance(part, Value):
                return part
            at += size
    inner = _piece(value)
    if inner is not None:
        return cut(trace, inner[0], inner[1] + start, inner[1] + stop)
    return operation(trace, "slice", [value], value.row[..., start:stop], start=start, stop=stop)


def _split(trace: Trace, name: str, value: Value, size: Any, dim: int = 0) -> tuple[Value, ...]:
    function = {"chunk": torch.chunk, "split": torch.split, "tensor_split": torch.tensor_split}[name]
    pieces = _try(trace, function, (value, size, dim), {})
    if dim not in (-1, value.row.dim() - 1):
        return tuple(anything(trace, function, (value, size, dim), {}))
    at, out = 0, []
    for piece in pieces:
        out.append(cut(trace, value, at, at + piece.shape[-1]))
        at += piece.shape[-1]
    return tuple(out)


def index(value: Value, at: Any) -> Value:
    """``value[at]``."""
    trace = trace_of((value,))
    items = at if isinstance(at, tuple) else (at,)
    simple = [i for i in items if i is not Ellipsis]
    if any(isinstance(i, Value) and i.row.dtype == torch.bool for i in items):
        trace.fail("a tensor is indexed by a mask, so its shape would depend on values: use torch.where, or multiply")
    if any(isinstance(i, Int) for i in items):
        trace.fail(
            "a tensor is indexed by an integer of the instance, so where to look differs from message to message: make "
            "it a column of a Seq, or choose(...) among the parts"
        )
    tensors = [i.row.dim() for i in items if isinstance(i, Value)]
    if 0 in tensors:
        if any(tensors) or not all(isinstance(i, Value | int) for i in items[: len(tensors)]):
            trace.fail("numbers that index a tensor come first and cannot be mixed with rows of numbers: x[i, j, :]")
        return anything(trace, _numbered, (value, *items), {})  # type: ignore[no-any-return]
    only_last = len(simple) == 1 and isinstance(simple[0], slice) and simple[0].step in (None, 1)
    if only_last and (value.row.dim() == 1 or (len(items) == 2 and items[0] is Ellipsis)):
        start, stop, _ = simple[0].indices(value.row.shape[-1])
        if stop > start:
            return cut(trace, value, start, stop)
    if all(i is None or i is Ellipsis or (isinstance(i, int | slice) and not isinstance(i, bool)) for i in items):
        row = _try(trace, operator.getitem, (value, at), {})
        if row.numel() == value.row.numel() > 0:
            return operation(trace, "reshape", [value], row, "getitem", shape=tuple(row.shape))
        at = _from_the_last(items, value.row.dim())
    made: Value = anything(trace, operator.getitem, (value, at), {})
    return made


def _from_the_last(items: tuple[Any, ...], rank: int) -> tuple[Any, ...]:
    """The same items behind an ellipsis: they then mean the same for one row and for many."""
    if Ellipsis in items:
        before, after = items[: items.index(Ellipsis)], items[items.index(Ellipsis) + 1 :]
        taken = sum(i is not None for i in (*before, *after))
        return (Ellipsis, *before, *(slice(None),) * (rank - taken), *after)
    return (Ellipsis, *items, *(slice(None),) * (rank - sum(i is not None for i in items)))


def _numbered(x: Tensor, *items: Any) -> Tensor:
    """``x[items]`` with tensors of one number among the items, which torch would ask for their value."""
    return x[tuple(i.reshape(1) if isinstance(i, Tensor) else i for i in items)].squeeze(0)


def _binary(name: str, swapped: bool) -> Callable[..., Any]:
    sign = _SIGNS[name]

    def apply(self: Value, other: Any) -> Any:
        from ampnet.lang.family import Family

        trace = trace_of((self,))
        if isinstance(other, Int | Family):
            trace.value(other)  # raises, with the reason
        args = (other, self) if swapped else (self, other)
        if name in _NAMED:
            made = elementwise(trace, _NAMED[name], args, sign)
            if made is not None:
                return made
        if name == "matmul":
            made = _of_parameter(trace, name, args, {})
            if made is not None:
                return made
        if name == "pow" and not swapped and other == 2 and not isinstance(other, Value | Tensor):
            return elementwise(trace, "square", (self,), torch.square)
        return anything(trace, sign, args, {})

    return apply


def _refuse(name: str) -> Callable[..., Any]:
    def apply(self: Value, other: Any) -> Any:
        self.trace.fail(in_place(f"'{name}'"))

    return apply


for _name in _SIGNS:
    setattr(Value, f"__{_name}__", _binary(_name, False))
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Value, f"__r{_name}__", _binary(_name, True))
for _name, _shown in {"add": "+=", "sub": "-=", "mul": "*=", "truediv": "/=", "matmul": "@=", "pow": "**="}.items():
    setattr(Value, f"__i{_name}__", _refuse(_shown))
setattr(Value, "__neg__", lambda self: call(torch.neg, (self,), {}))  # noqa: B010
setattr(Value, "__getitem__", index)  # noqa: B010
