"""Waves of a simulation: laid out by the runtime's own planner, for every worker of a team, and reduced to times.

    instances ──Planner──> Layout of worker 0, of worker 1, ... ──costs──> PlannedPart: seconds, crossings, bytes

A wave is planned from states and structure, so nothing is computed. A simulation has far more waves than there are
different ones: of each size some are planned, and then they are used in turn. The copies of a whole model have equal
parts, so one team stands for all of them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ampnet.graph import CONTROLLER, End, Graph
from ampnet.instance import Instance
from ampnet.plan.layout import Layout, Operation
from ampnet.plan.lot import Lot
from ampnet.plan.planner import Planner
from ampnet.plan.team import Team
from ampnet.runtime.cutting import copies_of
from ampnet.simulate.costs import Measured, Operations
from ampnet.structure import Shelf
from ampnet.wave.timeline import BACKWARD, COLLECT, FORWARD, told_of

DIFFERENT = 24
"""The number of different waves of each size."""
Place = tuple[int, int, int]
"""A slice of rows: crossing, round, direction."""


@dataclass(slots=True)
class PlannedPart:
    """One worker's part of a wave. Lists have an entry for each operation, in the order of the layout."""

    fixed: list[tuple[float, float]] = field(default_factory=list)
    """Seconds beside products: forward, and backward with collecting."""
    flops: list[tuple[float, float]] = field(default_factory=list)
    """Floating-point operations in products, likewise."""
    nodes: list[tuple[str, int, int, int]] = field(default_factory=list)
    """Node, output port, round, rows."""
    still: list[bool] = field(default_factory=list)
    """Whether there is no backward."""
    crosses: list[Crossing | None] = field(default_factory=list)
    """What is sent or received, of operations at the border to another worker."""
    trained: list[tuple[tuple[str, int], ...]] = field(default_factory=list)
    """(node, messages with a gradient) of the nodes with parameters."""
    collects: list[tuple[str, ...]] = field(default_factory=list)
    """The nodes whose site is collected after the backward of this operation."""
    sites: Mapping[str, int] = field(default_factory=dict)
    """Of each node with parameters: its sites in the wave."""
    heard: Mapping[str, int] = field(default_factory=dict)
    """Of each node with parameters: messages that get a gradient."""
    own: Mapping[str, int] = field(default_factory=dict)
    """Of each node with parameters: the instances that it sees."""
    told: int = 0
    """Operations that an event tells of, in one direction."""
    bytes: float = 0.0
    """Rows and gradients in memory while it is in flight."""
    timed: dict[tuple[float, float], TimedPart] = field(default_factory=dict)
    """Its times where it is played at once, by the speed and the rate of the worker."""

    def __len__(self) -> int:
        return len(self.fixed)

    def seconds(self, at: int, direction: int, speed: float, rate: float) -> float:
        """Seconds of an operation on a core of this speed, with products at this rate (FLOP/s)."""
        return self.fixed[at][direction] / speed + self.flops[at][direction] / rate

    def at_once(self, speed: float, rate: float) -> TimedPart:
        """Its times where it is played from its first to its last operation."""
        found = self.timed.get((speed, rate))
        if found is None:
            found = self.timed[speed, rate] = TimedPart.of(self, speed, rate)
        return found


@dataclass(frozen=True, slots=True)
class TimedPart:
    """When each operation of a part is played, if nothing interrupts it."""

    seconds: float
    """All of it."""
    starts: tuple[tuple[int, int, float, float], ...]
    """(operation, direction, start, seconds) of each."""
    gradients: tuple[tuple[str, float, int], ...]
    """(node, time, messages) of each site that is collected."""

    @classmethod
    def of(cls, part: PlannedPart, speed: float, rate: float) -> TimedPart:
        """Times on a core of this speed."""
        seconds, starts = 0.0, list[tuple[int, int, float, float]]()
        gradients: list[tuple[str, float, int]] = []
        heard: dict[str, int] = {}
        forward = [(at, 0) for at in range(len(part))]
        backward = [(at, 1) for at in reversed(range(len(part))) if not part.still[at]]
        for at, direction in (*forward, *backward):
            took = part.seconds(at, direction, speed, rate)
            starts.append((at, direction, seconds, took))
            seconds += took
            if direction:
                for name, messages in part.trained[at]:
                    heard[name] = heard.get(name, 0) + messages
                gradients += [(name, seconds, heard.pop(name)) for name in part.collects[at] if heard.get(name)]
        return cls(seconds, tuple(starts), tuple(gradients))


@dataclass(frozen=True, slots=True)
class Crossing:
    """An operation at the border between two workers."""

    number: int
    round: int
    sends: bool
    """Whether this worker makes the rows; else it receives them."""
    other: int
    """The place in the team of the worker at the other end."""
    bytes: float
    still: bool
    """Whether no gradient comes back."""


@dataclass(frozen=True, slots=True)
class PlannedWave:
    """A wave, with the part of every worker of the team."""

    instances: int
    parts: tuple[PlannedPart, ...]


