"""Sites: where a graph makes rows, which of them lie in one arena, and in which order they are made.

A node that computes has a **site** for each of its values: rows come out of it. Everything between two sites (Cond,
Phi, Loop, Isu, Bcast, Flatmap, Ungroup, Group) only sends rows about, by their states. So what a site reads are rows of
other sites, and all that can come to one port of it are kept in one **arena**: rows of one width, in one tensor.

    h0 ──> Loop ──> cell ──> Loop ...        cell reads rows of h0 and of itself: both are in one arena

    arena of h    [ h0 | cell, round 0 | cell, round 1 | cell, round 2 ]

Some nodes need not make rows at all, because their readers can read the rows they are made of instead:

    Concat, Split, Reduce("beside"), a slice    rows side by side, or some columns of a row: **views** of other rows
    Linear without bias, before a sum           W x + W y = W (x + y): the sum is made first, of fewer rows

Where nodes are parted over several workers, rows of one that another reads **cross** to it. There they are a site of
their own, whose rows are made by receiving them:

    worker 0     cell ──> rows of cell ──(send)──┐
    worker 1                                     └──> crossing: the same rows, in an arena of worker 1 ──> readout

All workers know all sites; arenas and slots are those of one worker, ``here``. Views, sums of products and choices end
at the border between two workers.

Loops are served round by round, and what lies behind a loop when all its rounds are over (`order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ampnet.errors import AmpnetError
from ampnet.graph import CONTROLLER, End, Graph, Wiring
from ampnet.nodes.cond import Cond
from ampnet.nodes.linear import Linear
from ampnet.nodes.module import Module
from ampnet.nodes.node import Node, Piece
from ampnet.nodes.program import Ref
from ampnet.nodes.reduce import Reduce
from ampnet.nodes.rows import Rows
from ampnet.nodes.transform import Parameterised
from ampnet.plan.team import Team

_FEW = 3
"""Minimum number of Linears in a choice for computing them in one operation."""


class Unplayable(AmpnetError):
    """A graph, or a worker's part of one, that cannot be computed in waves. The message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a site reads, row by row: whole rows of an arena, or some columns of them."""

    arena: int
    columns: tuple[int, int] | None = None
    """Start and stop; None: all of the row."""


@dataclass(eq=False, slots=True)
class Site:
    """One value of a node."""

    number: int
    node: Node | None
    """None: the site is an input."""
    end: End
    """The node and the output port. Of a Loss, which has none, port 0."""
    kind: str
    """"input", "rows", "bag" (a sum of rows), "mixture" (a sum of products), "segments" (other reductions), "loss",
    "result" (what is reported); "pairs" are rows of which a mixture is made; "crossing" are rows of another worker;
    "view" and "absorbed" make none."""
    worker: int = -1
    """The worker that makes its rows. -1: pumped, to every worker that reads them."""
    here: bool = True
    """Whether its rows are made, received or pumped here."""
    source: Site | None = None
    """Of a crossing: the site whose rows cross."""
    arena: int = -1
    rank: int = 0
    """Place in the order of a round."""
    component: int = 0
    """Which loop it is in; loops, and what is in none, are served in this order."""
    parts: list[Part] = field(default_factory=list)
    """The source of each slot of the site."""
    still: bool = False
    """Whether its rows depend on no parameter, so that their gradients are not needed."""
    views: list[Site | None] = field(default_factory=list)
    """The view by which each row is read, by port and, for concatenated rows, by position."""
    terms: list[Site] = field(default_factory=list)
    """Of a mixture: the absorbed Linears."""
    pairs: list[Site] = field(default_factory=list)
    """Of a mixture: the sums that each of its Linears is applied to, as sites."""
    slot: int = -1
    """The number of the first slot, here; -1: it has none here. A mixture has three: what pairs read, what it reads,
    and the way back."""
    early: list[bool] = field(default_factory=list)
    """Of each slot: whether all that it reads is made before the site's first round."""
    choice: int | None = None
    """Which choice the Linear is one of: all of them are computed in one operation (`ampnet.wave.kernels.choice`)."""
    _whole: bool | None = None
    """Cached result of `whole_messages`."""
    block: tuple[int, int] = (0, 0)
    """(block, place in it): blocks lie one after the other in the arena, round by round, in the order of places."""

    @property
    def name(self) -> str:
        return self.end.node

    @property
    def looks_at_states(self) -> bool:
        """Whether the node reads the states of its messages while it computes."""
        return self.node is not None and (self.face or self.node).looks_at_states

    @property
    def face(self) -> Parameterised | None:
        """The node that says how it computes, where it has parameters."""
        return self.node.face(self.end.port) if isinstance(self.node, Parameterised) else None

    @property
    def whole_messages(self) -> bool:
        """Whether a row is made of all rows of its message (`ampnet.nodes.module`)."""
        if self._whole is None:
            face = self.face
            self._whole = isinstance(face, Module) and face.body.grouped
        return self._whole

    @property
    def makes_rows(self) -> bool:
        """Whether its rows are in an arena. Those of views and absorbed sites are nowhere."""
        return self.kind not in ("view", "absorbed")

    @property
    def sources(self) -> int:
        """How many rows each of its rows is made of (of a sum: kinds of rows)."""
        if isinstance(self.node, Reduce) and self.node.how == "beside":
            return self.node.count
        return 0 if self.node is None else len(inputs_of(self))


