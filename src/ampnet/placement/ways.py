"""Ways: the numbers of workers, of replicas and of tiles that a model could be run with, and the best of them.

    --workers 2                                    a plain cut
    --workers 4 --replicate gru=2                  a node that is too large for one worker has copies on several ...
    --workers 4 --tile fc=2                        ... or, a Linear, tiles: each has a part of the weights
    --replicas 4                                   copies of the whole model, a worker each
    --replicas 2 --workers 4                       copies of the whole model, each cut over two workers

Nothing is run here: costs are those of one trial, and copies and tiles are put into them as they would be put into the
graph. A copy has a part of the rows, of every row the same columns; a tile has all rows, and a part of the columns.

A way that takes more workers, or changes the graph, has to be expected to pay: by a tenth for each step (`best`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import ceil

from torch import nn

from ampnet.errors import GraphError
from ampnet.graph import Graph
from ampnet.nodes.linear import Linear
from ampnet.placement.costs import Costs, Flow, Made
from ampnet.placement.cut import cut
from ampnet.placement.expect import Expectation, expect
from ampnet.placement.units import joined

PAYS = 1.1
"""A way replaces a simpler one if it is expected to be faster by this factor."""
CALL = 15e-6
"""Fixed seconds of an operation, whatever its number of rows."""
_COPIES = 3
"""Maximum number of copies for each worker, of all nodes together."""
_HEAVY = 0.6
"""A unit is copied if it has at least this share of a worker's load."""
_WIDE = 64
"""Minimum number of outputs of a Linear that is split into tiles."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a model: workers, replicas, copies, tiles."""

    workers: int
    replicas: int
    """Copies of the whole model."""
    copies: Mapping[str, int]
    """By node; its unit is copied with it (`ampnet.placement.units.around`)."""
    tiles: Mapping[str, int]
    costs: Costs
    """Of one copy of the model, with its copies and tiles."""
    expected: Expectation

    @property
    def speedup(self) -> float:
        return self.expected.speedup

    @property
    def changes(self) -> bool:
        """Whether it needs copies or tiles of single nodes."""
        return bool(self.copies or self.tiles)

    def options(self) -> str:
        """The options of the command line that select it."""
        parts = [f"--replicas {self.replicas}"] if self.replicas > 1 else []
        if self.workers != self.replicas or not parts:
            parts.append(f"--workers {self.workers}")
        for option, given in (("--replicate", self.copies), ("--tile", self.tiles)):
            if given:
                parts.append(f"{option} {','.join(f'{name}={count}' for name, count in given.items())}")
        return " ".join(parts)