class Waves:
    """The waves of one team. ``hosts``: the worker of each node, numbered from 0 within the team."""

    def __init__(
        self, graph: Graph, hosts: Mapping[str, int], instances: Sequence[Instance], costs: Measured, seed: int = 0
    ) -> None:
        graph = copy.deepcopy(graph)  # a planner takes over the nodes that it plans for
        self.team = Team(graph.nodes, dict(hosts))
        self.workers = self.team.workers
        self.graph, self.instances, self.costs = graph, list(instances), costs
        wiring = graph.resolve()[0]
        self._ends = {given.name: wiring.forward[End(CONTROLLER, i)] for i, given in enumerate(graph.inputs)}
        shelf = Shelf()
        self._planners = [Planner(graph, wiring, self.team, worker, shelf) for worker in self.workers]
        self.parted = len(self.workers) > 1
        self.kinds = copies_of(self.team, graph.copies)
        """Instances go to this number of different copies of nodes: those of a wave to the same one, where several
        workers play it; a worker by itself mixes them."""
        self._seed = seed
        self._made: dict[tuple[int, int], list[PlannedWave]] = {}
        self._next: dict[tuple[int, int], int] = {}

    def rewind(self) -> None:
        """Begin with the first wave of each size again."""
        self._next.clear()

    def wave(self, size: int, kind: int = 0) -> PlannedWave:
        """Returns a wave of this number of instances, of which the first, or all, go to the copies ``kind``."""
        key = size, kind
        made, at = self._made.setdefault(key, []), self._next.get(key, 0)
        self._next[key] = at + 1
        if at == len(made) < DIFFERENT:
            made.append(self._plan(size, kind, at))
        return made[at % len(made)]

    def _plan(self, size: int, kind: int, number: int) -> PlannedWave:
        chosen = random.Random(f"{self._seed} {size} {kind} {number}").choices(self.instances, k=size)
        step = self.kinds if self.parted else 1
        numbered = {kind + i * step: one for i, one in enumerate(chosen)}
        parts = []
        with torch.no_grad():
            for planner in self._planners:
                lot = Lot(planner.sites, self._ends, numbered, True, None)
                layout = planner.layout(lot, (), [])
                parts.append(self._part(layout, numbered))
                planner.give_back(layout)
        return PlannedWave(size, tuple(parts))

    @property
    def lines(self) -> Operations:
        """The times of operations in this team."""
        return self.costs.turns if self.parted else self.costs.alone

    def _part(self, layout: Layout, numbers: Collection[int]) -> PlannedPart:
        part = PlannedPart(sites=dict(layout.trains))
        part.own = {name: self._own(name, numbers) for name in layout.trains}
        for op in layout.operations:
            site = op.site
            part.still.append(site.still)
            part.told += len(told_of(layout, op, FORWARD))
            part.nodes.append((site.name, site.end.port, op.round, op.stop - op.start))
            part.crosses.append(self._crossing(op) if op.crosses else None)
            part.trained.append(tuple((one.name, layout.heard(one.number, op.round)) for one in op.trained))
            part.collects.append(tuple(one.name for one in op.trained) if op.first else ())
            forward, products = self._time(layout, op, FORWARD)
            backward = (0.0, 0.0)
            if not site.still:
                backward = self._time(layout, op, BACKWARD)
                if op.first and op.trained:
                    collect = self._time(layout, op, COLLECT)
                    backward = backward[0] + collect[0], backward[1] + collect[1]
            part.fixed.append((forward, backward[0]))
            part.flops.append((products, backward[1]))
            if not op.crosses or site.here:
                part.bytes += (1 if site.still else 2) * (op.stop - op.start) * self._width(op)
        heard: dict[str, int] = {}
        for op in layout.operations:
            for one in op.trained if op.first else ():
                heard[one.name] = heard.get(one.name, 0) + layout.heard(one.number)
        part.heard = heard
        return part

    def _own(self, name: str, numbers: Collection[int]) -> int:
        """The number of these instances that a node sees: all, or those that go to this copy."""
        copy = self.graph.copies.get(name)
        if copy is None or not copy.by_instance:
            return len(numbers)
        return sum(number % copy.count == copy.number for number in numbers)

    def _width(self, op: Operation) -> int:
        return self.costs.widths.get((op.site.name, op.site.end.port), 0)

    def _time(self, layout: Layout, op: Operation, direction: int) -> tuple[float, float]:
        """Seconds beside products, and operations in products."""
        seconds = products = 0.0
        for site, rows, _ in told_of(layout, op, direction):
            if direction == COLLECT:  # all rounds at once
                rows = sum(one.stop - one.start for one in layout.wholes[op.site.number].operations)
            line = self.lines.line(site.name, site.end.port, direction)
            if line is not None:
                seconds += line.fixed + rows * line.row
                products += rows * line.flops
        return seconds, products

    def _crossing(self, op: Operation) -> Crossing:
        site = op.site
        assert site.source is not None
        rows = op.stop - op.start if site.here else len(op.reads[0])
        other = site.source.worker if site.here else site.worker
        return Crossing(
            site.number, op.round, not site.here, self.workers.index(other), rows * self._width(op), site.still
        )
