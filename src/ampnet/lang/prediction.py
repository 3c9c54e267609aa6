"""Prediction: the graph of what a model's ``forward`` returns. It has no losses, and takes no labels.

    training      x ──> layers ──┬──> classify ──> loss <── label          values that no loss depends on are removed
                                 └ (the returned value is not computed)
    prediction    x ──> layers ──────> classify ──> result                 values that no result depends on are removed

Both graphs share the model's parameters, and the same engine computes them. The second is compiled from another trace
of the same ``forward`` when a runtime predicts for the first time, so training does not pay for it.

**Format of a prediction.** It has the nesting of what ``forward`` returns (a tensor, tuples, lists, dictionaries):

    a value                       a tensor
    a value for each element      a tensor [elements, ...], in the order of the elements
    nested elements               a list with one of these for each outer element
    of a bucket of n instances    each row becomes n rows: [n, ...], [elements, n, ...]
    a number, None, a constant    itself

**Arguments.** Those that no result depends on (usually labels) may be omitted, or be None. An `Instance` built for
training is accepted as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.errors import DataError, ModelError
from ampnet.instance import Feed, Instance
from ampnet.lang import moves
from ampnet.lang.arguments import Arguments, arguments_of
from ampnet.lang.compiled import Compiled
from ampnet.lang.counting import counter
from ampnet.lang.instances import feed_of
from ampnet.lang.ints import needs_structure, parts
from ampnet.lang.proto import Plan, Proto
from ampnet.lang.scope import Axis, Scope
from ampnet.lang.sources import samples
from ampnet.lang.symbols import Each
from ampnet.lang.trace import Trace
from ampnet.lang.tracing import traced
from ampnet.lang.value import Value
from ampnet.nodes.result import Result
from ampnet.state import Ints, States
from ampnet.structure import Shelf, Structure
from ampnet.update.updater import no_sums

if TYPE_CHECKING:
    from ampnet.lang.gathered import Gathered


@dataclass(frozen=True, slots=True)
class Output:
    """One value that ``forward`` returns."""

    node: str
    """The Result that reports it."""
    axes: tuple[str, ...]
    """State fields of the axes that it has a value for each element of, outermost first; empty: one value."""
    row: Tensor
    """Shape and dtype of a row."""
    outer: Scope | None
    """For nested elements: the scope of the outer ones."""


class Prediction(Compiled):
    """The graph that computes what a model returns. See the head of this file."""

    def __init__(self, model: nn.Module, arguments: Arguments, **passes: bool) -> None:
        arguments, trace = copy(arguments), traced(model, arguments)
        self.returned, self.outputs = _end_in_results(trace)
        """The nest that ``forward`` returned in the trace, and the values in it that differ between instances."""
        super().__init__(model, trace, arguments, **{**passes, "dead": True})
        self._prune(trace)
        needed = self._needed(trace, arguments.example)
        trace.checks = [check for check in trace.checks if _asked(check, arguments.example) <= needed]
        arguments.optional = set(range(len(arguments.example))) - needed
        for position in arguments.optional:
            self._kinds[position] = object
        self._fields = {given.name: ("instance", *given.fields) for given in self.inputs}
        self.rebind()

    def _prune(self, trace: Trace) -> None:
        """Remove integers that only labels use."""
        ends = [value.scope for value in (p.inputs[0] for p in trace.protos if p.is_result) if value is not None]
        ints = [axis.size for scope in ends for axis in scope.axes]
        ints += [guard.choice.index for scope in ends for guard in scope.guards]
        found = {part.args[0] for part in parts(*ints) if part.op == "scalar"} | set(self._plan.scalars)
        trace.scalars = {name: get for name, get in trace.scalars.items() if name in found}
        self._counts = [counter(trace, scope) for scope in ends]

    def _needed(self, trace: Trace, example: Sequence[Any]) -> set[int]:
        found = {p.pump.position for p, _, _ in self._pumps if p.pump is not None and p.pump.position is not None}
        for get in (*trace.scalars.values(), *(trace.arrays[name] for name in self._arrays)):
            found |= _asked(get, example)
        return found

    def rebind(self) -> None:
        """Rebind the nodes to the parameters, after these were moved."""
        for node in self.parameterised().values():
            node.updater.rebind(no_sums)

    def gathered(self) -> Gathered:
        """Returns a new collector for the results of a stream."""
        from ampnet.lang.gathered import Gathered

        return Gathered(self)

    # -- instances

    def samples(self, data: Any) -> Iterable[Any]:
        """Returns the samples of a data set (see `ampnet.lang.sources`)."""
        return samples(data)

    def take(self, sample: Any) -> Instance:
        """Build the instance of one sample: a tuple of arguments, a dict of them by name, or an `Instance` (of this
        graph, or built for training)."""
        if isinstance(sample, Instance):
            ours = sample.fits(self._fields) and len(sample.feeds) == len(self._fields)
            return sample if ours else self._converted(sample)
        arguments = arguments_of(sample)
        if not self._arguments.may_hold(arguments):
            arguments = (*arguments, *[None] * (len(self._kinds) - len(arguments)))
        return self.instance(*arguments)

    def _checked(self, arguments: Sequence[Any]) -> Sequence[Any]:
        for position, given in enumerate(arguments):
            if given is None and position not in self._arguments.optional:
                raise DataError(
                    f"argument '{self._arguments.names[position]}' of {self.name} is missing, and what forward returns "
                    f"depends on it. Only arguments that no result depends on (labels) can be left out"
                )
        return super()._checked(arguments)

    def _made(self, given: Sequence[Any], count: int) -> Instance:
        made = super()._made(given, count)
        for output in self.outputs:
            if output.outer is not None:
                made._memo[output.node] = self._elements(output.outer, self._checked(given))
        return made

    def _elements(self, scope: Scope, arguments: Sequence[Any]) -> Ints:
        """Returns the positions of a scope's elements in one instance: ``[axes, elements]``, in order."""
        plan, at = Plan(tuple(self._trace.scalars)), Scope()
        sizes = [get(arguments) for get in self._trace.scalars.values()]
        states = States(("instance", *self._trace.scalars), np.array([[0, *sizes]]).T)
        shelf = Shelf()
        shelf.add({0: Structure(**{name: self._trace.arrays[name](arguments) for name in self._arrays})})
        for axis in scope.axes:
            generate = moves.spread(plan, at, axis)
            states = (generate(states, shelf.at(states)) if needs_structure(axis.size) else generate(states))[1]
            at = at.entering(axis)
        return np.array([states.column(axis.name) for axis in scope.axes])

    def _results(self, arguments: Sequence[Any]) -> int:
        return max(1, sum(count(arguments) for count in self._counts))

    def _converted(self, given: Instance) -> Instance:
        """Convert an instance built for training to one of this graph."""
        feeds: dict[str, Feed] = {}
        numbers = {name: int(feed.columns[i, 0]) for feed in given.feeds.values() for i, name in enumerate(feed.fields)}
        arrays = {} if given.structure is None else given.structure.arrays
        lacking = [name for name in self._plan.scalars if name not in numbers]
        lacking += [name for name in self._arrays if name not in arrays]
        lacking += [f"{o.axes[0]}, as an argument" for o in self.outputs if o.outer is not None]
        for proto, fields, row in self._pumps:
            feed = given.feeds.get(proto.name)
            if feed is None and proto.pump is not None and proto.pump.constant is not None and not lacking:
                rows, places = self._payload(proto, (), row, given.records)
                scalars = {name: int(numbers[name]) for name in self._plan.scalars}
                rows = rows.flatten(0, 1) if rows is not None and given.records > 1 else rows
                feeds[proto.name] = feed_of(rows, places, fields, scalars, given.records)
            elif feed is None or feed.payload is None:
                lacking.append(proto.name)
            elif not lacking:
                columns = feed.columns[[feed.fields.index(name) for name in fields]]
                feeds[proto.name] = Feed(feed.payload, fields, columns, feed.offsets)
        if lacking:
            raise DataError(
                f"this Instance has no '{lacking[0]}', which {self.name} does not need in training, but for what it "
                f"returns: give predict the arguments of forward instead of an Instance"
            )
        return Instance(feeds, given.structure if self._structured else None, given.records, 1)


