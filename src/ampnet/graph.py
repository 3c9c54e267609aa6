"""Graph: IR nodes by name, wired port to port.

    graph = Graph("rnn")
    graph.add("linear", Linear(256, 128))
    graph.connect("concat", "linear")            one port on each side: its name can be omitted
    graph.connect("cond.again", "phi.loop")
    graph.input("tokens", "embedding", fields=("t", "length"))     messages that the controller pumps

Every output port leads to one input port and every input port is fed by one output port or one input; to send a value
to several places use Bcast, to merge several branches use Phi. Nothing is checked while wiring: `validate` reports all
faults at once, and every runtime calls it before a run.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from ampnet.errors import GraphError
from ampnet.loops import back_edges, in_order
from ampnet.nodes.node import Node
from ampnet.nodes.tied import module_dict
from ampnet.nodes.transform import Parameterised
from ampnet.recipe import MakesGraph, Recipe
from ampnet.replicas.group import Copy, Replicas
from ampnet.tile import Tiled, retie, whole_gradients, whole_modules

AnyNode = TypeVar("AnyNode", bound=Node)

CONTROLLER = "controller"
"""The controller's name as a neighbour of nodes."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of an edge."""

    node: str
    port: int


@dataclass(frozen=True, slots=True)
class Input:
    """A port where the controller pumps messages in."""

    name: str
    target: str
    """``node`` or ``node.port``."""
    fields: tuple[str, ...]
    """State fields of its messages besides ``instance``."""


@dataclass(slots=True)
class Wiring:
    """The resolved edges between ports."""

    forward: dict[End, End] = field(default_factory=dict)
    """Output port -> input port. The controller's output ports are the inputs, in order."""
    backward: dict[End, End] = field(default_factory=dict)
    """Input port -> output port: the direction of gradients."""