class Sites:
    """The sites of the nodes of a team, seen from one of its workers. Raises `Unplayable`
    for a graph that cannot be planned."""

    def __init__(self, graph: Graph, wiring: Wiring, team: Team, here: int = 0) -> None:
        self.graph, self.wiring, self.nodes, self.team, self.here = graph, wiring, team.nodes, team, here
        self.parted = len(team.workers) > 1
        self.order: list[list[tuple[str, int]]] = []
        """Ports by node and number, as they are served: a list for each loop, and for each port that is in none."""
        self.place: dict[tuple[str, int], tuple[int, int]] = {}
        """Where a port is in `order`: (component, place)."""
        self._check()
        self._make_order()
        self.sites: list[Site] = []
        self.at: dict[End, Site] = {}
        """By the port their rows leave by."""
        self._make_sites()
        self._pumped: dict[End, Site] = {}
        self._read: dict[tuple[str, int], list[Site]] = {}
        for site in self.sites:
            for port in self._ports(site):
                self._read[site.name, port] = self._sources(End(site.name, port))
        self.made_at = {(end.node, end.port): site for end, site in self.at.items()}
        """The site of each output port, by node and number."""
        self.leads = {(end.node, end.port): (to.node, to.port) for end, to in wiring.forward.items()}
        """The input port that each output port leads to, by node and number."""
        self._find_views()
        self._find_mixtures()
        self._find_choices()
        self._find_still()
        self.crossings: list[Site] = []
        """In the order of their numbers, the same on all workers."""
        self._cross: dict[tuple[int, int], Site] = {}
        if self.parted:
            self._find_crossings()
        self._make_arenas()

    # -- what can be played

    def _check(self) -> None:
        for name, node in self.nodes.items():
            if node.role == "own":
                raise Unplayable(
                    f"node '{name}' ({type(node).__name__}) has a forward and backward of its own, so what it does "
                    f"with rows is not known beforehand. Remedy: make it a Transform, a Parameterised or a Function"
                )
            for port in range(len(node.outputs)):
                target = self.wiring.forward[End(name, port)].node
                if target not in self.nodes:
                    raise Unplayable(f"node '{name}' sends to '{target}', which is not in its team")

    # -- order

    def _make_order(self) -> None:
        places = {name: i for i, name in enumerate(self.graph.order())}
        ports = [(n, i) for n in self.nodes for i in range(len(self.nodes[n].inputs))]
        after = {port: list(self._next_ports(*port)) for port in ports}
        reach = {port: _reached(port, after) for port in ports}
        left = sorted(ports, key=lambda port: (places[port[0]], port[1]))
        while left:
            # The first port that nothing else leads to, but what it leads back to.
            first = next(p for p in left if all(p not in reach[q] or q in reach[p] for q in left if q != p))
            loop = [p for p in left if p == first or (p in reach[first] and first in reach[p])]
            for place, port in enumerate(loop):
                self.place[port] = (len(self.order), place)
            self.order.append(loop)
            left = [p for p in left if p not in loop]

    def _next_ports(self, name: str, port: int) -> Iterator[tuple[str, int]]:
        for out in self.nodes[name].leads_to(port):
            end = self.wiring.forward[End(name, out)]
            yield end.node, end.port

    # -- sites

    def _make_sites(self) -> None:
        for port in range(len(self.graph.inputs)):
            self._add(None, End(CONTROLLER, port), "input")
        for name, node in self.nodes.items():
            if node.role == "route":
                continue
            kind: str = node.role
            if kind == "reduce":
                kind = "bag" if isinstance(node, Reduce) and node.how == "sum" else "segments"
            for port in range(max(1, len(node.outputs))):
                self._add(node, End(name, port), kind)

    def _add(self, node: Node | None, end: End, kind: str) -> None:
        site = Site(len(self.sites), node, end, kind)
        if node is not None:
            site.worker = self.team.hosts[end.node]
            places = [self.place[end.node, port] for port in self._ports(site)]
            site.component, site.rank = max(places)
        else:
            site.component = -1
        self.sites.append(site)
        self.at[end] = site

    def _ports(self, site: Site) -> list[int]:
        return inputs_of(site)

    def _sources(self, end: End) -> list[Site]:
        """The sites whose rows can arrive at an input port."""
        found: dict[int, Site] = {}
        seen: set[End] = set()
        todo = [end]
        while todo:
            source = self.wiring.backward[todo.pop()]
            if source in seen:
                continue
            seen.add(source)
            if source in self.at:
                found[self.at[source].number] = self.at[source]
                continue
            node = self.graph.nodes[source.node]
            todo += [End(source.node, i) for i in range(len(node.inputs)) if source.port in node.leads_to(i)]
        return list(found.values())

    def readers(self, site: Site) -> list[tuple[Site, int]]:
        """The nodes and ports that read a site's rows."""
        return [
            (reader, port)
            for reader in self.sites
            for port in self._ports(reader)
            if site in self._read[reader.name, port]
        ]

    def pumped_at(self, end: End) -> Site:
        """The input that is pumped into a port."""
        if end not in self._pumped:
            self._pumped[end] = self._sources(end)[0]
        return self._pumped[end]

    def read(self, site: Site, port: int) -> list[Site]:
        """The sites whose rows arrive at a port of a site."""
        return self._read[site.name, port]

    def signature(self) -> list[tuple[object, ...]]:
        """A digest that is equal for replicas: they can share scores."""
        return [(s.kind, type(s.node), self.graph.called(s.name), s.end.port, s.arena, s.block) for s in self.sites]

    # -- views

    def _find_views(self) -> None:
        for site in self.sites:
            pieces = pieces_of(site)
            if pieces is None:
                continue
            solid = all(s.kind != "view" for port in self._ports(site) for s in self.read(site, port))
            readers = self.readers(site)
            near = all(reader.worker == site.worker for reader, _ in readers)
            if solid and near and readers and all(self._takes(reader, len(pieces), port) for reader, port in readers):
                site.kind = "view"
        for site in self.sites:
            beside = isinstance(site.node, Reduce) and site.sources > 1
            ports = [0] * site.sources if beside else self._ports(site)
            for port in ports:
                sources = self.read(site, port)
                site.views.append(sources[0] if len(sources) == 1 and sources[0].kind == "view" else None)

    def _takes(self, reader: Site, pieces: int, port: int) -> bool:
        """Whether a site can read rows that consist of these pieces."""
        if len(self.read(reader, port)) > 1 or reader.kind not in ("rows", "loss", "result"):
            return False
        return pieces == 1 or not isinstance(reader.face, Module | None)

    # -- sums of products

    def _find_mixtures(self) -> None:
        for site in self.sites:
            if site.kind != "bag":
                continue
            sources = self.read(site, 0)
            linears = [s for s in sources if _plain_linear(s) and s.views == [None] and len(self.readers(s)) == 1]
            zeros = [s for s in sources if _is_zero(s) and len(self.readers(s)) == 1]
            near = all(source.worker == site.worker for source in sources)
            if linears and near and len(linears) + len(zeros) == len(sources):
                site.kind, site.terms = "mixture", linears
                for term in (*linears, *zeros):
                    term.kind = "absorbed"

    # -- choices

    def _find_choices(self) -> None:
        """Linears of one shape, in no loop, that a Cond chooses among, or that read nothing but such Linears."""
        found: dict[object, list[Site]] = {}
        for site in sorted(self.sites, key=lambda s: (s.component, s.rank)):
            if site.kind != "rows" or not isinstance(site.node, Linear) or site.node.sites > 1 or site.views != [None]:
                continue
            if len(self.order[site.component]) > 1:
                continue
            sources, node = self.read(site, self._ports(site)[0]), site.node
            end = self.wiring.backward[End(site.name, site.end.port)]
            chosen = end.node != CONTROLLER and isinstance(self.graph.nodes[end.node], Cond)
            only = sources[0] if len(sources) == 1 and not chosen else None
            if not chosen and (only is None or only.choice is None or len(self.readers(only)) > 1):
                continue
            source = tuple(s.number for s in sources) if only is None else ("choice", only.choice)
            w = node.updater.weights
            shape = (tuple(w[0].shape), len(w), w[0].dtype)
            kind = (source, node.activation, shape, end.node if chosen else None, site.worker)
            mine = found.setdefault(kind, [])
            site.choice = list(found).index(kind)
            mine.append(site)
        for sites in found.values():
            if len(sites) < _FEW:
                for site in sites:
                    site.choice = None

    # -- crossings

    def _find_crossings(self) -> None:
        """Let sites that read rows of another worker read a crossing instead; drop sites that nothing local reads."""
        for site in list(self.sites):
            for port in self._ports(site):
                sources = self._read[site.name, port]
                self._read[site.name, port] = [self._brought(source, site.worker) for source in sources]
        for site in self.sites:
            site.here = site.worker == self.here
        for site in self.sites:
            for port in self._ports(site) if site.here else ():
                for source in self._read[site.name, port]:
                    source.here = True

    def _brought(self, source: Site, worker: int) -> Site:
        if source.worker in (-1, worker) or source.kind == "crossing":  # several outputs of a node share its ports
            return source
        found = self._cross.get((source.number, worker))
        if found is None:
            found = self._cross[source.number, worker] = Site(
                len(self.sites),
                None,
                source.end,
                "crossing",
                worker,
                source=source,
                rank=source.rank,
                component=source.component,
                still=source.still,
            )
            self.sites.append(found)
            self.crossings.append(found)
        return found

    def crossing(self, source: int, worker: int) -> Site:
        """The crossing that brings rows of a site to another worker."""
        return self._cross[source, worker]

    def sends(self, site: Site) -> bool:
        """Whether rows of a crossing are sent from here."""
        return site.source is not None and site.source.worker == self.here

    # -- arenas

    def _make_arenas(self) -> None:
        same = list(range(len(self.sites)))
        local = [site for site in self.sites if site.here]

        def root(i: int) -> int:
            while same[i] != i:
                i = same[i]
            return i

        for site in local:
            for port in self._ports(site):
                sources = self.read(site, port)
                for other in sources[1:]:
                    same[root(other.number)] = root(sources[0].number)
        first_of: dict[int, int] = {}
        for site in local:  # the layers of a choice make rows of one arena
            if site.choice is not None:
                same[root(site.number)] = root(first_of.setdefault(site.choice, site.number))
        for site in local:  # the terms of a mixture all read one arena
            first = [self.read(term, 0)[0].number for term in site.terms]
            for number in first[1:]:
                same[root(number)] = root(first[0])
        numbers: dict[int, int] = {}
        for site in local:
            if site.makes_rows:
                site.arena = numbers.setdefault(root(site.number), len(numbers))
        self.arenas = len(numbers)
        for site in list(self.sites):
            if site.makes_rows and site.here:
                site.parts = self._parts(site)
            elif self.sends(site) and site.source is not None:
                site.parts = [Part(site.source.arena)]
            if site.kind == "mixture":
                self._add_pairs(site)
        self._count_readers()
        self.arena_sites = [sum(s.arena == a for s in self.sites) for a in range(self.arenas)]
        """The number of sites that write rows into each arena."""
        self.blocks = 0
        self.memo: dict[object, object] = {}
        """A cache for kernels: facts about sites that hold for every wave."""
        self.fields: dict[int, tuple[str, ...]] = {}
        """By number, of sites whose node reads states: the state fields of their messages."""
        self.linked: set[int] = set()
        """Slots that read rows that are not contiguous."""
        self.slots: list[Site] = []
        """The site of each slot."""
        local = [site for site in self.sites if site.here]
        solid = [s for s in local if s.makes_rows and s.kind not in ("loss", "result", "pairs")]
        for site in sorted(solid, key=lambda s: (s.arena, not s.still, s.component, s.rank, s.number)):
            site.block = (self.blocks, 0)
            self.blocks += 1
        for site in self.sites:
            for place, pairs in enumerate(site.pairs) if site.here else ():
                pairs.block = (self.blocks, place)
            self.blocks += bool(site.pairs) and site.here
            if site.kind in ("loss", "result") and site.here:
                site.block = (self.blocks, 0)
                self.blocks += 1
            if not site.parts:
                continue
            site.slot = len(self.slots)
            self.slots += [site] * (3 if site.kind == "mixture" else len(site.parts))
        self._make_columns()

    def _add_pairs(self, site: Site) -> None:
        """Add the sums that the Linears of a mixture are applied to: they are rows, too, in a separate arena."""
        for term in site.terms:
            arena = self.arenas if site.here else -1
            pairs = Site(len(self.sites), term.node, term.end, "pairs", site.worker, site.here, arena=arena)
            pairs.rank, pairs.component = site.rank, site.component
            self.sites.append(pairs)
            site.pairs.append(pairs)
        if site.here:
            site.parts.append(Part(self.arenas))
            self.arenas += 1

    def _count_readers(self) -> None:
        """Find arenas whose rows only one slot reads, outside loops: its gradient can be written instead of added."""
        slots = [(site, part) for site in self.sites for part in site.parts]
        self.sole = [False] * self.arenas
        for arena in range(self.arenas):
            mine = [(site, part) for site, part in slots if part.arena == arena]
            if len(mine) == 1:
                site, part = mine[0]
                alone = site.node is not None and len(self.order[site.component]) == 1
                self.sole[arena] = alone and site.kind == "rows" and part.columns is None

    def _find_still(self) -> None:
        for site in self.sites:
            site.still = site.kind == "input"
        changed = True
        while changed:
            changed = False
            for site in self.sites:
                if (
                    site.still
                    or site.kind in ("mixture", "pairs", "loss", "result")
                    or isinstance(site.node, Parameterised)
                ):
                    continue
                if all(s.still for port in self._ports(site) for s in self.read(site, port)):
                    site.still = changed = True

    def _make_columns(self) -> None:
        """Site attributes as arrays, indexed by site number."""
        sites = self.sites
        self.width = max((len(s.pairs) for s in sites), default=1) or 1
        """Places in a block, at most."""
        self.block_of, self.inner_of = np.array([s.block[0] for s in sites]), np.array([s.block[1] for s in sites])
        self.arena_of = np.array([s.arena for s in sites])
        solid = [s for s in sites if s.makes_rows and s.here]
        self.block_arena = np.zeros(self.blocks, dtype=np.int64)
        for site in solid:
            self.block_arena[site.block[0]] = site.arena
        arenas = range(self.arenas)
        of = [[s.block[0] for s in solid if s.arena == a] for a in arenas]
        pumped = [[s.block[0] for s in solid if s.arena == a and s.still] for a in arenas]
        self.first_block, self.last_block = np.array([min(b) for b in of]), np.array([max(b) for b in of])
        self.pumped_block = np.array([max(b, default=-1) for b in pumped])
        """For each arena: its first and last block, and the last block whose gradients are not needed (-1: none)."""

    def _parts(self, site: Site) -> list[Part]:
        if site.kind == "mixture":
            return [Part(self.read(site.terms[0], 0)[0].arena)]
        parts = []
        for source, view in enumerate(site.views):
            pieces = [(source, None)] if view is None else pieces_of(view) or ()
            reader = site if view is None else view
            for place, columns in pieces:
                port = self._ports(reader)[0 if isinstance(reader.node, Reduce) else place]
                sources = self.read(reader, port)
                parts.append(Part(sources[0].arena, columns))
                site.early.append(all(s.component < site.component for s in sources))
        return parts


