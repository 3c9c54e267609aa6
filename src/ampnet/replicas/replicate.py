"""Replicate: parallel copies of a node, of some nodes, or of a whole model in the graph.

    ──> linear ──>        becomes        ──> Cond ──┬──> linear#1 ──┬── Phi ──>
                                                    ├──> linear#2 ──┤
                                                    └──> linear#3 ──┘

Every edge into the copied part gets a Cond, which chooses the copy by a message's state; every edge out of it
gets a Phi, which remembers the copy for the gradient. Of a whole model nothing but its inputs are left in front: a
message meets a Cond, then one copy of everything, losses included.

The distribution of messages (``route``):

    "instance"       instance i to copy i modulo n. The default, and right for any part of a graph
    "position"       by the sum of all fields of the state: steps of one sequence go to different copies
    "round-robin"    in turns
    "shortest"       to the copy with the fewest messages that are not answered yet
    a function       of the state (and structure), as a Cond takes it: the number of the copy, from 0

In turns, and to the shortest queue, single messages are sent where the part is a chain of payload transforms; the
choice is written into the state (`Dispatch`, `Collect`). Any other part (with joins, groups or loops in it) must get
all messages of an instance at one copy, so there whole instances are shared out: the controller numbers them in turns,
or so that the copies have equally many in flight.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from ampnet.errors import GraphError, nearest
from ampnet.graph import CONTROLLER, End, Graph, Input, Wiring
from ampnet.nodes.collect import Collect
from ampnet.nodes.cond import Cond
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Node
from ampnet.nodes.phi import Phi
from ampnet.nodes.rows import Rows
from ampnet.nodes.transform import Parameterised, Transform
from ampnet.replicas.group import Copy, Replicas
from ampnet.replicas.sync import Sync
from ampnet.state import Column, States
from ampnet.update.updater import Updater

Route = Literal["instance", "position", "round-robin", "shortest"] | Callable[..., Any]
ROUTES = ("instance", "position", "round-robin", "shortest")


@dataclass(frozen=True, slots=True)
class Replicate:
    """The number of copies and their policies: the arguments of `replicate`."""

    n: int
    """Copies."""
    route: Route = "instance"
    """The routing policy."""
    sync: Sync | str = "epoch"
    """The synchronisation policy."""


def replicate(
    graph: Graph,
    nodes: str | Iterable[str] | None,
    n: int,
    *,
    route: Route = "instance",
    sync: Sync | str = "epoch",
) -> tuple[str, ...]:
    """Put ``n`` copies of some nodes into the graph, in their place. Returns the names of the nodes that were copied.

    ``nodes``: names or patterns (``"cell"``, ``("embedding", "layers_*")``); None: the whole model. The copies of
    ``cell`` are called ``cell#1``, ``cell#2``, ...; the first has the parameters of the model, which are the mean of
    all after every training stream. Settings for ``cell`` (``updates``, ``affinity``) are for all its copies.
    """
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"the number of replicas must be 1 or more, got {n!r}")
    if isinstance(route, str) and route not in ROUTES:
        raise ValueError(f"route must be one of {', '.join(ROUTES)}, or a function of the state; got {route!r}")
    sync = Sync(sync) if isinstance(sync, str) else sync  # type: ignore[arg-type]
    part = _part(graph, nodes)
    if n == 1:
        return tuple(part)
    wiring, faults = graph.resolve()
    if faults:
        raise GraphError(faults)
    _Replication(graph, wiring, part, n, route, sync).run()
    graph.record("replicate", tuple(part), n, route=route, sync=sync)
    return tuple(part)


def _part(graph: Graph, nodes: str | Iterable[str] | None) -> list[str]:
    """The names of the nodes to be copied."""
    if nodes is None:
        wanted: list[str] = list(graph.nodes)
    else:
        patterns = [nodes] if isinstance(nodes, str) else list(nodes)
        faults, found = [], set()
        for pattern in patterns:
            some = [name for name in graph.nodes if name == pattern or fnmatchcase(name, pattern)]
            found.update(some)
            if not some:
                remedy = nearest(pattern, graph.nodes)
                faults.append(f"replicate names '{pattern}', but no node is called that; {remedy}")
        if faults:
            raise GraphError(faults)
        wanted = [name for name in graph.nodes if name in found]
    again = [name for name in wanted if name in graph.copies]
    if again:
        raise GraphError([f"node '{again[0]}' is a replica already; replicate each node once"])
    tiles = [name for name, tiled in graph.tiled.items() if set(tiled.names) & set(wanted)]
    if tiles:
        raise GraphError([f"'{tiles[0]}' is in tiles, and tiles cannot be replicated; replicate other nodes"])
    if not wanted:
        raise GraphError(["there is no node to replicate"])
    return wanted


@dataclass(frozen=True)
class _Body:
    """How messages are routed to the copies."""

    route: str
    by_instance: bool
    recorded: bool
    """Whether the choice is written into the state."""
    function: Callable[..., Any] | None


class _Replication:
    """One call of `replicate`."""

    def __init__(self, graph: Graph, wiring: Wiring, part: Sequence[str], n: int, route: Route, sync: Sync) -> None:
        self.graph, self.wiring, self.part, self.n, self.sync = graph, wiring, part, n, sync
        self.inside = set(part)
        self.body = self._body(route)
        self.ports = tuple(str(i + 1) for i in range(n))
        self.field = _unused_field(graph)
        self.fronts: dict[str, list[tuple[str, Node]]] = {}
        self.behinds: dict[str, list[tuple[str, Node]]] = {}

    def _body(self, route: Route) -> _Body:
        n = self.n
        plain = all(_is_plain(self.graph.nodes[name]) for name in self.part)
        if callable(route):
            return _Body(getattr(route, "__name__", "function"), False, False, route)
        if route in ("round-robin", "shortest") and plain:
            return _Body(route, False, True, None)
        if route == "position":
            if not plain:
                whole = next(name for name in self.part if not _is_plain(self.graph.nodes[name]))
                raise GraphError(
                    [
                        f"route='position' would send messages of one instance to different copies of '{whole}' "
                        f"({self.graph.nodes[whole].describe()}), which must see all of them; use route='instance'"
                    ]
                )
            return _Body(route, False, False, _Modulo(n, whole=True))
        return _Body(route, True, False, _Modulo(n))

    def run(self) -> None:
        graph = self.graph
        edges, inputs = self._wire()
        copies = {name: self._copies(name) for name in self.part}
        nodes: dict[str, Node] = {}
        for name, node in graph.nodes.items():
            nodes.update(self.fronts.get(name, ()))
            nodes.update(copies.get(name, {name: node}))
            nodes.update(self.behinds.get(name, ()))
        graph.nodes, graph.edges, graph.inputs = nodes, edges, inputs
        for name, node in nodes.items():
            node.name = name
        for name, some in copies.items():
            note = graph.notes.pop(name, None)
            for number, (called, node) in enumerate(some.items()):
                graph.copies[called] = Copy(name, number, self.n, self.body.by_instance)
                if isinstance(node, Loss):
                    node.reports_as = name
                if note is not None:
                    graph.notes[called] = note
            if isinstance(next(iter(some.values())), Parameterised):
                balanced = self.body.by_instance and self.body.route == "shortest"
                graph.replicas[name] = Replicas(
                    name, tuple(some), self.sync, self.body.route, self.body.by_instance, balanced
                )

    def _wire(self) -> tuple[list[tuple[str, str]], list[Input]]:
        graph, edges = self.graph, []
        targets = {i: given.target for i, given in enumerate(graph.inputs)}
        for source, target in self.wiring.forward.items():
            into, out = target.node in self.inside, source.node in self.inside
            if out and into:
                edges += [(self._copy(source, "output", i), self._copy(target, "input", i)) for i in range(self.n)]
                continue
            last = _text(graph, source, "output")
            if out:
                last = self._phi(source)
                edges += [(self._copy(source, "output", i), f"{last}.{p}") for i, p in enumerate(self.ports)]
            elif into:
                first = self._cond(source, target)
                edges += [(f"{first}.{p}", self._copy(target, "input", i)) for i, p in enumerate(self.ports)]
                if source.node == CONTROLLER:
                    targets[source.port] = first
                else:
                    edges.append((last, first))
                continue
            if source.node != CONTROLLER:
                edges.append((last, _text(graph, target, "input")))
        return edges, [Input(g.name, targets[i], g.fields) for i, g in enumerate(graph.inputs)]

    def _copy(self, end: End, side: str, number: int) -> str:
        name, _, port = _text(self.graph, end, side).partition(".")
        return f"{name}#{number + 1}.{port}"

    def _cond(self, source: End, target: End) -> str:
        name = self.graph.inputs[source.port].name if source.node == CONTROLLER else target.node
        name = self._named(f"{name}_route")
        body = self.body
        if body.recorded:
            assert body.route in ("round-robin", "shortest")
            node: Node = Dispatch(self.field, self.ports, body.route)  # type: ignore[arg-type]
        else:
            assert body.function is not None
            node = Cond(body.function, self.ports)
        self.fronts.setdefault(target.node, []).append((name, node))
        return name

    def _phi(self, source: End) -> str:
        name = self._named(f"{source.node}_joined")
        key = _key_of(self.graph.nodes[source.node], source.port)
        node = Collect(self.field, self.ports, key) if self.body.recorded else Phi(self.ports, key)
        self.behinds.setdefault(source.node, []).append((name, node))
        return name

    def _named(self, name: str) -> str:
        taken = set(self.graph.nodes) | {n for some in (*self.fronts.values(), *self.behinds.values()) for n, _ in some}
        number, called = 2, name
        while called in taken:
            called, number = f"{name}{number}", number + 1
        return called

    def _copies(self, name: str) -> dict[str, Node]:
        """The node itself as the first, and its copies."""
        node = self.graph.nodes[name]
        return {f"{name}#{i + 1}": node if i == 0 else self._copied(node) for i in range(self.n)}

    def _copied(self, node: Node) -> Node:
        if any(node.held().values()):
            raise GraphError([f"node '{node.name}' holds messages; replicate a graph while nothing is in flight"])
        node.shelf = None
        if not isinstance(node, Parameterised):
            return copy.deepcopy(node)
        updater = node.updater
        node.updater = Updater([])  # the copy gets its own
        try:
            twin = copy.deepcopy(node)
        finally:
            node.updater = updater
        if self.sync.when == "shared":
            for mine, given in zip(twin.parameters.values(), node.parameters.values(), strict=True):
                mine.data = given.data
        twin.make_updater()
        return twin


class _Modulo:
    """The number of a copy: of the instance, or of all fields together, modulo n."""

    def __init__(self, n: int, whole: bool = False) -> None:
        self.n, self.whole, self.modulus = n, whole, n
        self.__name__ = "position" if whole else "instance"

    def __call__(self, s: States) -> Column:
        numbers: Column = s.columns.sum(0) if self.whole else s.column("instance")
        return numbers % self.n


def _is_plain(node: Node) -> bool:
    """Whether a node treats each message alone, and leaves its state as it is."""
    if isinstance(node, Parameterised):  # messages that meet in a module must come to the same copy
        return len(node.inputs) == len(node.outputs)
    return isinstance(node, Transform) or (isinstance(node, Rows) and len(node.inputs) == 1)


def _key_of(node: Node, port: int) -> Sequence[str] | None:
    """The key fields of a node's output; None if they are unknown."""
    if isinstance(node, Parameterised):
        return node.keys[port].fields
    return node.key.fields if isinstance(node, Transform) else None


