"""Teams: the workers that compute an instance, and the ends of the graph where it enters.

no replica of the whole model      one team of all nodes; instances enter by the inputs of the graph
n replicas of the whole model      n teams. Instance i belongs to team i modulo n, and enters behind the Conds that
                                   would route it there:

    input ──> Cond ──┬──> replica 1: team 0
                     └──> replica 2: team 1
"""

from __future__ import annotations

from collections.abc import Mapping

from ampnet.graph import CONTROLLER, End, Graph, Wiring
from ampnet.plan.team import Team
from ampnet.replicas.replicate import concerned, entrances

Ends = Mapping[str, End]
"""By input: the port where its messages enter."""


def teams_of(graph: Graph, wiring: Wiring, hosts: Mapping[str, int]) -> list[tuple[Team, Ends]]:
    """Returns the teams of a graph, with the ends where instances enter. ``hosts``: the worker of each node."""
    fronts = entrances(graph, wiring)
    order = graph.order()
    inner = [name for name in order if name not in fronts]
    targets = {given.name: wiring.forward[End(CONTROLLER, i)] for i, given in enumerate(graph.inputs)}
    count = _replicas(graph, inner)
    if count is None or any(end.node not in fronts for end in targets.values()):
        return [(Team({name: graph.nodes[name] for name in order}, hosts), targets)]
    teams: list[tuple[Team, Ends]] = []
    for number in range(count):
        nodes = {name: graph.nodes[name] for name in inner if graph.copies[name].number == number}
        ends = {name: wiring.forward[End(end.node, number)] for name, end in targets.items()}
        teams.append((Team(nodes, {name: hosts[name] for name in nodes}), ends))
    return teams


def _replicas(graph: Graph, inner: list[str]) -> int | None:
    """Returns the number of replicas of the whole model; None: not all nodes are copies, or not by instance."""
    if concerned(graph.copies, inner) is None:
        return None
    counts = {graph.copies[name].count for name in inner}
    return counts.pop() if len(counts) == 1 else None