def inputs_of(site: Site) -> list[int]:
    """The input ports that a site reads."""
    node = site.node
    if node is None:
        return []
    return [i for i in range(len(node.inputs)) if not node.outputs or site.end.port in node.leads_to(i)]


def pieces_of(site: Site) -> list[Piece] | None:
    """The pieces of a site's rows, if they consist only of columns of other rows."""
    return None if site.node is None else site.node.view(site.end.port)


def _plain_linear(site: Site) -> bool:
    node = site.node
    return isinstance(node, Linear) and node.activation is None and len(node.parameters) == 1 and node.sites == 1


def _is_zero(site: Site) -> bool:
    """Whether all rows of a site are zero."""
    node = site.node
    if not isinstance(node, Rows) or len(node.program.steps) != 1 or node.program.steps[0].op != "fill":
        return False
    value = node.program.steps[0].settings["value"]
    return isinstance(node.program.steps[0].operands[0], Ref) and not bool((value != 0).any())


def _reached(start: tuple[str, int], after: Mapping[tuple[str, int], list[tuple[str, int]]]) -> set[tuple[str, int]]:
    seen: set[tuple[str, int]] = set()
    todo = list(after[start])
    while todo:
        port = todo.pop()
        if port not in seen:
            seen.add(port)
            todo += after[port]
    return seen
