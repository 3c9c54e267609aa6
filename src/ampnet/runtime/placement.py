"""Placement: which worker hosts which node.

Replicas are there to work side by side: copy i of anything goes to worker i (modulo the number of workers), unless
placed by hand. By hand, ``affinity`` names a worker for nodes by name or pattern (``{"embedding": 0, "layers_*":
1}``). For all other nodes a few instances are run in this process first, with weights frozen: that tells what each
node costs and how many bytes go over each edge. Nodes are then cut into as many pieces as there are workers, so that
the worker with the most to do has as little as possible, messages to others included:

    cost of a worker = seconds in its nodes + for every batch that leaves or comes: a hop and the copying of its bytes
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any

import numpy as np

from ampnet.errors import GraphError
from ampnet.graph import CONTROLLER, Graph, Wiring
from ampnet.instance import Instance
from ampnet.message import Messages
from ampnet.nodes.node import Direction, Outputs, Report
from ampnet.replicas.replicate import entrances

HOP = 30e-6
"""Seconds that a batch costs each of the two workers between which it goes; measured by bench/hops.py."""
BYTES = 2e9
"""Bytes that each of them copies in a second, in and out of the ring; likewise."""
_SECONDS = 0.5
"""A trial goes over its instances again and again for this long."""


@dataclass(slots=True)
class Costs:
    """What a trial has shown."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By node: time in it, forward, backward."""
    edges: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """By (node, node): batches and bytes that went between them, in both directions."""

    def hop(self, a: str, b: str) -> float:
        """What it costs if two nodes are on two workers."""
        batches, size = self.edges.get((a, b), (0, 0))
        return batches * HOP + size / BYTES


def place(
    graph: Graph, workers: int, affinity: Mapping[str, int] | None = None, costs: Costs | None = None
) -> dict[str, int]:
    """A worker for every node: those that ``affinity`` names where it says, the others by their costs."""
    fixed = known(graph, workers, affinity or {})
    if len(fixed) == len(graph.nodes) or workers == 1:
        return {name: fixed.get(name, 0) for name in graph.nodes}
    if costs is None:
        costs = guess(graph)
    return _cut(graph, workers, fixed, costs)


def known(graph: Graph, workers: int, affinity: Mapping[str, int]) -> dict[str, int]:
    """The nodes of which the worker is known without a trial: those placed by hand, and replicas."""
    spread = {name: found.number % workers for name, found in graph.copies.items()}
    # Of what is in front of replicas, the controller does its part itself.
    spread |= dict.fromkeys(entrances(graph, graph.resolve()[0]), 0)
    return spread | by_hand(graph, workers, affinity)


def by_hand(graph: Graph, workers: int, affinity: Mapping[str, int]) -> dict[str, int]:
    """The nodes that ``affinity`` names. A node by name goes before patterns; later patterns before earlier ones.

    The name of a replicated node stands for all its replicas, and a replica's own name goes before it.
    """
    faults = []
    out: dict[str, int] = {}
    for pattern, worker in affinity.items():
        found = [n for n in graph.nodes if any(c == pattern or fnmatchcase(c, pattern) for c in (n, graph.called(n)))]
        if not found:
            faults.append(f"affinity names '{pattern}', but no node is called that; there are {', '.join(graph.nodes)}")
        if not isinstance(worker, int) or not 0 <= worker < workers:
            faults.append(f"affinity puts '{pattern}' on worker {worker}; there are {workers}, numbered from 0")
        for name in found:
            exact = next((n for n in (name, graph.called(name)) if n in affinity), None)
            if exact is None or exact == pattern:
                out[name] = worker
    if faults:
        raise GraphError(faults)
    return out


def guess(graph: Graph) -> Costs:
    """Without a trial: nodes cost as much as they have parameters, and a little."""
    costs = Costs()
    weights = {name: sum(w.numel() for w in n.updater.weights) for name, n in graph.parameterised().items()}
    most = max(weights.values(), default=1)
    for name in graph.nodes:
        costs.seconds[name] = 1e-4 + 1e-2 * weights.get(name, 0) / most
    return costs