def _end_in_results(trace: Trace) -> tuple[Any, list[Output]]:
    """Replace losses by results. Returns the returned nest, and the outputs in it."""
    trace.protos = [proto for proto in trace.protos if not proto.is_loss]
    model, outputs = type(trace.model).__name__, []
    with torch.enable_grad():
        for path, leaf in _paths(trace.returned, "result"):
            value, axes = leaf, list[Axis]()
            while isinstance(value, Each):
                axes.append(value._axis)
                value = value.value
            if leaf is None or isinstance(leaf, bool | int | float | str | Tensor):
                continue
            if not isinstance(value, Value):
                raise ModelError(
                    f"forward of {model} returns a {type(leaf).__name__} ({path}); predict gives tensors: return "
                    f"values that layers computed, or families of them, in tuples, lists and dictionaries"
                )
            if not axes:
                value = trace.bring(value)
            proto = Proto(
                trace.name(path), [value], (), value.proto.line, lambda plan: Result(), ("in",), is_result=True
            )
            trace.emit(proto)
            outer = Scope(tuple(axes[:-1])) if len(axes) > 1 else None
            outputs.append(Output(proto.name, tuple(axis.name for axis in axes), value.row, outer))
    if not outputs:
        raise ModelError(
            f"forward of {model} returns {'None' if trace.returned is None else 'no value that it computed'}, so there "
            f"is nothing to predict: let it return its predictions, for example 'return scores' beside loss(scores, y)"
        )
    return trace.returned, outputs


def _paths(nest: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the values of a nest, with names made from their paths."""
    if isinstance(nest, tuple | list):
        for i, item in enumerate(nest):
            yield from _paths(item, f"{path}_{getattr(nest, '_fields', range(len(nest)))[i]}")
    elif isinstance(nest, dict):
        for name, item in nest.items():
            yield from _paths(item, f"{path}_{name}")
    else:
        yield path, nest


class _Recording(list[Any]):
    """A list of arguments that records which indices are read."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        super().__init__(arguments)
        self.asked: set[int] = set()

    def __getitem__(self, position: Any) -> Any:
        self.asked.add(position)
        return super().__getitem__(position)


def _asked(get: Callable[[Sequence[Any]], Any], example: Sequence[Any]) -> set[int]:
    """Returns the positions of the arguments that a function reads."""
    watched = _Recording(example)
    get(watched)
    return watched.asked
