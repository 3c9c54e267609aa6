"""Study: a model, some of its instances, and what they cost: everything that simulations of it need.

    study = Study.trial(graph, instances, update=update)                  measures for some seconds
    study.simulate(workers=2, max_active_keys=64).throughput              on this machine
    study.simulate(read_machine("cluster.toml"), replicas=64)             on another one

A simulation of another way to run the model needs no other measurement. Copies and tiles of single nodes are made in a
copy of the graph; their operations take the part of the original's time that they have of its rows or columns.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ampnet.errors import GraphError
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.placement.costs import BYTES, Costs
from ampnet.placement.memory import memory_of
from ampnet.placement.place import place
from ampnet.placement.trial import Trial
from ampnet.placement.units import around
from ampnet.placement.ways import Ways
from ampnet.replicas.replicate import replicate as copied
from ampnet.simulate.costs import Line, Measured, Operations, flops_of
from ampnet.simulate.machine import Machine, this_machine
from ampnet.simulate.recorder import Recording
from ampnet.simulate.result import Result
from ampnet.simulate.setting import Setting, rules_of
from ampnet.simulate.simulation import Simulation
from ampnet.simulate.trial import SECONDS, Measurement
from ampnet.simulate.waves import Waves
from ampnet.tile import tile as split
from ampnet.update.policy import Update

TRIED = 512
"""The maximal number of instances in a trial."""


@dataclass
class Study:
    """See the head of this file."""

    graph: Graph
    instances: Sequence[Instance]
    costs: Measured
    placing: Costs
    """The costs of a wave, for placement."""
    max_active_keys: int
    """Default number of instances in flight for each worker that plays waves by itself."""
    update: Update | None = None
    updates: Mapping[str, Update | None] = field(default_factory=dict)
    unit: str = "instances"
    """What is counted as an example."""
    workload: str | None = None
    """The name of its workload, where it was read off a run."""
    _waves: dict[object, tuple[Graph, Waves]] = field(default_factory=dict, repr=False)

    @classmethod
    def trial(
        cls,
        graph: Graph,
        instances: Sequence[Instance],
        *,
        update: Update | None = None,
        updates: Mapping[str, Update | None] | None = None,
        max_active_keys: int = 16,
        seconds: float = SECONDS,
        unit: str = "instances",
        **settings: Any,
    ) -> Study:
        """Measure a model on this machine. ``max_active_keys``: instances of the largest wave that is measured.
        ``settings``: others of `Inline`. Raises `DataError` without instances, and errors of the model."""
        some = list(instances[:TRIED])
        given = {"update": update, "updates": updates or {}, **settings}
        sizes = (max(1, max_active_keys // 4), max_active_keys)
        costs = Measurement(graph, some, sizes, given, seconds).run()
        placing = Trial(graph, max_active_keys=max_active_keys, **given).run(some[: max(64, 2 * max_active_keys)])
        return cls(graph, some, costs, placing, max_active_keys, update, updates or {}, unit)

    @property
    def records(self) -> float:
        """The mean number of examples of an instance."""
        return sum(one.records for one in self.instances) / len(self.instances)

    def placing_on(self, machine: Machine, parts: int) -> Costs:
        """The costs for placement on a machine: crossings go over its links."""
        kinds = {number for number, _ in machine.seats()[:parts]}
        inside, between = machine.inside, machine.between
        if len(kinds) > 1:
            hop = self.costs.hop if between.hop is None else between.hop
            return replace(self.placing, hop=hop, rate=min(BYTES, between.bandwidth))
        return replace(self.placing, hop=self.costs.hop if inside.hop is None else inside.hop)

    def simulate(
        self,
        machine: Machine | None = None,
        *,
        workers: int | None = None,
        replicas: int = 1,
        max_active_keys: int | None = None,
        wave_size: int | None = None,
        schedule: str = "backward-first",
        affinity: Mapping[str, int] | None = None,
        replicate: Mapping[str, int] | None = None,
        tile: Mapping[str, int] | None = None,
        memory_per_worker: int | None = None,
        seconds: float = 10.0,
        seed: int = 0,
        recorder: Recording | None = None,
    ) -> Result:
        """Simulate this number of seconds of training. Options are those of `Processes`, `replicate` and `tile`;
        ``workers``: of all replicas together. Replicas on one computer share weights; on several, they are averaged at
        the end of an epoch. Raises `GraphError` for options that do not go together."""
        workers = replicas if workers is None else workers
        machine = (this_machine() if machine is None else machine).with_workers(workers)
        if workers % replicas:
            raise GraphError([f"{workers} workers cannot be shared out evenly among {replicas} replicas"])
        if replicas > 1 and (replicate or tile):
            raise GraphError(["copies of the whole model and of single nodes are not simulated together"])
        parts = workers // replicas
        processes = workers > 1
        graph, waves, chairs = self._planned(machine, parts, affinity, replicate or {}, tile or {}, memory_per_worker)
        if max_active_keys is None:
            max_active_keys = self.max_active_keys * (2 * replicas if parts == 1 and processes else workers)
        seats = machine.seats()
        computers = {seats[i * parts + chair][0] for i in range(replicas) for chair in chairs}
        setting = Setting(
            waves.team.hosts,
            parts=len(waves.workers),
            asked=parts,
            chairs=chairs,
            replicas=replicas,
            sync="shared" if len(computers) == 1 else "epoch",
            max_active_keys=max_active_keys,
            wave_size=wave_size,
            schedule=schedule,
            processes=processes,
            rules=rules_of(graph, self.update, self.updates),
        )
        memory = memory_of(graph, self._policies(graph))
        simulation = Simulation(waves, waves.costs, setting, machine, memory=memory, seed=seed, recorder=recorder)
        return simulation.run(seconds)

    def changed(
        self, copies: Mapping[str, int], tiles: Mapping[str, int]
    ) -> tuple[Graph, Mapping[tuple[str, ...], int]]:
        """Returns the graph, or a copy of it with copies and tiles of single nodes; and what was copied together."""
        if not copies and not tiles:
            return self.graph, {}
        graph = copy.deepcopy(self.graph)
        for name, count in tiles.items():
            split(graph, name, count)
        units = {tuple(around(graph, name)): count for name, count in copies.items()}
        for unit, count in units.items():
            copied(graph, unit, count, sync="shared")
        return graph, units

    def _policies(self, graph: Graph) -> dict[str, Update | None]:
        return {name: self.updates.get(graph.called(name), self.update) for name in graph.parameterised()}

    def _planned(
        self,
        machine: Machine,
        parts: int,
        affinity: Mapping[str, int] | None,
        copies: Mapping[str, int],
        tiles: Mapping[str, int],
        limit: int | None,
    ) -> tuple[Graph, Waves, tuple[int, ...]]:
        """The graph with its copies and tiles, the waves of one team, and which of its workers have nodes. Waves are
        kept for the next simulation."""
        placing = self.placing_on(machine, parts)
        graph, units = self.changed(copies, tiles)
        if copies or tiles:
            placing = Ways(self.graph, placing, machine.cores, limit).given(max(2, parts), units, tiles).costs
        hosts, chairs = _renumbered(graph, place(graph, parts, affinity or {}, placing, limit))
        key = tuple(sorted(hosts.items()))
        if key not in self._waves:
            self._waves[key] = graph, Waves(graph, hosts, self.instances, self._costs_of(graph))
        return *self._waves[key], chairs

    def _costs_of(self, graph: Graph) -> Measured:
        """The costs with lines for copies and tiles."""
        if graph is self.graph:
            return self.costs
        before, now = flops_of(self.graph), flops_of(graph)
        shares = {}
        for name in graph.nodes:
            original = graph.called(name).partition("~")[0]
            if name not in self.graph.nodes and original in self.graph.nodes:
                part = now[name] / before[original] if name in now and before.get(original) else 1.0
                shares[name] = original, part
        alone, turns = (_with_shares(one, shares) for one in (self.costs.alone, self.costs.turns))
        widths, updates = dict(self.costs.widths), dict(self.costs.updates)
        for name, (original, part) in shares.items():
            widths |= {(name, port): round(part * size) for (node, port), size in widths.items() if node == original}
            if original in updates:
                updates[name] = updates[original] * part
        for name in self.graph.nodes:  # what tiles are put together to has the width of the Linear
            widths |= {(f"{name}_together", port): size for (node, port), size in widths.items() if node == name}
        return replace(self.costs, alone=alone, turns=turns, widths=widths, updates=updates)


def _renumbered(graph: Graph, hosts: Mapping[str, int]) -> tuple[dict[str, int], tuple[int, ...]]:
    """The placement with only workers that compute, numbered without gaps; and the numbers that they had."""
    used = sorted({host for name, host in hosts.items() if graph.nodes[name].role != "route"})
    numbers = {host: number for number, host in enumerate(used)}
    return {name: numbers.get(host, 0) for name, host in hosts.items()}, tuple(used)


def _with_shares(operations: Operations, shares: Mapping[str, tuple[str, float]]) -> Operations:
    lines = dict(operations.lines)
    for name, (original, part) in shares.items():
        for (node, port, direction), line in operations.lines.items():
            if node == original:
                lines[name, port, direction] = Line(line.fixed, line.row * part, line.flops * part)
    return replace(operations, lines=lines)
