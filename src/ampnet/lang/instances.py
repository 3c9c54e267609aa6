"""Instances: arguments of ``forward`` become the messages that a graph is fed with.

    arguments ──> of the types compiled for ──┬──> integers: scalars of the states, arrays of the structure
                                              └──> rows of every input, with the state of each ──> Instance

`InstanceMaker` is the graph of a traced model with what this needs; `ampnet.lang.compiled.Compiled` is its front.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.errors import DataError
from ampnet.graph import Graph
from ampnet.instance import Feed, Instance
from ampnet.lang.arguments import Arguments
from ampnet.lang.convert import convert
from ampnet.lang.counting import counter
from ampnet.lang.edges import Edges
from ampnet.lang.ints import Int
from ampnet.lang.lower import Note, lower, needs
from ampnet.lang.proto import Plan, Proto
from ampnet.lang.ragged import Flat
from ampnet.lang.scope import Axis
from ampnet.lang.trace import Trace
from ampnet.narrow import narrow
from ampnet.state import Ints
from ampnet.structure import Structure


class InstanceMaker(Graph):
    """A graph lowered from protos, and the conversion of arguments to instances of it."""

    def __init__(self, name: str, trace: Trace, protos: Sequence[Proto], arguments: Arguments) -> None:
        super().__init__(name)
        needed = needs(trace, protos)
        self._trace, self._plan, self._arrays = trace, Plan(needed.scalars), needed.arrays
        self.origins: list[Note] = lower(self, protos, self._plan)
        """The origin (line, scope, fields) of every node and input."""
        self._pumps = [(p, self._plan.fields(p.scope), p.outputs[0].row) for p in protos if p.pump is not None]
        self._filled = list(dict.fromkeys(p.puts_together for p in protos if p.puts_together is not None))
        self._arguments, self._kinds = arguments, [_kind(e) for e in arguments.example]
        self._labels = _only_labels(protos)
        pumps = [(p.name, p.pump) for p in protos if p.pump is not None and p.pump.column is None]
        arguments.optional = {at for name, pump in pumps if name in self._labels and (at := pump.position) is not None}
        self._counts = [counter(trace, p.scope) for p in protos if p.is_loss]
        self._structured = any(node.needs_structure for node in self.nodes.values())

    def _made(self, given: Sequence[Any], count: int) -> Instance:
        arguments = self._checked(given)
        scalars, arrays = self._control(arguments)
        feeds = {}
        for proto, fields, row in self._pumps:
            rows, places = self._payload(proto, arguments, row, count)
            if rows is not None and count > 1:
                rows = rows.flatten(0, 1)
            feeds[proto.name] = feed_of(rows, places, fields, scalars, count)
        structure = Structure(**arrays) if self._structured else None
        return Instance(feeds, structure, count, self._results(arguments))

    def _checked(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Returns the arguments, each of the type compiled for; plain data are converted."""
        out: list[Any] | None = None
        for position, (kind, given) in enumerate(zip(self._kinds, arguments, strict=True)):
            if isinstance(given, kind) or (given is None and kind is Tensor):  # a label that is not known
                continue
            if kind is int and isinstance(given, np.integer):
                continue
            out = list(arguments) if out is None else out
            name, like = self._arguments.names[position], self._arguments.example[position]
            try:
                nodes = out[self._position(like._nodes)] if isinstance(like, Edges) else None
                out[position] = convert(given, like, partial(self._dtype, position), nodes)
            except DataError as error:
                raise DataError(f"argument '{name}' of {self.name}: {error}") from None
            if not isinstance(out[position], kind):
                found = "None" if given is None else f"a {type(given).__name__}"
                hint = ": what decides control flow is given as plain integers" * (kind is int and found == "a Tensor")
                raise DataError(f"argument '{name}' of {self.name} is {found}, expected a {kind.__name__}{hint}")
        return arguments if out is None else out

    def _position(self, nodes: Any) -> int:
        return next(i for i, part in enumerate(self._arguments.example) if part is nodes)

    def _dtype(self, position: int, column: str | None) -> torch.dtype | None:
        """Returns the dtype compiled for an argument or a column of it; None if the graph does not read it."""
        for proto, _, row in self._pumps:
            if proto.pump is not None and (proto.pump.position, proto.pump.column) == (position, column):
                return row.dtype
        return None

    def _control(self, arguments: Sequence[Any]) -> tuple[dict[str, int], dict[str, Ints]]:
        """Returns the integers of an instance: scalars of its states, and arrays of its structure."""
        for check in self._trace.checks:
            check(arguments)
        for axis in self._filled:
            size = axis.size
            if isinstance(size, Int) and size.op == "scalar" and self._trace.scalars[size.args[0]](arguments) == 0:
                raise DataError(f"'{axis.name}' has no element, and the model puts all its elements together")
        scalars = {name: self._trace.scalars[name](arguments) for name in self._plan.scalars}
        return scalars, {name: self._trace.arrays[name](arguments) for name in self._arrays}

    def _payload(
        self, proto: Proto, arguments: Sequence[Any], row: Tensor, count: int
    ) -> tuple[Tensor | None, list[tuple[Axis, Ints]]]:
        """Returns ``count`` rows for each message of an input, and their positions on its axes."""
        pump = proto.pump
        assert pump is not None
        if pump.constant is not None:
            constant = pump.constant.unsqueeze(0)
            return constant if count == 1 else constant.expand(1, count, *row.shape), []
        assert pump.position is not None
        places: list[tuple[Axis, Ints]] = []
        if pump.column is None:
            given = arguments[pump.position]
            rows = None if given is None else given.unsqueeze(0)
        else:
            given, places = pump.source._table(arguments), pump.source._places(arguments, pump.column)
            real = {axis.real for axis, _ in places}
            everywhere = all(guard in real for guard in proto.scope.guards)
            unknown = proto.name in self._labels and everywhere and pump.column not in given._columns
            none = isinstance(given, Flat) and not len(given)  # inner sequences of no outer element
            if none:
                rows = torch.empty(0, *row.shape, dtype=row.dtype)
            else:
                rows = None if unknown else given._column(pump.column)
            at = given._given.get(pump.column)
            if at != pump.at and not unknown and not none:
                raise DataError(
                    f"column '{pump.column}' of {given!r} is given for {at or 'all nodes'}; the model was compiled for "
                    f"one that is given for {pump.at or 'all nodes'}"
                )
        if rows is None:
            if proto.name not in self._labels:
                raise DataError(f"'{proto.name}' is missing; only labels may be, in inference")
        else:
            wanted = row.shape if count == 1 else (count, *row.shape)
            if not isinstance(rows, Tensor):
                raise DataError(f"'{proto.name}' is no tensor; the model was compiled for rows of numbers there")
            if rows.shape[1:] != wanted or rows.dtype != row.dtype:
                raise DataError(
                    f"'{proto.name}' has {tuple(rows.shape[1:])} {rows.dtype} for a message; the model was compiled "
                    f"for {tuple(row.shape)} {row.dtype}" + (f", of which a bucket has {count}" * (count > 1))
                )
        return rows, places

    def _results(self, arguments: Sequence[Any]) -> int:
        """Returns the number of results that the instance reports in inference."""
        total = 0
        for count in self._counts:
            total += count(arguments)
        if total < 1:
            raise DataError("no loss would be reached by this instance")
        return total


def feed_of(
    rows: Tensor | None,
    places: Sequence[tuple[Axis, Ints]],
    fields: tuple[str, ...],
    scalars: dict[str, int],
    each: int,
) -> Feed:
    """Build the messages of one input."""
    count = len(places[0][1]) if places else 1
    columns = np.zeros((len(fields), count), dtype=np.int64)
    for i, value in enumerate(scalars.values(), start=len(fields) - len(scalars)):
        columns[i] = value
    for axis, place in places:
        columns[fields.index(axis.name)] = place
    offsets = None if each == 1 else np.arange(count + 1) * each
    return Feed(rows, fields, narrow(columns), offsets)


def _kind(given: Any) -> type:
    """Returns the type that an argument must have."""
    return Tensor if isinstance(given, Tensor) else int if isinstance(given, int | np.integer) else type(given)


def _only_labels(protos: Sequence[Proto]) -> set[str]:
    """Returns the inputs that are used only as labels of losses."""
    out = set()
    for proto in protos:
        if proto.pump is None:
            continue
        value = proto.outputs[0]
        users = [(p, i) for p in protos for i, v in enumerate(p.inputs) if v is value]
        if users and all(p.is_loss and i == 1 for p, i in users):
            out.add(proto.name)
    return out