@dataclass
class Ways:
    """The ways in which a graph, with these costs, can be run."""

    graph: Graph
    costs: Costs
    cores: int
    limit: int | None = None
    """Bytes that a worker may take."""
    in_flight: int | None = None
    """Waves of a copy of the model in flight at once; None: enough."""
    making: float = 0.0
    """Seconds that the controller takes to make an instance."""
    _whole: Costs = field(init=False)

    def __post_init__(self) -> None:
        self._whole = replace(self.costs, alone=self.costs.total)

    def one(self) -> Way:
        """The way without worker processes."""
        alone = dict.fromkeys(self.costs.seconds, 0)
        return Way(1, 1, {}, {}, self._whole, replace(expect(self._whole, alone), speedup=1.0))

    def of_workers(self, workers: int, replicas: int = 1) -> Way:
        """A plain cut, for each of ``replicas`` copies of the model. Raises `GraphError` if memory is too small."""
        return self._way(self._whole, workers, replicas, {}, {})

    def given(self, workers: int, copies: Mapping[tuple[str, ...], int], tiles: Mapping[str, int]) -> Way:
        """A cut with copies of these sets of nodes, and tiles of these Linears. Raises `GraphError` likewise."""
        costs = self._whole
        for name, count in tiles.items():
            costs = tiled_costs(costs, name, count)
        for count in sorted(set(copies.values())):  # an instance goes to copy i of all of them
            alike = [name for unit, number in copies.items() if number == count for name in unit]
            costs = copied_costs(costs, [name for name in alike if name in costs.seconds], count)
        known = [(set(unit) & set(self.costs.seconds), count) for unit, count in copies.items()]
        called = {max(sorted(unit), key=self.costs.own): count for unit, count in known if unit}
        return self._way(costs, workers, 1, called, tiles)

    def with_copies(self, workers: int) -> Iterator[Way]:
        """A cut with copies or tiles of the units that are too large for one worker."""
        each = sum(map(self.costs.own, self.costs.seconds)) / workers
        units = {unit: sum(map(self.costs.own, unit)) for unit in self._units()}
        heavy = sorted((unit for unit in units if units[unit] > _HEAVY * each), key=lambda unit: -units[unit])
        tried: list[Mapping[tuple[str, ...], int]] = [{}]
        for some in (heavy[:1], heavy):
            for most in (0, workers, workers + 1, 2 * workers, 2 * workers + 1):  # more can be spread more evenly
                wanted = {u: most or min(workers, max(2, ceil(units[u] / each))) for u in some}
                if wanted not in tried and sum(wanted.values()) <= _COPIES * workers:
                    tried.append(wanted)
                    yield from self._changed(workers, wanted)

    def _changed(self, workers: int, wanted: Mapping[tuple[str, ...], int]) -> Iterator[Way]:
        linears = {unit: name for unit in wanted if (name := self._linear(unit)) is not None}
        for tiled in (linears, {}) if linears else ({},):
            copies = {unit: count for unit, count in wanted.items() if unit not in tiled}
            with suppress(GraphError):
                yield self.given(workers, copies, {name: wanted[unit] for unit, name in tiled.items()})

    def _way(
        self, costs: Costs, workers: int, replicas: int, copies: Mapping[str, int], tiles: Mapping[str, int]
    ) -> Way:
        hosts = cut(costs, workers // replicas, {}, self.limit)
        expected = expect(
            costs, hosts, replicas=replicas, cores=self.cores, in_flight=self.in_flight, making=self.making
        )
        return Way(workers, replicas, copies, tiles, costs, expected)

    def _units(self) -> list[tuple[str, ...]]:
        """All units, each in the order of its nodes."""
        unit_of = {name: unit for unit in self.costs.units for name in unit}
        units = dict.fromkeys(unit_of.get(name, frozenset((name,))) for name in self.costs.seconds)
        return [tuple(name for name in self.costs.seconds if name in unit) for unit in units]

    def _linear(self, unit: Sequence[str]) -> str | None:
        """The Linear of a unit, if it can be made tiles."""
        views = {name for (name, _), made in self.costs.made.items() if made.view}
        solid = [name for name in unit if name not in views]
        node = self.graph.nodes[solid[0]] if len(solid) == 1 else None
        if type(node) is not Linear or not isinstance(node.module, nn.Linear) or node.module.out_features < _WIDE:
            return None
        return solid[0]

    # -- the best

    def splits(self) -> Iterator[Way]:
        """One copy of the model on 2 workers, 4, ... as many as there are cores."""
        for workers in numbers(self.cores):
            with suppress(GraphError):
                yield self.of_workers(workers)
            yield from self.with_copies(workers)

    def whole(self, parted: bool = False) -> Iterator[Way]:
        """Several copies of the whole model; ``parted``: also over several workers each."""
        for replicas in numbers(self.cores):
            for workers in range(replicas, self.cores + 1, replicas) if parted else (replicas,):
                with suppress(GraphError):
                    yield self.of_workers(workers, replicas)


def best(ways: Iterable[Way]) -> Way | None:
    """The simplest way that no other beats by a tenth; None if there is no way."""
    chosen = None
    for way in sorted(ways, key=lambda way: (way.workers, way.changes, -way.speedup * _liked(way))):
        if chosen is None or way.speedup > PAYS * chosen.speedup:
            chosen = way
    return chosen


def _liked(way: Way) -> float:
    """Of tiles there is one set of weights; copies train on each other's."""
    return 1.05 if way.tiles and not way.copies else 1.0


def numbers(cores: int) -> list[int]:
    """2, 4, 8, ... and the number of cores."""
    return sorted({*(2**i for i in range(1, cores.bit_length()) if 2**i <= cores), *([cores] if cores > 1 else [])})


# -- copies and tiles, in costs


def copied_costs(costs: Costs, unit: Iterable[str], count: int) -> Costs:
    """The costs with ``count`` copies of these nodes, which share out instances. A copy reads its own rows only."""
    inside = set(unit)
    met = 1 / count  # a wave meets one copy (`ampnet.runtime.cutting`)
    out = _cleared(costs)

    def part(flow: Flow) -> Flow:
        return Flow(flow.rounds * met, flow.bytes / count)

    for name, seconds in costs.seconds.items():
        for copy in [f"{name}#{i + 1}" for i in range(count)] if name in inside else [name]:
            operations = costs.operations.get(name, 0.0)
            share = operations * met if name in inside else operations
            fixed = min(seconds, CALL * operations)
            out.seconds[copy] = fixed * met + (seconds - fixed) / count if name in inside else seconds
            out.operations[copy] = share
            out.memory |= {copy: costs.memory[name]} if name in costs.memory else {}
    for (name, port), made in costs.made.items():
        if name in inside:
            for i in range(count):
                own = {f"{r}#{i + 1}" if r in inside else r: part(f) for r, f in made.readers.items()}
                out.made[f"{name}#{i + 1}", port] = replace(made, bytes=made.bytes / count, readers=own)
            continue
        readers: dict[str, Flow] = {}
        for reader, flow in made.readers.items():
            copies = [f"{reader}#{i + 1}" for i in range(count)]
            readers |= dict.fromkeys(copies, part(flow)) if reader in inside else {reader: flow}
        out.made[name, port] = replace(made, readers=readers)
    for one in costs.units:
        out.units += [frozenset(f"{n}#{i + 1}" for n in one) for i in range(count)] if one <= inside else [one - inside]
    return _settled(out, costs)


def tiled_costs(costs: Costs, name: str, count: int) -> Costs:
    """The costs with a Linear in ``count`` tiles, each of which makes some columns of its rows, and has all of the rows
    that the Linear read."""
    out, tiles, together = _cleared(costs), [f"{name}~{i + 1}" for i in range(count)], f"{name}_together"
    for other, seconds in costs.seconds.items():
        operations = costs.operations.get(other, 0.0)
        fixed = min(seconds, CALL * operations)
        for tile in tiles if other == name else [other]:
            out.seconds[tile] = fixed + (seconds - fixed) / count if other == name else seconds
            out.operations[tile] = operations
            if other in costs.memory:
                out.memory[tile] = costs.memory[other] // (count if other == name else 1)
        if other == name:
            out.seconds[together] = out.operations[together] = 0.0
    for (other, port), made in costs.made.items():
        readers: dict[str, Flow] = {}
        for reader, flow in made.readers.items():
            readers |= dict.fromkeys(tiles, flow) if reader == name else {reader: flow}
        if other != name:
            out.made[other, port] = replace(made, readers=readers)
            continue
        rounds = max(flow.rounds for flow in made.readers.values())
        for tile in tiles:
            size = made.bytes / count
            out.made[tile, port] = Made(size, {together: Flow(rounds, size)}, made.still)
        out.made[together, port] = replace(made, readers=readers, view=True)
    out.units = [unit - {name} for unit in costs.units]
    reading = {reader for (other, _), made in out.made.items() if other == together for reader in made.readers}
    if len(reading) == 1:
        out.units = joined([*out.units, {together, *reading}])
    return _settled(out, costs)


def _cleared(costs: Costs) -> Costs:
    return Costs(alone=costs.total, instances=costs.instances, reason=costs.reason, hop=costs.hop, rate=costs.rate)


def _settled(out: Costs, before: Costs) -> Costs:
    """Scale the overhead with the number of operations."""
    out.beside = before.each * sum(out.operations.values())
    out.units = [unit for unit in out.units if len(unit) > 1]
    return out
