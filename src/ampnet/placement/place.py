"""Place: which worker hosts which node.

by hand                     ``affinity`` names a worker for nodes by name or pattern: {"embedding": 0, "layers_*": 1}
replicas of the whole model copy i goes as a whole to worker i (modulo their number); where there are several
                            workers for each copy, copy i is cut over its own, each in the same way:

                                workers 0 1 | 2 3 | 4 5      3 copies x 2 parts
all others                  cut by what they cost (`ampnet.placement.cut`), replicas of single nodes included
nodes that only route       are rehearsed by every worker; they are given to a neighbour's, for pictures
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from ampnet.errors import GraphError, nearest
from ampnet.graph import CONTROLLER, Graph
from ampnet.placement.costs import Costs, guess
from ampnet.placement.cut import cut
from ampnet.replicas.replicate import entrances


def place(
    graph: Graph,
    workers: int,
    affinity: Mapping[str, int] | None = None,
    costs: Costs | None = None,
    memory_per_worker: int | None = None,
) -> dict[str, int]:
    """A worker for every node: those that ``affinity`` names where it says, the others by their costs.

    ``memory_per_worker``: bytes that a worker process may take, as far as parameters, sums of gradients and optimizers
    decide it. Raises `GraphError` where nodes do not fit.
    """
    fixed = known(graph, workers, affinity or {})
    if len(fixed) == len(graph.nodes) and memory_per_worker is None:
        return fixed
    costs = guess(graph, "no trial was made") if costs is None else costs
    computing = [name for name in graph.order() if graph.nodes[name].role != "route"]
    copies, parts = teams(graph, workers)
    if copies > 1 and parts > 1:
        placed = [(name, worker) for name, worker in fixed.items() if name in graph.copies and worker < parts]
        first = {graph.called(name): worker for name, worker in placed if graph.copies[name].number == 0}
        one = cut(
            _of(costs.folded(graph), dict.fromkeys(map(graph.called, computing))), parts, first, memory_per_worker
        )
        found = {name: graph.copies[name].number * parts + one[graph.called(name)] for name in computing}
    else:
        found = cut(_of(costs, computing), workers, fixed, memory_per_worker)
    return _routed(graph, found | fixed)


def known(graph: Graph, workers: int, affinity: Mapping[str, int]) -> dict[str, int]:
    """The nodes of which the worker is known without a trial: those placed by hand, and copies of a whole model that
    has a worker each."""
    copies, parts = teams(graph, workers)
    spread = {}
    if copies > 1 and parts == 1:
        spread = {name: found.number % workers for name, found in graph.copies.items()}
        # Of what is in front of replicas, the controller does its part itself.
        spread |= dict.fromkeys(entrances(graph, graph.resolve()[0]), 0)
    elif workers == 1:
        spread = dict.fromkeys(graph.nodes, 0)
    return spread | by_hand(graph, workers, affinity)


def teams(graph: Graph, workers: int) -> tuple[int, int]:
    """Returns the number of copies of the whole model, and the number of workers of each."""
    outside = set(graph.nodes) - set(graph.copies) - set(entrances(graph, graph.resolve()[0]))
    counts = {found.count for found in graph.copies.values() if found.by_instance}
    if outside or len(counts) != 1 or not all(found.by_instance for found in graph.copies.values()):
        return 1, workers
    copies = counts.pop()
    return copies, workers // copies if workers % copies == 0 else 1


def by_hand(graph: Graph, workers: int, affinity: Mapping[str, int]) -> dict[str, int]:
    """The nodes that ``affinity`` names. A node by name goes before patterns; later patterns before earlier ones.

    The name of a replicated node stands for all its replicas, and a replica's own name goes before it.
    """
    faults = []
    out: dict[str, int] = {}
    for pattern, worker in affinity.items():
        found = [n for n in graph.nodes if any(c == pattern or fnmatchcase(c, pattern) for c in (n, graph.called(n)))]
        if not found:
            faults.append(f"affinity names '{pattern}', but no node is called that; {nearest(pattern, graph.nodes)}")
        if not isinstance(worker, int) or not 0 <= worker < workers:
            faults.append(f"affinity puts '{pattern}' on worker {worker}; there are {workers}, numbered from 0")
        for name in found:
            exact = next((n for n in (name, graph.called(name)) if n in affinity), None)
            if exact is None or exact == pattern:
                out[name] = worker
    if faults:
        raise GraphError(faults)
    return out


def _of(costs: Costs, names: Iterable[str]) -> Costs:
    """The costs of these nodes, in this order; a small constant for unknown nodes."""
    names = list(names)
    made = {}
    for site, rows in costs.made.items():
        readers = {reader: flow for reader, flow in rows.readers.items() if reader in names}
        if site[0] in names and readers:
            made[site] = replace(rows, readers=readers)
    return replace(costs, seconds={name: costs.seconds.get(name, 1e-6) for name in names}, made=made)


def _routed(graph: Graph, hosts: Mapping[str, int]) -> dict[str, int]:
    """The placement with routing nodes added, each on the worker of a neighbour, preferably a predecessor."""
    wiring, out = graph.resolve()[0], dict(hosts)
    before: dict[str, list[str]] = {name: [] for name in graph.nodes}
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for source, target in wiring.forward.items():
        if source.node != CONTROLLER:
            before[target.node].append(source.node)
            after[source.node].append(target.node)
    order = graph.order()
    for names, beside in ((order, before), (order[::-1], after), (order, before)):
        for name in names:
            if name not in out:
                near = [out[other] for other in beside[name] if other in out]
                out |= {name: near[0]} if near else {}
    return {name: out.get(name, 0) for name in graph.nodes}
