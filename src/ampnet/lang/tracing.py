"""Tracing: one run of a model's ``forward`` on symbols instead of the arguments of an example. Its record is a `Trace`.

    argument of the example      what forward gets in its place
    a tensor                     a `Value`: one row
    a Seq, Tree, Edges           a `Symbol`: its columns are values and integers for each element
    an integer                   an `Int`: an integer of the instance

Torch functions, modules and combinators that ``forward`` applies to these are recorded.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.errors import DataError, ModelError
from ampnet.lang.arguments import Arguments
from ampnet.lang.calls import intercepted
from ampnet.lang.edges import Edges
from ampnet.lang.ints import Int
from ampnet.lang.line import Line
from ampnet.lang.model import no_loss
from ampnet.lang.proto import Proto, Pump
from ampnet.lang.scope import Scope
from ampnet.lang.spaces import Space
from ampnet.lang.symbols import Symbol
from ampnet.lang.trace import Trace, current
from ampnet.lang.value import meta


def traced(model: nn.Module, arguments: Arguments) -> Trace:
    """Run the model once on symbols; returns the trace."""
    with torch.enable_grad():  # so that a model's own no_grad() is detected
        return _traced(model, arguments)


def _traced(model: nn.Module, arguments: Arguments) -> Trace:
    trace = Trace(model)
    example, symbols = arguments.example, list[Any]()
    for position, (name, given) in enumerate(zip(arguments.names, example, strict=True)):
        symbols.append(_symbol(trace, position, name, given, example, symbols))
    args, named = arguments.nested(symbols)
    token = current.set(trace)
    try:
        with intercepted():
            trace.returned = model.forward(*args, **named)
    finally:
        current.reset(token)
    if not any(p.is_loss for p in trace.protos):
        raise ModelError(no_loss(model))
    for proto in trace.protos:
        if proto.is_loss:
            _refuse_trained_label(trace, proto)
    return trace


def _refuse_trained_label(trace: Trace, proto: Proto) -> None:
    """Raise `ModelError` if the label of a loss depends on parameters: a label gets no gradient."""
    todo, seen = [proto.inputs[1]], set()
    while todo:
        value = todo.pop()
        if value is None or id(value.proto) in seen:
            continue
        seen.add(id(value.proto))
        made = value.proto.operation
        if made is not None and made.op == "call" and made.settings["function"].__name__ == "detach":
            continue
        if value.proto.module is not None or trace.is_parameter(value):
            raise ModelError(
                "the label of a loss depends on parameters, and no gradient goes back by way of a label: give the loss "
                "label.detach(), or a function of your own as prediction and zeros as label",
                proto.line,
            )
        todo += value.proto.inputs


def _symbol(trace: Trace, position: int, name: str, given: Any, example: Sequence[Any], before: Sequence[Any]) -> Any:
    if isinstance(given, Tensor):
        proto = Proto(trace.name(name), [], ("out",), _line(trace.model), pump=Pump(position))
        return trace.emit(proto, (Scope(), meta(given)))
    if isinstance(given, Edges):
        at = next((i for i, other in enumerate(example) if other is given._nodes), None)
        if at is None or at >= position:
            raise ModelError(
                f"the nodes of the edges '{name}' must be an argument of forward as well, before the edges themselves"
            )
        names = (name, before[at]._axis.name)
        trace.checks.append(lambda args: _check_nodes(args, position, at, names))
        return Symbol(trace, position, name, given, before[at])
    if isinstance(given, Space):
        return Symbol(trace, position, name, given)
    if isinstance(given, bool | int | np.integer):
        name = trace.field(name)
        trace.scalars[name] = lambda args: _whole(args[position], name)
        return Int("scalar", name)
    raise ModelError(
        f"argument '{name}' of the example is {'None' if given is None else 'a ' + type(given).__name__}; a model "
        f"takes tensors, integers, Seq, Tree and Edges" + _remedy(given)
    )


def _remedy(given: Any) -> str:
    if given is None:
        return ": give it a value, or leave it out if forward has a default"
    if isinstance(given, float):
        return ": a number to compute with is torch.tensor(...)"
    if isinstance(given, list | tuple | np.ndarray):
        return (
            ": numbers to compute with are torch.tensor(...), a sequence is Seq(torch.tensor(...)), integers that "
            "decide control flow are Seq([...])"
        )
    return ""


def _line(model: nn.Module) -> Line:
    """Returns the line where the model's forward begins."""
    code = getattr(inspect.unwrap(type(model).forward), "__code__", None)
    if code is None:
        return Line("?", 0, "")
    file, number = code.co_filename, code.co_firstlineno
    return Line(file, number, linecache.getline(file, number).strip())


def _whole(value: Any, name: str) -> int:
    if isinstance(value, Tensor) or int(value) != value:
        raise DataError(f"argument '{name}' must be a whole number, got {value!r}")
    if value < 0:
        raise DataError(f"argument '{name}' is {value}; integers that decide control flow count from 0 up")
    return int(value)


def _check_nodes(arguments: Sequence[Any], edges: int, nodes: int, names: tuple[str, str]) -> None:
    if arguments[edges]._nodes is not arguments[nodes]:
        raise DataError(
            f"the edges '{names[0]}' are not between the elements of '{names[1]}': they were made with another Seq. "
            f"Copied or pickled, the two stay together in one tuple or dict"
        )
