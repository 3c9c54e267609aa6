"""Compiled: a model's graph, which also builds the instances to run through it.

    graph = compile(model, *example)          the example fixes the kinds and shapes of the arguments
    graph.instance(*arguments)                one instance, to be pumped; also by name, or from a dict of names
    graph.instances(dataset)                  an instance for each sample
    graph.bucket(100, *arguments)             a hundred instances with the same control flow, as one: 100 rows a message
    print(graph.explain())                    every value: its scope, state, key, and the line that made it

The graph shares the model's parameters, so training the graph trains the model.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.errors import DataError, GraphError, ModelError
from ampnet.graph import Graph
from ampnet.instance import Feed, Instance
from ampnet.lang import moves
from ampnet.lang.arguments import Arguments, arguments_of
from ampnet.lang.calls import intercepted
from ampnet.lang.convert import convert
from ampnet.lang.explain import explain, noted
from ampnet.lang.ints import Int, function, needs_structure, parts
from ampnet.lang.line import Line
from ampnet.lang.lower import Note, lower, needs
from ampnet.lang.model import no_loss
from ampnet.lang.passes import fuse_linear, fuse_loops, fuse_rows, remove_dead
from ampnet.lang.ragged import Flat
from ampnet.lang.scope import Axis, Scope
from ampnet.lang.sources import samples
from ampnet.lang.spaces import Edges, Space
from ampnet.lang.symbols import Symbol
from ampnet.lang.trace import Plan, Proto, Pump, Trace, current, meta
from ampnet.nodes import Group, Rows, Ungroup
from ampnet.nodes.program import moved
from ampnet.replicas.replicate import Replicate, replicate
from ampnet.state import Ints, States
from ampnet.structure import Shelf, Structure
from ampnet.tile import tile

if TYPE_CHECKING:
    from ampnet.lang.prediction import Prediction


def compile(
    model: nn.Module,
    /,
    *example: Any,
    remove_dead: bool = True,
    fuse_linear: bool = True,
    fuse_loops: bool = True,
    fuse_rows: bool = True,
    replicas: int | Mapping[str, int | Replicate] | Replicate = 1,
    tiles: Mapping[str, int] | None = None,
    **named: Any,
) -> Compiled:
    """Compile a model to a graph. ``example`` is any one instance: the arguments of ``forward``, by position or name.

    ``compile(model, {"tokens": ..., "label": ...})`` passes the arguments as a dict; this also works for an argument
    with the name of an option below. An argument that the example omits becomes a constant of the graph: its default.

    Each switch disables one pass (see `ampnet.lang.passes`); none of them changes a gradient.

    ``replicas``: the number of copies of the whole model; or ``{"cell": 4}``, copies of single modules by their names
    in the model (a pattern: all modules that match, together). `Replicate` sets how messages are distributed and how
    copies are synchronised. ``tiles``: ``{"fc": 2}`` splits a large `nn.Linear` into two parts, each a separate node.
    """
    arguments = Arguments(model, example, named)
    trace = traced(model, arguments)
    graph = Compiled(model, trace, arguments, remove_dead, fuse_linear, fuse_loops, fuse_rows)
    for module, count in (tiles or {}).items():
        tile(graph, module.replace(".", "_"), count)
    wanted = [(None, replicas)] if isinstance(replicas, int | Replicate) else list(replicas.items())
    for name, how in wanted:
        given = Replicate(how) if isinstance(how, int) else how
        if name is None and given.n == 1:  # tiles cannot be replicated, nor need they
            continue
        replicate(graph, name and name.replace(".", "_"), given.n, route=given.route, sync=given.sync)
    return graph


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


def _kind(given: Any) -> type:
    """Returns the type that an argument must have."""
    return Tensor if isinstance(given, Tensor) else int if isinstance(given, int | np.integer) else type(given)


class Compiled(Graph):
    """The graph of a model; converts arguments to instances. Built by `compile`."""

    def __init__(
        self,
        model: nn.Module,
        trace: Trace,
        arguments: Arguments,
        dead: bool,
        linear: bool,
        loops: bool,
        rows: bool,
    ) -> None:
        super().__init__(type(model).__name__)
        self.model = model
        protos = list(trace.protos)
        if dead:
            protos = remove_dead(protos)
        if linear:
            protos = fuse_linear(protos)
        if loops:
            protos = fuse_loops(protos, trace.loops)
        if rows:
            protos = fuse_rows(protos)
        needed = needs(trace, protos)
        self._trace, self._plan, self._arrays = trace, Plan(needed.scalars), needed.arrays
        self.origins: list[Note] = lower(self, protos, self._plan)
        """The origin (line, scope, fields) of every node and input."""
        self._pumps = [(p, self._plan.fields(p.scope), p.outputs[0].row) for p in protos if p.pump is not None]
        self._losses = [p.scope for p in protos if p.is_loss]
        self._filled = list(dict.fromkeys(p.puts_together for p in protos if p.puts_together is not None))
        self._arguments, self._kinds = arguments, [_kind(e) for e in arguments.example]
        self._labels = _only_labels(protos)
        pumps = [(p.name, p.pump) for p in protos if p.pump is not None and p.pump.column is None]
        arguments.optional = {at for name, pump in pumps if name in self._labels and (at := pump.position) is not None}
        self._counts = [self._counter(scope) for scope in self._losses]
        self._structured = any(node.needs_structure for node in self.nodes.values())
        self._passes = {"dead": dead, "linear": linear, "loops": loops, "rows": rows}
        self._prediction: Prediction | None = None
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self.notes = noted(self.origins)

    def check_parameters(self) -> None:
        now = dict(self.model.named_parameters(remove_duplicate=False))
        replaced = [name for name, parameter in self._parameters.items() if now.get(name) is not parameter]
        if replaced:
            fault = (
                f"parameter '{replaced[0]}' of {self.name} ({len(replaced)} of {len(self._parameters)} in all) was "
                f"replaced by another object after the model was compiled: the graph would train the old one. Usual "
                f"causes: load_state_dict(assign=True), a layer that was exchanged. Remedy: compile the model again, "
                f"or load values into the parameters that are there"
            )
            raise GraphError([fault])

    def module(self) -> nn.ModuleDict:
        """Returns all parameters, by node. The model's own ``state_dict`` has them under the model's names."""
        return super().module()

    def to(self, *args: Any, **kwargs: Any) -> Compiled:
        """Move or cast the model's parameters, as `torch.nn.Module.to` does. Must not be called during a run.

        Instances built afterwards have tensors of the new dtype.
        """
        self.model.to(*args, **kwargs)
        super().to(*args, **kwargs)
        for node in self.nodes.values():
            if isinstance(node, Rows):
                node.to(*args, **kwargs)
        for place, (proto, fields, row) in enumerate(self._pumps):
            dtype = moved(torch.empty(0, dtype=row.dtype), *args, **kwargs).dtype
            self._pumps[place] = proto, fields, torch.empty(row.shape, dtype=dtype, device="meta")
            if proto.pump is not None and proto.pump.constant is not None:
                proto.pump.constant = moved(proto.pump.constant, *args, **kwargs)
        self._arguments = self._arguments.moved(lambda tensor: moved(tensor, *args, **kwargs))
        self._prediction = None
        return self

    @property
    def prediction(self) -> Prediction:
        """Returns the graph that computes what ``forward`` returns, with the same parameters; compiled at first use.

        Raises `ModelError` if ``forward`` returns no computed value.
        """
        if self._prediction is None:
            from ampnet.lang.prediction import Prediction

            self._prediction = Prediction(self.model, self._arguments, **self._passes)
        return self._prediction

    def explain(self, width: int | None = 160) -> str:
        """Returns a table of every value: its node, scope, key and further state fields, and the line that made it.

        The text of a line is truncated to keep the table within ``width`` columns; None: never.
        """
        return explain(self, self.origins, width)

    # -- instances

    def instance(self, /, *arguments: Any, **named: Any) -> Instance:
        """Build one instance from the arguments of ``forward``: by position, by name, as a dict of names, or in a
        `torch_geometric.data.Data`. In inference a label may be None or, by name, omitted.

        Plain data are converted to the types of the example (see `ampnet.lang.convert`).
        """
        return self._made(self._arguments.of(arguments, named), 1)

    def instances(self, source: Any, *, shuffle: bool = False, seed: int | None = None) -> Iterator[Instance]:
        """Yields an instance for each sample of a source: a tuple of arguments, a dict of them, or an `Instance`.

        ``source`` is an iterable, a map-style Dataset, or a DataLoader (see `ampnet.lang.sources`). ``shuffle`` reads
        it in a random order, which ``seed`` fixes; pass a different seed in each epoch.
        """
        return self._each(samples(source, shuffle, seed))

    def _each(self, source: Iterable[Any]) -> Iterator[Instance]:
        for sample in source:
            # None is not an argument: the reader of the stream raises the error.
            made = sample is None or isinstance(sample, Instance)
            yield sample if made else self.instance(*arguments_of(sample))

    def read(self, source: Any) -> Iterable[Instance]:
        """Yields instances built from the samples of a data set; an `Instance` is passed on unchanged."""
        if isinstance(source, list | tuple) and all(isinstance(one, Instance) for one in source):
            return source
        return self.instances(source)

    def bucket(self, count: int, /, *arguments: Any, **named: Any) -> Instance:
        """Several instances with the same control flow, as one whose messages have a row for each of them.

        Wherever `instance` takes a row, this takes ``count`` rows: a tensor of shape ``[count, ...]``, a column of
        shape ``[elements, count, ...]``. Integers, lengths and trees are shared by all. A bucket reduces the overhead
        per instance; its losses are the means of its instances' losses. Not available for models that combine
        elements (`reduce`, `messages`, `fold_tree`): the rows of different instances would mix.
        """
        if any(isinstance(n, Group | Ungroup) for n in self.nodes.values()):
            raise DataError(f"{self.name} combines elements, so its instances cannot be in buckets: use instance")
        if count < 1:
            raise DataError(f"a bucket of {count} instances")
        return self._made(self._arguments.of(arguments, named), count)

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

    # -- the number of results of an instance, in inference

    def _results(self, arguments: Sequence[Any]) -> int:
        total = 0
        for count in self._counts:
            total += count(arguments)
        if total < 1:
            raise DataError("no loss would be reached by this instance")
        return total

    def _counter(self, scope: Scope) -> Callable[[Sequence[Any]], int]:
        """Returns the number of messages that an instance has at a scope."""
        real = {a.real for a in scope.axes}
        guards = [g for g in scope.guards if g not in real]
        if not scope.axes and not guards:
            return lambda arguments: 1
        sizes = self._trace.scalars
        axis = scope.axes[0] if len(scope.axes) == 1 else None
        if axis is not None and not guards and isinstance(axis.size, Int) and axis.size.op == "scalar":
            return sizes[axis.size.args[0]]
        # Follow the path to the scope with one state that stands for the instance.
        plan, steps, at = Plan(tuple(sizes)), [], Scope()
        ints = [*(a.size for a in scope.axes), *(g.choice.index for g in guards)]
        arrays = {part.args[0]: self._trace.arrays[part.args[0]] for part in parts(*ints) if part.op == "lookup"}
        for axis in scope.axes:
            steps.append((moves.spread(plan, at, axis), needs_structure(axis.size)))
            at = at.entering(axis)
        tests = [(function(g.choice.index, plan.fields(at)), needs_structure(g.choice.index), g.way) for g in guards]

        def count(arguments: Sequence[Any]) -> int:
            shelf = Shelf()
            shelf.add({0: Structure(**{name: get(arguments) for name, get in arrays.items()})})
            states = States(("instance", *sizes), np.array([[0, *(get(arguments) for get in sizes.values())]]).T)
            for generate, structured in steps:
                states = generate(states, shelf.at(states))[1] if structured else generate(states)[1]
            keep = np.ones(len(states), dtype=bool)
            for test, structured, way in tests:
                keep &= (test(states, shelf.at(states)) if structured else test(states)) == way
            return int(keep.sum())

        return count


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
    return Feed(rows, fields, columns, offsets)


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
