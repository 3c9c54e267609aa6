"""Settings of nodes by name or pattern: update policies and learning rates. One for a node holds for all its copies."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from ampnet.errors import GraphError, a, nearest
from ampnet.graph import Graph
from ampnet.update.policy import Update


def adopt(graph: Graph, update: Update | None, updates: dict[str, Update | None]) -> dict[str, Any]:
    """Give each node with parameters its policy. Returns the policies by node as plain data."""
    if not isinstance(update, Update | None):
        raise TypeError(
            f"update is one Update for all nodes, got {a(type(update).__name__)}: give "
            f"ampnet.Update(partial(torch.optim.Adam, lr=...)); by node name: updates={{...}}"
        )
    nodes = graph.parameterised()
    names = {*nodes, *map(graph.called, nodes)}
    unused = [p for p in updates if p not in names and not any(fnmatchcase(name, p) for name in names)]
    if unused:
        known = sorted(names)
        raise GraphError(
            [f"updates names '{p}', but no node with parameters is called that; {nearest(p, known)}" for p in unused]
        )
    for group in graph.replicas.values():
        for name in group.members:
            nodes[name].updater.shares = group.sync.when == "shared"
    for name, node in nodes.items():
        called = graph.called(name)  # a setting for a node holds for all its replicas
        matching = [o for pattern, o in updates.items() if fnmatchcase(name, pattern) or fnmatchcase(called, pattern)]
        exact = next((n for n in (name, called) if n in updates), None)
        node.updater.adopt(updates[exact] if exact is not None else (matching[-1] if matching else update))
    return {name: _plain(node.updater.policy) for name, node in nodes.items()}


def _plain(policy: Update | None) -> dict[str, Any] | None:
    """Returns a policy as plain data; None: frozen."""
    if policy is None:
        return None
    plain = ("min_update_frequency", "count", "average", "clip_norm", "clip_value", "weights")
    remedies = None if policy.remedies is None else [repr(remedy) for remedy in policy.remedies]
    return {name: getattr(policy, name) for name in plain} | {"remedies": remedies}


def resolved(graph: Graph, rates: float | Mapping[str, float]) -> dict[str, float]:
    """Returns the rate of each matching node; later entries override earlier ones.

    Raises ValueError for an invalid rate, a name that no trained node has, or a node with a schedule.
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
