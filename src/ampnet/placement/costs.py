"""Costs: what one wave costs, node by node, and what crosses where nodes are on several workers.

    worker 0    [embedding 3 ms]──┐ rows of a site cross once for each round in which they are read ...
    worker 1                      └──>[cell 9 ms][classify 1 ms]          ... and so do their gradients, back

    load of a worker = seconds of its nodes: forward, backward, collecting gradients, updates
                     + for every crossing, at the sender and at the receiver: HOP + bytes / BYTES
                     + for every operation of its nodes: laying it out, the player's loop (`beside`)

A **unit** is a set of nodes that have to be on one worker to stay as cheap as they were measured
(`ampnet.placement.units`). A view with several readers is made, as rows, where one of them is on another worker. Nodes
that only send rows about cost nothing, and are in no table here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ampnet.graph import Graph
from ampnet.placement.memory import memory_of
from ampnet.update.policy import Update

HOP = 40e-6
"""Seconds that a crossing takes of each of the two workers: a third to send or receive it (bench/hops.py), the rest is
its operation."""
BYTES = 3e9
"""Bytes of rows that each of them copies in a second, into memory that is shared and out of it into arenas; from QM9 in
two parts beside one, on one core each."""
COPIED = 4e9
"""Bytes a second of rows that are made only because they cross."""

Key = TypeVar("Key")
_In = TypeVar("_In", contravariant=True)
Site = tuple[str, int]
"""A node and the output port that its rows leave by."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The rows of a site that one node reads in a wave."""

    rounds: float = 0.0
    """Rounds of the site of which rows are read."""
    bytes: float = 0.0

    def part(self, of: int) -> Flow:
        """The share of one of several copies: as many rounds, fewer rows."""
        return Flow(self.rounds, self.bytes / of)


@dataclass(frozen=True, slots=True)
class Made:
    """The rows that a site computes in a wave, and their readers."""

    bytes: float
    readers: Mapping[str, Flow]
    """By node."""
    still: bool = False
    """Whether their gradients are not needed."""
    view: bool = False
    """Whether they are materialised only for readers on another worker."""

    def crossing(self, readers: Iterable[str]) -> Flow:
        """The rows sent to a worker that hosts these readers: each row once."""
        flows = [self.readers[name] for name in readers]
        return Flow(max(f.rounds for f in flows), min(self.bytes, sum(f.bytes for f in flows)))


class _Where(Protocol[_In]):
    """The worker of each key: a mapping, or a list by number."""

    def __getitem__(self, key: _In, /) -> int: ...


class Crossings(Generic[Key]):
    """The cost of sending the rows of a site to its readers, counted by node or by unit."""

    __slots__ = ("at", "home", "hop", "making", "rate", "readers", "size", "ways")

    def __init__(
        self, made: Made, home: Key, readers: Mapping[Key, Sequence[str]], hop: float = HOP, rate: float = BYTES
    ) -> None:
        """``hop``, ``rate``: as in `Costs`."""
        self.home, self.size, self.ways = home, made.bytes, 1 if made.still else 2
        self.hop, self.rate = hop, rate
        self.readers = [(key, made.crossing(names)) for key, names in readers.items()]
        self.making = 2 * made.bytes / COPIED if made.view else 0.0
        self.at: list[tuple[int, float]] = []
        """The seconds of this flow by worker that are included in the caller's loads."""

    def between(self, where: _Where[Key]) -> list[tuple[int, float]]:
        """Seconds by worker for this placement. Each row is sent once to a worker, however many nodes read it there."""
        home, away = where[self.home], dict[int, tuple[float, float]]()
        for key, flow in self.readers:
            worker = where[key]
            if worker != home:
                rounds, size = away.get(worker, (0.0, 0.0))
                away[worker] = (flow.rounds if flow.rounds > rounds else rounds, size + flow.bytes)
        if not away:
            return []
        ways, most = self.ways, self.size
        out = [(w, ways * (rounds * self.hop + min(size, most) / self.rate)) for w, (rounds, size) in away.items()]
        return [*out, (home, sum([seconds for _, seconds in out]) + self.making)]


