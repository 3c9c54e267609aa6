"""Recipe: what a graph was made from, so that a process on another machine can make it again.

    here     compile(model, *example) ──> tile ──> replicate ──> to          each call is recorded in `graph.recipe`
             recipe.packed() ─────────── bytes, without weights ──────┐
    there    recipe = unpacked(bytes); graph = recipe.make()  <───────┘      the same calls again
             digest(graph) must be the digest here

Code travels, and is run: a recipe is pickled (with cloudpickle, so local classes and lambdas work). It may go over a
trusted channel only (see docs/cluster.md). Weights are left out: a parameter is packed as its shape and type, and is
zero when it is unpacked. Buffers are packed with the model.

Both sides must make the same graph, or rows of one worker would be read as something else by another. `digest` covers
the nodes in their order, their ports and parameters, the wiring, the inputs and the copies.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from ampnet.errors import AmpnetError, GraphError

if TYPE_CHECKING:
    from ampnet.graph import Graph


class MakesGraph(Protocol):
    """Anything that makes a graph, on any machine."""

    def make(self) -> Graph:
        """Returns a new graph."""


@dataclass(slots=True)
class Recipe:
    """The calls that made a compiled graph. See the head of this file."""

    model: nn.Module
    example: tuple[Any, ...]
    named: Mapping[str, Any]
    passes: Mapping[str, bool]
    """The switches of `compile`."""
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    """Of parameters and buffers, as they were when the model was compiled."""
    steps: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """Later calls: "tile", "replicate" or "to", and their arguments."""

    def __post_init__(self) -> None:
        if not self.dtypes:
            self.dtypes = {name: tensor.dtype for name, tensor in _tensors(self.model)}

    def add(self, call: str, *args: Any, **kwargs: Any) -> None:
        """Record a call that changed the graph."""
        self.steps.append((call, args, kwargs))

    def make(self) -> Graph:
        """Repeat the calls on this recipe's model. Returns the graph."""
        from ampnet.lang.compiled import compile
        from ampnet.replicas.replicate import replicate
        from ampnet.tile import tile

        for name, tensor in _tensors(self.model):
            if tensor.dtype != self.dtypes[name]:
                tensor.data = tensor.data.to(self.dtypes[name])
        named: dict[str, Any] = {**self.passes, **self.named}
        graph: Graph = compile(self.model, *self.example, **named)
        calls: dict[str, Callable[..., Any]] = {"tile": tile, "replicate": replicate}
        for call, args, kwargs in self.steps:
            if call == "to":
                graph.to(*args, **kwargs)
            else:
                calls[call](graph, *args, **kwargs)
        return graph


def _tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def packed(given: object) -> bytes:
    """Returns an object as bytes, with its parameters as shapes only."""
    cloudpickle: Any = importlib.import_module("ray.cloudpickle")

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, one: Any) -> Any:
            if type(one) is nn.Parameter:
                return _zeros, (tuple(one.shape), one.dtype, one.requires_grad)
            return super().reducer_override(one)

    file = io.BytesIO()
    try:
        Pickler(file).dump(given)
    except (TypeError, AttributeError, pickle.PicklingError, RuntimeError) as error:
        raise AmpnetError(
            f"the model, its example or its update policies cannot be sent to other machines: {error}. Usual causes: "
            f"an open file, a lock or a generator as an attribute of the model; create it in forward, or leave it out"
        ) from error
    return file.getvalue()


def unpacked(given: bytes) -> Any:
    """Returns the object of `packed`. Runs code that is in the bytes: for bytes of the same user only."""
    return pickle.loads(given)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=requires_grad)


def recipe_of(graph: Graph) -> MakesGraph:
    """Returns the recipe of a graph; raises `GraphError` if it has none."""
    if graph.recipe is None:
        raise GraphError(
            [
                f"'{graph.name}' was wired by hand, so no other machine can make it again. Remedy: compile a Model, or "
                f"set graph.recipe to an object whose method make() returns the graph"
            ]
        )
    return graph.recipe


def digest(graph: Graph) -> str:
    """Returns a digest of everything that several workers must agree on. Weights do not count."""
    nodes = [
        [
            name,
            type(node).__name__,
            list(node.inputs),
            list(node.outputs),
            node.role,
            [[p, list(w.shape), str(w.dtype)] for p, w in getattr(node, "parameters", {}).items()],
        ]
        for name, node in graph.nodes.items()
    ]
    copies = [[name, copy.of, copy.number, copy.count, copy.by_instance] for name, copy in graph.copies.items()]
    groups = [group.settings() for group in graph.replicas.values()]
    inputs = [[given.name, given.target, list(given.fields)] for given in graph.inputs]
    parts = [nodes, sorted(map(list, graph.edges)), inputs, copies, groups]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