class Graph:
    """A static graph of IR nodes. See the head of this file."""

    def __init__(self, name: str = "model") -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.inputs: list[Input] = []
        self.edges: list[tuple[str, str]] = []
        """As given to `connect`."""
        self.runtime: weakref.ref[object] | None = None
        """The runtime that owns the nodes: the last one made."""
        self.notes: dict[str, str] = {}
        """Further text for drawings, by node or input."""
        self.faults: list[str] = []
        """Faults found while wiring; reported by `validate`."""
        self.tiled: dict[str, Tiled] = {}
        """The Linears that `tile` has split, by their original names."""
        self.replicas: dict[str, Replicas] = {}
        """The nodes with parameters that `replicate` has copied, by their original names."""
        self.copies: dict[str, Copy] = {}
        """Every node that is one of several copies."""
        self.recipe: MakesGraph | None = None
        """How another machine can make this graph again; None: it was wired by hand."""

    def record(self, call: str, *args: Any, **kwargs: Any) -> None:
        """Add a call that changes this graph to its recipe."""
        if isinstance(self.recipe, Recipe):
            self.recipe.add(call, *args, **kwargs)

    def add(self, name: str, node: AnyNode) -> AnyNode:
        """Add a node to the graph. Returns it."""
        if name in self.nodes or name == CONTROLLER or "." in name or not name:
            self.faults.append(f"node name '{name}' is taken, empty, or has a dot in it")
            return node
        twin = next((n for n, other in self.nodes.items() if other is node), None)
        if twin is not None:
            self.faults.append(f"nodes '{twin}' and '{name}' are one object; make one node for each name")
        else:
            node.name = name
        self.nodes[name] = node
        return node

    def connect(self, source: str, target: str) -> None:
        """Add an edge from an output port to an input port: ``"node.port"``, or ``"node"`` if it has only one."""
        self.edges.append((source, target))

    def chain(self, *names: str) -> None:
        """`connect` each name to the next."""
        for source, target in itertools.pairwise(names):
            self.connect(source, target)

    def input(self, name: str, target: str, fields: Sequence[str] = ()) -> None:
        """Declare an input: messages ``name`` of an `Instance` are pumped into this port. ``fields``: besides
        ``instance``."""
        self.inputs.append(Input(name, target, tuple(fields)))

    def resolve(self) -> tuple[Wiring, list[str]]:
        """Returns the edges by port number, and the faults found."""
        wiring, faults = Wiring(), list(self.faults)
        names = [i.name for i in self.inputs]
        for name in sorted({n for n in names if names.count(n) > 1}):
            faults.append(f"input '{name}' is declared {names.count(name)} times")
        pairs: list[tuple[End | None, End | None]] = [
            (End(CONTROLLER, i), self._end(given.target, "input", faults)) for i, given in enumerate(self.inputs)
        ]
        pairs += [(self._end(s, "output", faults), self._end(t, "input", faults)) for s, t in self.edges]
        for source, target in pairs:
            if source is None or target is None:
                continue
            if source in wiring.forward:
                other = self.show(wiring.forward[source], "input")
                faults.append(
                    f"output {self.show(source, 'output')} leads to {other} and to {self.show(target, 'input')}; "
                    f"put a Bcast in between"
                )
                continue
            if target in wiring.backward:
                other = self.show(wiring.backward[target], "output")
                faults.append(
                    f"input {self.show(target, 'input')} is fed by {other} and by {self.show(source, 'output')}; "
                    f"put a Phi in between"
                )
                continue
            wiring.forward[source], wiring.backward[target] = target, source
        return wiring, faults

    def _end(self, text: str, side: str, faults: list[str]) -> End | None:
        name, _, port = text.partition(".")
        node = self.nodes.get(name)
        if node is None:
            faults.append(f"'{text}' names no node; there are {', '.join(self.nodes) or 'none'}")
            return None
        ports = node.inputs if side == "input" else node.outputs
        if not port and len(ports) == 1 and not text.endswith("."):
            return End(name, 0)
        if port not in ports:
            known = ", ".join(f"'{p}'" for p in ports) or "none"
            faults.append(f"'{text}' names no {side} port of node '{name}' ({node.describe()}); it has {known}")
            return None
        return End(name, ports.index(port))

    def show(self, end: End, side: str) -> str:
        """Describes an end of an edge, for error messages."""
        if end.node == CONTROLLER:
            return f"the input '{self.inputs[end.port].name}'"
        node = self.nodes[end.node]
        ports = node.inputs if side == "input" else node.outputs
        return f"'{end.node}'" if len(ports) == 1 else f"'{end.node}.{ports[end.port]}'"

    def check_parameters(self) -> None:
        """Raise `GraphError` if the model that this graph was compiled from has other parameters by now."""

    def validate(self) -> Wiring:
        """Check the whole graph; raise `GraphError` with every fault, or return the wiring."""
        from ampnet.validate import validate

        retie(self)  # the model may have been moved or cast without the graph
        self._follow()
        return validate(self)

    def _follow(self) -> None:
        for group in self.replicas.values():
            group.follow([self.parameterised()[name].updater for name in group.members])

    @property
    def prediction(self) -> Graph:
        """The graph that computes what the model returns, for `Runtime.predict`. Only compiled models have one."""
        raise GraphError(
            [
                f"'{self.name}' was wired by hand, so there is no forward whose results could be predicted. Remedy: "
                f"compile a Model, or infer(..., keep_predictions=True), which gives what comes to the losses"
            ]
        )

    def order(self) -> list[str]:
        """Returns node names in topological order, without the edges that close loops."""
        wiring, _ = self.resolve()
        return in_order(self.nodes, wiring.forward, back_edges(self.nodes, wiring.forward))

    def parameterised(self) -> dict[str, Parameterised]:
        """Returns the nodes with parameters, by name."""
        return {name: node for name, node in self.nodes.items() if isinstance(node, Parameterised)}

    def module(self) -> nn.ModuleDict:
        """Returns all parameters as one torch module, for ``state_dict()`` and ``load_state_dict()``.

        Of replicas it has the first, under their common name: they are equal between runs, and a run starts with the
        first one's weights.
        """
        modules = {
            self.called(name): node.module
            for name, node in self.parameterised().items()
            if name not in self.copies or self.copies[name].number == 0
        }
        return module_dict(whole_modules(self, modules))

    def to(self, *args: Any, **kwargs: Any) -> Graph:
        """Move or cast all parameters, as `torch.nn.Module.to` does. Must not be called during a run."""
        for node in self.parameterised().values():
            node.module.to(*args, **kwargs)
            node.updater.rebind()
        self._follow()
        retie(self, *args, **kwargs)
        return self

    def gradients(self) -> dict[str, torch.Tensor]:
        """Returns the sums of gradients not yet applied, by ``node.parameter``; summed over replicas."""
        out: dict[str, torch.Tensor] = {}
        for name, node in self.parameterised().items():
            for parameter, total in zip(node.parameters, node.updater.sums, strict=True):
                label = f"{self.called(name)}.{parameter}"
                out[label] = out[label] + total if label in out else total
        return whole_gradients(self, out)

    def called(self, name: str) -> str:
        """Returns the original name of a replica; the name itself for any other node."""
        return self.copies[name].of if name in self.copies else name

    def held(self) -> dict[str, int]:
        """Returns the sizes of all non-empty caches, by ``node.cache``; empty when nothing is in flight."""
        return {
            f"{name}.{cache}": count
            for name, node in self.nodes.items()
            for cache, count in node.held().items()
            if count
        }

    def read(self, source: Any) -> Iterable[Any]:
        """Returns the source as instances; a compiled graph builds them from samples of a data set."""
        return source  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        weights = sum(p.numel() for p in self.module().parameters())
        copies = f", {len(self.copies)} of them copies" if self.copies else ""
        return (
            f"{type(self).__name__}({self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes{copies}, "
            f"{weights:,} weights)"
        )

    def _repr_svg_(self) -> str:
        """Returns the picture, for notebooks."""
        from ampnet.draw import svg

        return svg(self)

    def mermaid(self) -> str:
        """Returns the graph as Mermaid text."""
        from ampnet.draw import mermaid

        return mermaid(self)

    def draw(self, path: str | Path | None = None, *, marks: Mapping[str, float] | None = None) -> str:
        """Draw the graph (``.svg``, ``.png``, ``.pdf`` or ``.mmd``, by the suffix of ``path``).

        Returns the Mermaid text, and writes nothing if no path is given. ``marks`` colours nodes by a share from 0 to
        1.
        """
        from ampnet.draw import draw

        return draw(self, path, marks=marks)