@dataclass(slots=True)
class Costs:
    """The cost of a wave. Numbers are means over the waves of a trial, or estimates (`reason`)."""

    seconds: dict[str, float] = field(default_factory=dict)
    """By node, in topological order."""
    made: dict[Site, Made] = field(default_factory=dict)
    operations: dict[str, float] = field(default_factory=dict)
    """By node: operations of a wave, both directions."""
    beside: float = 0.0
    """Seconds of a wave on one worker that belong to no node: laying out, the loop, checking gradients."""
    alone: float = 0.0
    """Seconds of a wave in one process, from pumping it to its end; 0: not measured."""
    instances: float = 1.0
    """Instances of a wave."""
    units: list[frozenset[str]] = field(default_factory=list)
    """Sets of nodes that share a worker. A node that is in none is one by itself."""
    memory: dict[str, int] = field(default_factory=dict)
    """By node: bytes of its parameters, the sums of their gradients, and what its optimizer keeps."""
    reason: str | None = None
    """Why they are estimates; None: they were measured."""
    hop: float = HOP
    """Seconds that a crossing takes of each of the two workers."""
    rate: float = BYTES
    """Bytes of rows that each of them copies, or that a link carries, in a second."""

    @property
    def total(self) -> float:
        """Seconds of a wave on one core."""
        return self.alone or sum(self.seconds.values()) + self.beside

    @property
    def each(self) -> float:
        """Seconds beside the nodes for each operation."""
        return self.beside / max(1.0, sum(self.operations.values()))

    def own(self, name: str) -> float:
        """Seconds of a node, with its share of the overhead."""
        return self.seconds[name] + self.each * self.operations.get(name, 0.0)

    def loads(self, hosts: Mapping[str, int], workers: int) -> list[float]:
        """Seconds of a wave at each worker."""
        out = [0.0] * workers
        for name in self.seconds:
            out[hosts[name]] += self.own(name)
        for (name, _), made in self.made.items():
            readers = {reader: [reader] for reader in made.readers}
            for worker, seconds in Crossings(made, name, readers, self.hop, self.rate).between(hosts):
                out[worker] += seconds
        return out

    def folded(self, graph: Graph) -> Costs:
        """The costs with the copies of a whole model added up under the names of the originals."""
        called = graph.called
        out = Costs(beside=self.beside, alone=self.alone, instances=self.instances, reason=self.reason)
        out.hop, out.rate = self.hop, self.rate
        for mine, given in ((out.seconds, self.seconds), (out.operations, self.operations)):
            for name, value in given.items():
                mine[called(name)] = mine.get(called(name), 0.0) + value
        for (name, port), made in self.made.items():
            before = out.made.get((called(name), port))
            readers = dict(before.readers) if before is not None else {}
            for reader, flow in made.readers.items():
                other = readers.get(called(reader), Flow())
                readers[called(reader)] = Flow(other.rounds + flow.rounds, other.bytes + flow.bytes)
            size = made.bytes + (before.bytes if before is not None else 0.0)
            out.made[called(name), port] = Made(size, readers, made.still, made.view)
        out.units = list(dict.fromkeys(frozenset(map(called, unit)) for unit in self.units))
        out.memory = {called(name): size for name, size in self.memory.items()}
        return out


def guess(graph: Graph, reason: str, policies: Mapping[str, Update | None] | None = None) -> Costs:
    """Estimate without a trial: a constant, and the number of parameters. ``policies``: as in `memory_of`."""
    weights = {name: sum(w.numel() for w in n.updater.weights) for name, n in graph.parameterised().items()}
    most = max(weights.values(), default=1)
    names = [name for name in graph.order() if graph.nodes[name].role != "route"]
    seconds = {name: 1e-4 + 1e-2 * weights.get(name, 0) / most for name in names}
    return Costs(seconds, memory=memory_of(graph, policies), reason=reason)