class Trial:
    """Runs instances in this process, weights frozen, and notes what they cost."""

    def __init__(self, graph: Graph, **settings: Any) -> None:
        self.graph, self.settings = graph, settings
        self.costs = Costs()
        self.instances = 0
        """How many instances the costs are of."""

    def run(self, instances: Sequence[Instance]) -> Costs:
        from ampnet.runtime.inline import Inline

        owner, policies = self.graph.runtime, {n: p.updater.policy for n, p in self.graph.parameterised().items()}
        try:
            with Inline(self.graph, update=None, waves=False, **self.settings) as runtime:  # node by node
                self._watch(runtime)
                runtime.train(instances[: max(1, len(instances) // 2)])  # warms up
                self.costs = Costs()
                began = time.perf_counter()
                while time.perf_counter() - began < _SECONDS:
                    self.instances += runtime.train(instances).instances
        finally:
            for name, node in self.graph.parameterised().items():
                node.updater.adopt(policies[name])
            self.graph.runtime = owner
        return self.costs

    def _watch(self, runtime: Any) -> None:
        handle, routes = runtime.worker._handle, _neighbours(self.graph, runtime._wiring)

        def timed(lane: Any, messages: Messages) -> Outputs:
            began = time.perf_counter()
            outputs: Outputs = handle(lane, messages)
            name, costs = lane.node.name, self.costs
            costs.seconds[name] = costs.seconds.get(name, 0.0) + time.perf_counter() - began
            for output in outputs:
                if not isinstance(output, Report):
                    other = routes[name, output[0], output[1]]
                    pair = (name, other) if output[0] is Direction.FORWARD else (other, name)
                    batches, size = costs.edges.get(pair, (0, 0))
                    costs.edges[pair] = (batches + 1, size + _bytes(output[2]))
            return outputs

        runtime.worker._handle = timed


def _bytes(messages: Messages) -> int:
    payload = 0 if messages.payload is None else messages.payload.numel() * messages.payload.element_size()
    return payload + messages.states.columns.nbytes


def _neighbours(graph: Graph, wiring: Wiring) -> dict[tuple[str, Direction, int], str]:
    out = {(end.node, Direction.FORWARD, end.port): other.node for end, other in wiring.forward.items()}
    out |= {(end.node, Direction.BACKWARD, end.port): other.node for end, other in wiring.backward.items()}
    return out


def peek(instances: Iterable[Instance], count: int) -> tuple[list[Instance], Iterable[Instance]]:
    """The first few instances, and all of them. An error of the loader comes where it came, with all of them."""
    first: list[Instance] = []

    def rest(error: Exception | None) -> Iterator[Instance]:
        if error is not None:
            raise error
        yield from source

    failed: Exception | None = None
    source: Iterator[Instance] = iter(())
    try:
        source = iter(instances)
        for instance in islice(source, count):
            first.append(instance)
    except Exception as error:
        failed = error
    return first, chain(first, rest(failed))


def _cut(graph: Graph, workers: int, fixed: Mapping[str, int], costs: Costs) -> dict[str, int]:
    """Start with stretches of about equal cost in topological order; then move nodes as long as it helps."""
    order = list(graph.order())
    seconds = np.array([costs.seconds.get(n, 1e-6) for n in order])
    middle = (np.cumsum(seconds) - seconds / 2) / seconds.sum()
    best: dict[str, int] | None = None
    for turn in range(4):
        shift = np.random.default_rng(turn).random(len(order)) * (0.0 if turn == 0 else 0.3)
        start = np.clip(((middle + shift) * workers).astype(int), 0, workers - 1)
        found = {n: fixed.get(n, int(w)) for n, w in zip(order, start, strict=True)}
        _improve(found, workers, fixed, costs)
        if best is None or _worst(found, workers, costs) < _worst(best, workers, costs):
            best = found
    assert best is not None
    return best


def _improve(found: dict[str, int], workers: int, fixed: Mapping[str, int], costs: Costs) -> None:
    """Move nodes, and stretches of neighbours in topological order (one alone may only add hops), while it helps."""
    movable = [n for n in found if n not in fixed]
    longest = len(movable) if workers <= 4 else 8
    now = _worst(found, workers, costs)
    improved = True
    while improved:
        improved = False
        for size in range(1, longest + 1):
            for start in range(len(movable) - size + 1):
                some = movable[start : start + size]
                here = [found[n] for n in some]
                for there in range(workers):
                    found.update(dict.fromkeys(some, there))
                    new = _worst(found, workers, costs)
                    if new < now - 1e-12:
                        now, here, improved = new, [there] * size, True
                    found.update(zip(some, here, strict=True))


def _worst(found: Mapping[str, int], workers: int, costs: Costs) -> float:
    """The cost of the worker with the most to do, and a little of all hops."""
    loads = np.zeros(workers)
    for name, worker in found.items():
        loads[worker] += costs.seconds.get(name, 0.0)
    hops = 0.0
    for a, b in costs.edges:
        cost = costs.hop(a, b)
        if a == CONTROLLER or b == CONTROLLER:
            host = found[b if a == CONTROLLER else a]
            loads[host] += cost
        elif found[a] != found[b]:
            loads[found[a]] += cost
            loads[found[b]] += cost
            hops += cost
    return float(loads.max()) + 0.05 * hops
