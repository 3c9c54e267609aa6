"""Compiled: a model's graph, which also builds the instances to run through it.

    graph = compile(model, *example)          the example fixes the kinds and shapes of the arguments
    graph.instance(*arguments)                one instance, to be pumped; also by name, or from a dict of names
    graph.instances(dataset)                  an instance for each sample
    graph.bucket(100, *arguments)             a hundred instances with the same control flow, as one: 100 rows a message
    print(graph.explain())                    every value: its scope, state, key, and the line that made it

The graph shares the model's parameters, so training the graph trains the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ampnet.coming import Coming, Made
from ampnet.errors import DataError, GraphError
from ampnet.instance import Instance
from ampnet.lang.arguments import Arguments, arguments_of
from ampnet.lang.explain import explain, noted
from ampnet.lang.instances import InstanceMaker
from ampnet.lang.passes import fuse_linear, fuse_loops, fuse_rows, remove_dead
from ampnet.lang.sources import samples
from ampnet.lang.trace import Trace
from ampnet.lang.tracing import traced
from ampnet.nodes import Group, Rows, Ungroup
from ampnet.nodes.program import moved
from ampnet.recipe import Recipe
from ampnet.replicas.replicate import Replicate, replicate
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
    passes = {"remove_dead": remove_dead, "fuse_linear": fuse_linear, "fuse_loops": fuse_loops, "fuse_rows": fuse_rows}
    graph.recipe = Recipe(model, example, named, passes)
    for module, count in (tiles or {}).items():
        tile(graph, module.replace(".", "_"), count)
    wanted = [(None, replicas)] if isinstance(replicas, int | Replicate) else list(replicas.items())
    for name, how in wanted:
        given = Replicate(how) if isinstance(how, int) else how
        if name is None and given.n == 1:  # tiles cannot be replicated, nor need they
            continue
        replicate(graph, name and name.replace(".", "_"), given.n, route=given.route, sync=given.sync)
    return graph


class Compiled(InstanceMaker):
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
        protos = list(trace.protos)
        if dead:
            protos = remove_dead(protos)
        if linear:
            protos = fuse_linear(protos)
        if loops:
            protos = fuse_loops(protos, trace.loops)
        if rows:
            protos = fuse_rows(protos)
        super().__init__(type(model).__name__, trace, protos, arguments)
        self.model = model
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
        self.record("to", *args, **kwargs)
        return self

    @property
    def prediction(self) -> Prediction:
        """Returns the graph that computes what ``forward`` returns, with the same parameters; compiled at first use.

        Raises `ModelError` if ``forward`` returns no computed value.
        """
        if self._prediction is None:
            self._prediction = self.another_prediction(self.model)
        return self._prediction

    def another_prediction(self, model: nn.Module) -> Prediction:
        """Returns a new graph like `prediction`, of this model or of a copy of it."""
        from ampnet.lang.prediction import Prediction

        return Prediction(model, self._arguments, **self._passes)

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
        given = samples(source, shuffle, seed)
        return Made(given, self._made_of) if isinstance(given, list | tuple) else map(self._made_of, given)

    def _made_of(self, sample: Any) -> Instance:
        # None is not an argument: the reader of the stream raises the error.
        made = sample is None or isinstance(sample, Instance)
        return sample if made else self.instance(*arguments_of(sample))

    def read(self, source: Any) -> Iterable[Instance]:
        """Yields instances built from the samples of a data set; an `Instance` is passed on unchanged."""
        if isinstance(source, Coming):
            return source
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
