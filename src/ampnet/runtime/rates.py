"""Learning rates of nodes, as they are set from outside: for all nodes, or by name or pattern."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from ampnet.graph import Graph


def resolved(graph: Graph, rates: float | Mapping[str, float]) -> dict[str, float]:
    """The rate of each node that is meant; a name that is given later goes before one that is given earlier.

    Raises ValueError for a rate that is none, a name that no trained node has, or a node with a schedule.
    """
    nodes = {name: node.updater.policy for name, node in graph.parameterised().items()}
    policies = {name: policy for name, policy in nodes.items() if policy is not None}
    out: dict[str, float] = {}
    for pattern, rate in rates.items() if isinstance(rates, Mapping) else (("*", rates),):
        if not 0 <= rate < float("inf"):
            raise ValueError(f"a learning rate is a number of 0 or more, got {rate!r} for '{pattern}'")
        names = [n for n in policies if pattern == n or fnmatchcase(graph.called(n), pattern)]
        if not names:
            known = ", ".join(dict.fromkeys(map(graph.called, policies)))
            raise ValueError(f"no node that is trained is called '{pattern}'; there are: {known or 'none'}")
        out |= dict.fromkeys(names, float(rate))
    scheduled = next((name for name in out if policies[name].schedule is not None), None)
    if scheduled is not None:
        raise ValueError(
            f"the Update of node '{scheduled}' has a schedule, which sets its learning rate: leave schedule out"
        )
    return out
