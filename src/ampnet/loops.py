"""Loops: finds the edges of a graph that close loops, and the topological order of its nodes without them.

A loop is entered through a Phi, so it is cut there: at the edges that lead from inside the loop into a Phi that is also
fed from outside it. Cutting an outer loop exposes the inner ones, so nested loops are cut one by one. Remaining loops
are cut where a depth-first walk from the inputs returns to its own path.

    x ──> phi ──> linear ──> cond ──> loss           cut: cond.again ──> phi.loop
           ^                  |                      order: phi, linear, cond, loss, in any order of declaration
           └───── again ──────┘
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ampnet.nodes.loop import Loop
from ampnet.nodes.node import Node
from ampnet.nodes.phi import Phi

if TYPE_CHECKING:
    from ampnet.graph import End


def back_edges(nodes: Mapping[str, Node], forward: Mapping[End, End]) -> set[End]:
    """Returns the output ports whose edges close a loop. ``forward``: from output to input ports, also the
    controller's."""
    live = {source: target for source, target in forward.items() if source.node in nodes}
    feeds: dict[str, int] = {}
    for target in forward.values():
        feeds[target.node] = feeds.get(target.node, 0) + 1
    cut: set[End] = set()
    heads = [name for name, node in nodes.items() if isinstance(node, Phi | Loop)]
    while heads:
        for head in heads:
            inside = _reached(head, nodes, live)
            closing = {s for s, t in live.items() if t.node == head and s in inside}
            if closing and len(closing) < feeds[head]:
                cut |= closing
                for source in closing:
                    del live[source]
                heads.remove(head)
                break
        else:
            break
    return cut | _met_again(nodes, live)


def in_order(nodes: Collection[str], forward: Mapping[End, End], cut: Collection[End]) -> list[str]:
    """Returns the nodes in topological order without the cut edges; ties are in the order of declaration."""
    before: dict[str, set[str]] = {name: set() for name in nodes}
    for source, target in forward.items():
        if source not in cut and source.node in before:
            before[target.node].add(source.node)
    out: list[str] = []
    left = list(before)
    while left:
        ready = next(name for name in left if not before[name])
        out.append(ready)
        left.remove(ready)
        for others in before.values():
            others.discard(ready)
    return out


def _reached(start: str, nodes: Mapping[str, Node], edges: Mapping[End, End]) -> set[End]:
    """Returns the output ports that a message at a node may reach: of this node, or of any node after it."""
    leaving: dict[str, list[End]] = {}
    for source in edges:
        leaving.setdefault(source.node, []).append(source)
    seen: set[End] = set()
    todo = leaving.get(start, [])
    while todo:
        seen.update(todo)
        arriving = [edges[source] for source in todo]
        todo = [
            source
            for at in arriving
            for source in leaving.get(at.node, [])
            if source.port in nodes[at.node].leads_to(at.port) and source not in seen
        ]
    return seen


def _met_again(nodes: Mapping[str, Node], edges: Mapping[End, End]) -> set[End]:
    """Returns the edges on which a depth-first walk returns to its own path."""
    after: dict[str, list[End]] = {name: [] for name in nodes}
    for source in edges:
        after[source.node].append(source)
    cut: set[End] = set()
    done: set[str] = set()
    for root in nodes:
        path: list[tuple[str, list[End]]] = [] if root in done else [(root, list(after[root]))]
        on_path = {root}
        while path:
            name, rest = path[-1]
            if not rest:
                path.pop()
                on_path.discard(name)
                done.add(name)
                continue
            source = rest.pop(0)
            target = edges[source].node
            if target in on_path:
                cut.add(source)
            elif target not in done:
                path.append((target, list(after[target])))
                on_path.add(target)
    return cut