def _text(graph: Graph, end: End, side: str) -> str:
    if end.node == CONTROLLER:
        return CONTROLLER
    node = graph.nodes[end.node]
    ports = node.inputs if side == "input" else node.outputs
    return f"{end.node}.{ports[end.port]}"


def _unused_field(graph: Graph) -> str:
    taken = {field for given in graph.inputs for field in given.fields}
    taken |= {node.field for node in graph.nodes.values() if isinstance(node, Dispatch)}
    name, number = "replica", 2
    while name in taken:
        name, number = f"replica{number}", number + 1
    return name


def entrances(graph: Graph, wiring: Wiring) -> dict[str, int]:
    """The Conds and Dispatches that `replicate` has put directly behind inputs, with the number of the input."""
    out: dict[str, int] = {}
    for source, target in wiring.forward.items():
        node = graph.nodes[target.node]
        leads = [wiring.forward[End(target.node, i)].node for i in range(len(node.outputs))]
        routes = source.node == CONTROLLER and isinstance(node, Cond | Dispatch)
        if routes and all(name in graph.copies for name in leads):
            out[target.node] = source.port
    return out


def concerned(copies: Mapping[str, Copy], names: Iterable[str]) -> list[tuple[int, int]] | None:
    """The instances that some nodes see: (n, remainder) for those with ``instance % n == remainder``; None: all."""
    out = set()
    for name in names:
        found = copies.get(name)
        if found is None or not found.by_instance:
            return None
        out.add((found.count, found.number))
    return sorted(out)
