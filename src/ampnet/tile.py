"""Tile: splits one large Linear into several nodes, each with a part of its weights, to distribute it over workers.

    tile(graph, "fc", 3)                         by outputs: each tile computes some columns of y

              ┌──> fc~1   x W1' + b1 ──┐
        x ────┼──> fc~2   x W2' + b2 ──┼──> y = [y1 | y2 | y3]         [1] fc_spread, a Bcast    [2] the tiles
              └──> fc~3   x W3' + b3 ──┘                               [3] fc_together, a Concat
             [1]         [2]          [3]

    tile(graph, "fc", 3, by="inputs")            by inputs: each tile reads some columns of x

              ┌──> fc~1  x1 W1' + b ───┐
        x ────┼──> fc~2  x2 W2'     ───┼──> y = y1 + y2 + y3           [1] a Split
              └──> fc~3  x3 W3'     ───┘                               [3] Rows, which adds them up
             [1]         [2]          [3]

An activation is computed in each tile if tiles compute columns of y, and after the sum if they compute summands. A
Linear with several sites has tiles with as many, and a [1] and [3] for each.

Replicas are the other way to distribute one node over several workers: each has all of the weights and some of the
messages. A tile has some of the weights and gets every message, so nothing is averaged, but each row is sent to all
workers (outputs) or returned by all of them as a whole row (inputs).

**The weights stay where they are.** A tile's parameters are views of the Linear's own: rows of W (outputs) or columns
(inputs). An update of a tile is an update of the model; a ``state_dict`` is the same with tiles and without. Every tile
has its own `Updater`: the result of an elementwise optimizer (SGD, Adam) is the same, while a norm, as in
``clip_norm``, is that of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, nearest
from ampnet.nodes.bcast import Bcast
from ampnet.nodes.concat import Concat
from ampnet.nodes.linear import Linear
from ampnet.nodes.node import Node
from ampnet.nodes.program import Program, Ref
from ampnet.nodes.rows import Rows
from ampnet.nodes.split import Split
from ampnet.nodes.tied import Tied

if TYPE_CHECKING:
    from ampnet.graph import Graph

By = Literal["outputs", "inputs"]


@dataclass(frozen=True, slots=True)
class Tiled:
    """A Linear that was split, with the data to show it whole."""

    module: nn.Linear
    """The whole Linear. The parameters of the tiles are views of its own."""
    names: tuple[str, ...]
    """Its tiles, in order."""
    parts: tuple[nn.Linear, ...]
    """Their modules."""
    cuts: tuple[int, ...]
    """Tile ``i`` has the features from ``cuts[i]`` to ``cuts[i + 1]``."""
    by: By
    """Whether outputs or inputs were split."""
    shown: str
    """The description of the original node."""

    def views(self, place: int) -> Iterator[tuple[str, Tensor]]:
        """Yields a tile's part of each whole parameter, with the parameter's name."""
        return _views(self.module, self.cuts[place : place + 2], self.by)

    def describe(self) -> str:
        """Returns a short description, like `Node.describe`."""
        return f"{self.shown} in {len(self.names)} tiles"


def _views(module: nn.Linear, cut: Sequence[int], by: By) -> Iterator[tuple[str, Tensor]]:
    some, weight, bias = slice(*cut), module.weight.detach(), module.bias
    yield "weight", weight[some] if by == "outputs" else weight[:, some]
    if bias is not None and by == "outputs":
        yield "bias", bias.detach()[some]
    elif bias is not None and cut[0] == 0:  # only the first summand has it
        yield "bias", bias.detach()


def tile(graph: Graph, name: str, n: int, *, by: By = "outputs") -> list[str]:
    """Replace the Linear called ``name`` by ``n`` tiles, ``name~1`` to ``name~n``; returns their names.

    ``by``: whether its outputs or its inputs are split. Sizes differ by one at most. Must be called before a runtime
    is made on the graph. Afterwards ``updates`` and ``affinity`` address the tiles by their names, or all of them as
    ``name~*``; ``graph.module()`` and ``graph.gradients()`` show the Linear whole, under its own name.
    """
    node, module = _linear(graph, name)
    features = _features(module, name, n, by)
    tiles = tuple(f"{name}~{i}" for i in range(1, n + 1))
    cuts = tuple(accumulate((features // n + (i < features % n) for i in range(n)), initial=0))
    parts = tuple(_part(module, cut, by) for cut in pairwise(cuts))
    tiled = Tiled(module, tiles, parts, cuts, by, node.describe())
    ends = ["", *map(str, range(2, node.sites + 1))]
    spread, together = [f"{name}_spread{end}" for end in ends], [f"{name}_together{end}" for end in ends]
    taken = [new for new in (*spread, *tiles, *together) if new in graph.nodes]
    if taken:
        raise GraphError([f"to tile '{name}', the name '{new}' is needed, but there is such a node" for new in taken])
    nodes: dict[str, Node] = dict(zip(spread, _spread(node, tiled), strict=True))
    nodes |= {new: _tile(node, tiled, part) for new, part in zip(tiles, parts, strict=True)}
    nodes |= dict(zip(together, _together(node, tiled), strict=True))
    _rewire(graph, node, spread, together)
    _exchange(graph, name, nodes)
    for site in range(node.sites):
        for i, new in enumerate(tiles):
            graph.connect(f"{spread[site]}.tile{i + 1}", f"{new}.{node.inputs[site]}")
            graph.connect(f"{new}.{node.outputs[site]}", f"{together[site]}.tile{i + 1}")
    graph.tiled[name] = tiled
    graph.record("tile", name, n, by=by)
    graph.runtime = None  # an earlier runtime has other nodes
    return list(tiles)


def _linear(graph: Graph, name: str) -> tuple[Linear, nn.Linear]:
    """Returns the node and its module; raises `GraphError` if it cannot be tiled."""
    if name in graph.tiled:
        raise GraphError([f"'{name}' is tiled already, as {', '.join(graph.tiled[name].names)}"])
    linears = [other for other, node in graph.nodes.items() if type(node) is Linear]
    known = nearest(name, linears) if linears else "there is no Linear"
    node = graph.nodes.get(name)
    if "#" in name or f"{name}#1" in graph.nodes:
        raise GraphError([f"'{name}' is replicated, and replicas cannot be tiled; a Linear is one or the other"])
    shared = next((n for n, other in graph.nodes.items() if isinstance(other, Tied) and name in other.names), None)
    if shared is not None:
        uses = " and ".join(f"'{use}'" for use in graph.nodes[shared].names)  # type: ignore[attr-defined]
        raise GraphError([f"{uses} are tied: they share a parameter and are one node, '{shared}', which is not tiled"])
    if node is None:
        raise GraphError([f"no node is called '{name}', so it cannot be tiled; {known}"])
    if type(node) is not Linear or not isinstance(node.module, nn.Linear):
        raise GraphError([f"'{name}' is a {node.describe()}, and only a Linear can be tiled; {known}"])
    if not set(node.parameters) <= {"weight", "bias"}:
        raise GraphError([f"'{name}' has the parameters {', '.join(node.parameters)}; a tile has weight and bias only"])
    for other, node_of in graph.parameterised().items():
        if node_of is not node and {id(p) for p in node.parameters.values()} & set(
            map(id, node_of.parameters.values())
        ):
            raise GraphError([f"'{name}' shares a parameter with '{other}', so it cannot be tiled"])
    if graph.held():
        raise GraphError([f"'{name}' cannot be tiled while messages are in flight"])
    return node, node.module


def _features(module: nn.Linear, name: str, n: int, by: By) -> int:
    """Returns the number of features to split."""
    if by not in ("outputs", "inputs"):
        raise ValueError(f"a Linear is tiled by 'outputs' or by 'inputs', got {by!r}")
    features = module.out_features if by == "outputs" else module.in_features
    if not 2 <= n <= features:
        raise ValueError(f"'{name}' has {features} {by}: it can be made 2 to {features} tiles, got {n}")
    return features


# -- the nodes of the diagram


def _spread(node: Linear, tiled: Tiled) -> list[Node]:
    """[1] for each site."""
    ports = [f"tile{i}" for i in range(1, len(tiled.names) + 1)]
    if tiled.by == "outputs":
        return [Bcast(ports, key=key.fields) for key in node.keys]
    widths = {port: stop - start for port, (start, stop) in zip(ports, pairwise(tiled.cuts), strict=True)}
    return [Split(widths, key=key.fields) for key in node.keys]


def _part(module: nn.Linear, cut: Sequence[int], by: By) -> nn.Linear:
    """A Linear on views of the whole one's parameters."""
    views = dict(_views(module, cut, by))
    outputs, inputs = views["weight"].shape
    part = nn.Linear(inputs, outputs, bias="bias" in views, device="meta")
    for name, view in views.items():
        setattr(part, name, nn.Parameter(view, requires_grad=getattr(module, name).requires_grad))
    return part


