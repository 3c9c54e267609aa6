"""Units: nodes that have to be on one worker to keep the cheap form in which a wave computes them.

along_0 ──┐
along_1 ──┼──> sum        a mixture: the sum is made first, then multiplied. Parted, each Linear makes its rows
zero    ──┘
a, b ──> concat ──> cell  a view: cell reads the rows of a and b. Parted, rows of concat are made, and cross
embedding ──> cell        a small table: cell multiplies its rows once, and looks products up. Parted, every row crosses
"""

from __future__ import annotations

from collections.abc import Iterable

from ampnet.graph import Graph
from ampnet.nodes.embedding import Embedding
from ampnet.plan.sites import Sites, Unplayable
from ampnet.plan.team import Team

_SMALL = 4096
"""Maximum rows of a table whose products are computed once for each row and looked up."""


def units_of(sites: Sites) -> list[frozenset[str]]:
    """Sets of two nodes or more, none of them in two."""
    sets, seen_by = [], dict[str, set[str]]()
    for site in sites.sites:
        if site.kind == "mixture":
            sources = [source for source in sites.read(site, 0) if source.kind == "absorbed"]
            sets.append({site.name, *(source.name for source in sources)})
        elif site.kind == "view" or (isinstance(site.node, Embedding) and site.node.size <= _SMALL):
            seen_by.setdefault(site.name, set()).update(reader.name for reader, _ in sites.readers(site))
    return joined([*sets, *({name, *readers} for name, readers in seen_by.items() if len(readers) == 1)])


def around(graph: Graph, name: str) -> list[str]:
    """The unit of a node, and the nodes between its nodes that only route: copied together, it stays a unit."""
    wiring = graph.resolve()[0]
    try:
        units = units_of(Sites(graph, wiring, Team.alone(graph.nodes)))
    except Unplayable:
        units = []
    unit = next((unit for unit in units if name in unit), frozenset((name,)))
    if len(unit) == 1:
        return [name]
    *first, last = [node for node in graph.order() if node in unit]
    after: dict[str, set[str]] = {}
    for source, target in wiring.forward.items():
        after.setdefault(source.node, set()).add(target.node)

    def between(node: str, seen: set[str]) -> bool:
        """Whether a way through nodes that only route leads to the last node; ``seen`` are those on such ways."""
        leads = False
        for other in sorted(after.get(node, ())):
            if other == last or other in seen:
                leads = True
            elif graph.nodes[other].role == "route" and between(other, seen):
                seen.add(other)
                leads = True
        return leads

    inside: set[str] = set()
    for node in first:
        between(node, inside)
    return [node for node in graph.nodes if node in unit or node in inside]


def joined(sets: Iterable[Iterable[str]]) -> list[frozenset[str]]:
    """The same with sets that have a member in common made one."""
    out: list[set[str]] = []
    for given in sets:
        one = set(given)
        for other in [other for other in out if other & one]:
            one |= other
            out.remove(other)
        out.append(one)
    return [frozenset(one) for one in out]