def _tile(node: Linear, tiled: Tiled, part: nn.Linear) -> Linear:
    """[2]."""
    activation: Any = node.activation if tiled.by == "outputs" else None
    return Linear(part, activation=activation).with_sites([key.fields for key in node.keys])


def _together(node: Linear, tiled: Tiled) -> list[Node]:
    """[3] for each site. Its inputs come from one message, so their states are equal."""
    ports = [f"tile{i}" for i in range(1, len(tiled.names) + 1)]
    if tiled.by == "outputs":
        return [Concat(ports, key=key.fields, same_states=True) for key in node.keys]
    program = Program(len(ports))
    total = Ref(0)
    for i in range(1, len(ports)):
        total = program.add("add", total, Ref(i))
    if node.activation is not None:
        program.add(node.activation, total)
    return [Rows(program, ports, key=key.fields) for key in node.keys]


# -- replacing the node


def _rewire(graph: Graph, node: Linear, spread: list[str], together: list[str]) -> None:
    """Redirect the edges into the node to [1], and the edges out of it to [3]."""
    name, faults = node.name, list[str]()

    def moved(text: str, ports: tuple[str, ...], new: list[str]) -> str:
        owner, _, port = text.partition(".")
        if owner != name:
            return text
        if port not in ports and (port or len(ports) > 1):
            faults.append(f"'{text}' names no port of '{name}'; it has {', '.join(ports)}")
            return text
        return new[ports.index(port) if port else 0]

    edges = [(moved(s, node.outputs, together), moved(t, node.inputs, spread)) for s, t in graph.edges]
    inputs = [replace(given, target=moved(given.target, node.inputs, spread)) for given in graph.inputs]
    if faults:
        raise GraphError(faults)
    graph.edges[:], graph.inputs[:] = edges, inputs


def _exchange(graph: Graph, name: str, nodes: dict[str, Node]) -> None:
    """Replace the node ``name`` by these nodes, in the order of nodes and in the notes for drawings."""
    before = dict(graph.nodes)
    graph.nodes.clear()
    for other, node in before.items():
        if other != name:
            graph.nodes[other] = node
            continue
        for new, made in nodes.items():
            graph.add(new, made)
    note = graph.notes.pop(name, None)
    if note is not None:
        graph.notes.update(dict.fromkeys(nodes, note))


# -- the Linear shown whole


def whole_modules(graph: Graph, modules: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """Returns the modules by node, with the whole Linear instead of its tiles."""
    for name, tiled in reversed(graph.tiled.items()):  # a tile may have been tiled again
        modules = _in_place(modules, list(tiled.names), name, tiled.module)
    return modules


def whole_gradients(graph: Graph, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the gradients by ``node.parameter``, with copies for the whole Linear instead of those of its tiles."""
    for name, tiled in reversed(graph.tiled.items()):
        weights = [f"{tile}.weight" for tile in tiled.names]
        biases = [key for tile in tiled.names if (key := f"{tile}.bias") in gradients]
        whole = torch.cat([gradients[key] for key in weights], 0 if tiled.by == "outputs" else 1)
        if biases:
            bias = torch.cat([gradients[key] for key in biases])
            gradients = _in_place(gradients, biases, f"{name}.bias", bias)
        gradients = _in_place(gradients, weights, f"{name}.weight", whole)
    return gradients


def _in_place(given: dict[str, Any], old: list[str], new: str, value: Any) -> dict[str, Any]:
    """Returns the dict with ``value`` in place of the first old key, without the other old keys."""
    out: dict[str, Any] = {}
    for name, other in given.items():
        if name not in old:
            out[name] = other
        elif name == old[0]:
            out[new] = value
    return out


def retie(graph: Graph, *args: Any, **kwargs: Any) -> None:
    """Make tiles views of the whole Linears again if they are not, for example after a cast of the model.

    With arguments (those of `torch.nn.Module.to`) the whole Linears are moved or cast first. The gradient sums of
    tiles that were tied again restart from zero.
    """
    moved: set[int] = set()
    for tiled in graph.tiled.values():
        if args or kwargs:
            tiled.module.to(*args, **kwargs)
        for place, part in enumerate(tiled.parts):
            for name, view in tiled.views(place):
                parameter: nn.Parameter = getattr(part, name)
                parameter.requires_grad_(getattr(tiled.module, name).requires_grad)
                if parameter.data_ptr() != view.data_ptr() or parameter.dtype != view.dtype:
                    parameter.data = view
                    moved.add(id(parameter))
    for node in graph.parameterised().values() if moved else ():
        if any(id(parameter) in moved for parameter in node.updater.parameters):
            node.updater.rebind()
