"""Trial: measures what a model costs on this machine, in a few seconds.

    [1] inline       waves of two sizes, one after the other: operations, layouts, updates; the rest of a wave
    [2] one worker   the whole model in another process: notes and staging; the controller's time
    [3] all cores    replicas with shared weights: by how much busy workers slow each other down
    [4] two workers  nodes in two halves: operations of waves that take turns, crossings

Each is run on a copy of the graph, twice: with a meter that hears of every operation, and without, for the times in
all. What cannot be measured (one core, one node) is assumed, and `Measured.notes` says so.
"""

from __future__ import annotations

import copy
import math
import os
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ampnet.errors import AmpnetError, DataError, EngineWarning
from ampnet.events.log import COLLECT, FORWARD, Event, Played, Updated, Wave
from ampnet.graph import Graph
from ampnet.instance import Instance
from ampnet.placement.costs import BYTES, HOP, Costs
from ampnet.placement.trial import Trial
from ampnet.plan.layout import Layout
from ampnet.replicas.replicate import replicate
from ampnet.runtime.inline import Inline
from ampnet.runtime.processes import Processes
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.stats import RunStats
from ampnet.simulate.costs import Affine, Measured, Operations, Samples, fitted, flops_of
from ampnet.simulate.waves import PlannedWave, Waves

Floats = np.ndarray[Any, np.dtype[np.float64]]

SECONDS = 0.5
"""Duration of each measurement."""
CROWD = 0.05
"""Assumed slow-down for each further busy worker, where it cannot be measured."""
CONTROLLER = Affine(200e-6, 25e-6)
"""Assumed time of the controller for a wave, where it cannot be measured."""


class Meter:
    """A listener that collects measured operations."""

    kinds = (Wave, Played, Updated)

    def __init__(self) -> None:
        self.operations = Samples()
        self.layouts: defaultdict[int, list[float]] = defaultdict(list)
        """Seconds of layouts, by instances of the wave."""
        self.updates: defaultdict[str, list[float]] = defaultdict(list)
        self.on = True
        self._rows: dict[tuple[str, int], dict[tuple[str, int], int]] = {}
        """Of waves under way: rows so far, by site."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Wave):
            self._rows[event.worker, event.wave] = {}
            if self.on:
                self.layouts[len(event.instances)].append(event.seconds)
            if len(self._rows) > 1000:
                del self._rows[next(iter(self._rows))]
        elif isinstance(event, Played):
            self._played(event)
        elif isinstance(event, Updated) and self.on:
            self.updates[event.node].append(event.seconds)

    def _played(self, event: Played) -> None:
        done = self._rows.setdefault((event.worker, event.wave), {})
        for op in event.operations():
            site = op.node, op.port
            if op.direction == FORWARD:
                done[site] = done.get(site, 0) + op.rows
            rows = done.get(site, op.rows) if op.direction == COLLECT else op.rows
            if self.on:
                self.operations.add((op.node, op.port, op.direction), rows, op.seconds)


@dataclass(frozen=True, slots=True)
class _Rate:
    """A measurement without a meter."""

    size: int
    """Instances of a wave, on average: updates may cut them."""
    wave: float
    """Seconds from wave to wave."""
    busy: tuple[float, ...]
    """Seconds of a wave in which each worker plays."""
    controller: float
    """Processor seconds of this process for a wave."""

    def own(self, cores: int) -> tuple[float, ...]:
        """Seconds of a wave in which each worker had a core: workers that are as many as the cores share them with the
        controller, which the simulation does again."""
        if len(self.busy) < cores:
            return self.busy
        shares = [min(1.0, seconds / self.wave) for seconds in self.busy]
        lost = self.controller / self.wave / cores
        return tuple(
            seconds * (1.0 - lost * math.prod(shares[:i] + shares[i + 1 :])) for i, seconds in enumerate(self.busy)
        )


@dataclass
class Measurement:
    """A trial of a graph. ``settings`` are those of `Inline`: the update policies, the precision."""

    graph: Graph
    instances: Sequence[Instance]
    sizes: tuple[int, int]
    """Instances of the waves that are measured: a small and a large size."""
    settings: Mapping[str, Any]
    seconds: float = SECONDS
    notes: list[str] = field(default_factory=list)

    def run(self) -> Measured:
        """Measure. Raises `DataError` where there is nothing to measure, and errors of the model."""
        if not self.instances:
            raise DataError("there is no instance to try")
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), _one_thread():
            warnings.simplefilter("ignore", EngineWarning)
            return self._run()

    def _run(self) -> Measured:
        graph, flops = self.graph, flops_of(self.graph)
        meter, flows, inline = self._inline()  # [1]
        alone = fitted(meter.operations, flops)
        updates = {name: sum(found) / len(found) for name, found in meter.updates.items()}
        layout = Affine.through((size, sum(found) / len(found)) for size, found in meter.layouts.items())
        draft = Measured(
            alone, alone, layout, layout, Affine(), Affine(), Affine(), HOP, CONTROLLER, CROWD, updates, flows.widths
        )
        one = self._waves(draft, dict.fromkeys(graph.nodes, 0))
        # A meter that hears of every operation makes them slower.
        factor = min(1.0, *(found.wave / self._explained(one, draft, found.size) for found in inline))
        alone, layout = alone.scaled(factor), layout.scaled(factor)
        updates = {name: seconds * factor for name, seconds in updates.items()}
        draft = replace(draft, alone=alone, layout=layout, updates=updates)
        one = self._waves(draft, dict.fromkeys(graph.nodes, 0))
        rest = self._rest(one, draft, inline)
        draft = replace(draft, inline=rest, worker=rest)
        if not hasattr(os, "fork") or not hasattr(os, "eventfd"):
            self.notes.append("workers were not measured: there are none on this system; constants are assumed")
            return replace(draft, notes=tuple(self.notes))
        worker, controller = self._worker(one, draft)  # [2]
        draft = replace(draft, worker=worker, controller=controller)
        draft = replace(draft, crowd=self._crowd(draft))  # [3]
        return replace(self._parted(draft, flops), notes=tuple(self.notes))  # [4]

    # -- [1]

    def _inline(self) -> tuple[Meter, _Widths, list[_Rate]]:
        meter, widths, rates = Meter(), _Widths(), []
        for size in self.sizes:
            with self._runtime(Inline, copy.deepcopy(self.graph), size, [meter]) as runtime:
                if runtime.player is None:
                    raise AmpnetError(
                        f"only waves are simulated, and this graph is not played in waves: {runtime.engine.reason}"
                    )
                runtime.rehearse(self.instances)
                widths.listen(runtime)
                meter.on = False
                runtime.train(self._some(size))
                widths.done = True
                meter.on = True
                _until(runtime, self.instances, self.seconds)
            with self._runtime(Inline, copy.deepcopy(self.graph), size) as runtime:
                rates.append(self._measure(runtime, self.seconds))
        return meter, widths, rates

    def _some(self, size: int) -> list[Instance]:
        """Instances for a warm-up: all that will come, if there are not many."""
        return list(self.instances[: max(4 * size, 64)])

    def _runtime(
        self, make: Callable[..., Any], graph: Graph, size: int, listeners: Sequence[Any] = (), **more: Any
    ) -> Any:
        settings = {"max_active_keys": size, **self.settings, **more}
        return make(graph, listeners=listeners, **settings)

    def _measure(self, runtime: Runtime, seconds: float) -> _Rate:
        runtime.rehearse(self.instances)
        runtime.train(self._some(8))
        before = runtime.stats()
        began, worked = time.perf_counter(), time.process_time()
        _until(runtime, self.instances, seconds)
        wall, worked = time.perf_counter() - began, time.process_time() - worked
        after = runtime.stats()
        waves = max(1, after.waves - before.waves)
        spent = tuple((b - a) / waves for a, b in zip(_busy(before), _busy(after), strict=True))
        size = round((after.instances - before.instances) / waves)
        return _Rate(max(1, size), wall / waves, spent, worked / waves)

    def _rest(self, waves: Waves, costs: Measured, rates: Sequence[_Rate]) -> Affine:
        """What a wave takes besides what operations, layouts and updates explain."""
        return Affine.through(
            (found.size, max(0.0, found.wave - self._explained(waves, costs, found.size))) for found in rates
        )

    def _explained(self, waves: Waves, costs: Measured, size: int) -> float:
        planned = [waves.wave(size) for _ in range(8)]
        operations = sum(_seconds(wave, 0, costs, waves.lines) for wave in planned) / len(planned)
        return operations + self._updating(costs, planned)

    def _updating(self, costs: Measured, planned: Sequence[PlannedWave]) -> float:
        """Seconds of updates for each of these waves."""
        total = 0.0
        for name in self.graph.parameterised():
            policy = (self.settings.get("updates") or {}).get(name, self.settings.get("update"))
            if policy is None or name not in costs.updates:
                continue
            counts = [
                wave.instances if policy.count == "instances" else sum(part.heard.get(name, 0) for part in wave.parts)
                for wave in planned
            ]
            often = sum(min(1.0, count / policy.min_update_frequency) for count in counts) / len(counts)
            total += costs.updates[name] * often
        return total

    # -- [2]

    def _worker(self, waves: Waves, costs: Measured) -> tuple[Affine, Affine]:
        rates = []
        for size in self.sizes:
            with self._runtime(Processes, copy.deepcopy(self.graph), 2 * size, workers=1) as runtime:
                rates.append(self._measure(runtime, self.seconds))
        controller = Affine.through((found.size, found.controller) for found in rates)
        return self._rest(waves, costs, rates), controller

    # -- [3]

    def _crowd(self, costs: Measured) -> float:
        cores = len(os.sched_getaffinity(0))
        if cores < 2:
            self.notes.append(f"one core: each further busy worker is assumed to slow down all of them by {CROWD:.0%}")
            return CROWD
        size = self.sizes[-1]
        walls: dict[int, float] = {}
        for count in (1, cores, 1, cores):  # in turns: of machines that others use too, some moments are slow
            graph = copy.deepcopy(self.graph)
            if count > 1:
                replicate(graph, None, count, route="shortest", sync="shared")
            with self._runtime(Processes, graph, 2 * size * count, workers=count) as runtime:
                wall = max(self._measure(runtime, self.seconds).own(cores)) * count
            walls[count] = min(wall, walls.get(count, wall))
        # `busy` is of a wave of any worker: each plays every count-th one.
        return max(0.0, (walls[cores] / walls[1] - 1) / (cores - 1))

    # -- [4]

    def _parted(self, costs: Measured, flops: Mapping[str, float]) -> Measured:
        if len(os.sched_getaffinity(0)) < 2:
            self.notes.append("one core: crossings are assumed to take what they usually do")
            return costs
        hosts = self._halves(costs)
        if len(set(hosts.values())) < 2:
            self.notes.append(
                "the model has one node that computes: crossings are assumed to take what they usually do"
            )
            return costs
        meter, rates = Meter(), list[_Rate]()
        for size in self.sizes:
            common: dict[str, Any] = {"workers": 2, "affinity": hosts, "wave_size": size}
            with self._runtime(Processes, copy.deepcopy(self.graph), 3 * size, [meter], **common) as runtime:
                runtime.rehearse(self.instances)
                meter.on = False
                runtime.train(self._some(size))
                meter.on = True
                _until(runtime, self.instances, self.seconds)
            with self._runtime(Processes, copy.deepcopy(self.graph), 3 * size, **common) as runtime:
                rates.append(self._measure(runtime, self.seconds))
        turns = fitted(meter.operations, flops)
        layout = Affine.through((size, sum(found) / len(found)) for size, found in meter.layouts.items())
        costs = replace(costs, turns=turns, layout_part=layout)
        waves, cores = self._waves(costs, hosts), len(os.sched_getaffinity(0))
        spent, known, crossings = (np.zeros(len(rates)) for _ in range(3))
        for place, found in enumerate(rates):
            planned = [waves.wave(found.size) for _ in range(8)]
            spent[place] = sum(found.own(cores))
            crossings[place] = sum(_crossings(wave) for wave in planned) / len(planned)
            known[place] = sum(_seconds(wave, i, costs, turns) for wave in planned for i in (0, 1)) / len(planned)
            known[place] += self._updating(costs, planned)
        hop, factor = _hop(spent, known, crossings)
        return replace(costs, hop=hop, turns=turns.scaled(factor), layout_part=layout.scaled(factor))

    def _halves(self, costs: Measured) -> dict[str, int]:
        """Two parts of about equal cost, whether that pays or not."""
        found = Trial(self.graph, **{**self.settings, "max_active_keys": self.sizes[-1]}).run(
            self._some(self.sizes[-1])
        )
        return halves(self.graph, found)

    def _waves(self, costs: Measured, hosts: Mapping[str, int]) -> Waves:
        return Waves(self.graph, hosts, self.instances, costs)


def _hop(spent: Floats, known: Floats, crossings: Floats) -> tuple[float, float]:
    """Returns the time of a crossing, and the factor of what else is known, so that both explain what was spent."""
    hop = float(((spent - known) / crossings).mean()) if crossings.all() else HOP
    least, most = HOP / 4, 3 * HOP
    hop = min(most, max(least, hop))
    return hop, min(1.0, max(0.5, float((spent - hop * crossings).sum() / known.sum())))


def halves(graph: Graph, costs: Costs) -> dict[str, int]:
    """Two parts of about equal cost, units kept together; nodes that only route belong to the first."""
    unit_of = {name: min(unit) for unit in costs.units for name in unit}
    loads: dict[str, float] = {}
    for name in costs.seconds:
        key = unit_of.get(name, name)
        loads[key] = loads.get(key, 0.0) + costs.own(name)
    half, seen, where = sum(loads.values()) / 2, 0.0, dict[str, int]()
    for key, load in loads.items():
        where[key] = int(seen + load / 2 > half)
        seen += load
    if len(set(where.values())) < 2 and len(where) > 1:
        where[next(reversed(where))] = 1 - next(iter(where.values()))
    return {name: where[unit_of.get(name, name)] if name in costs.seconds else 0 for name in graph.nodes}


def _seconds(wave: PlannedWave, part: int, costs: Measured, lines: Operations) -> float:
    """Seconds of a worker's operations and layout."""
    mine = wave.parts[part]
    layout = costs.layout if len(wave.parts) == 1 else costs.layout_part
    return (
        layout(wave.instances)
        + sum(map(sum, mine.fixed))
        + sum(map(sum, mine.flops)) / lines.rate
        + sum(one.bytes * (1 if one.still else 2) for one in mine.crosses if one is not None) / BYTES
    )


def _crossings(wave: PlannedWave) -> float:
    """Slices that are sent or received, by all workers, in both directions."""
    return sum((1 if one.still else 2) for part in wave.parts for one in part.crosses if one is not None)


class _Widths:
    """Bytes of a row, by node and output port, seen in the layouts of waves that were played."""

    def __init__(self) -> None:
        self.widths: dict[tuple[str, int], int] = {}
        self.done = False

    def listen(self, runtime: Inline) -> None:
        """Look at the layouts of a runtime."""
        assert runtime.player is not None
        planner = runtime.player.planner
        give_back = planner.give_back

        def noted(layout: Layout) -> None:
            if not self.done:
                self.look(layout)
            give_back(layout)

        planner.give_back = noted  # type: ignore[method-assign]

    def look(self, layout: Layout) -> None:
        """Add a wave that has just ended, while its layout is still filled."""
        for op in layout.operations:
            for one in op.members or [op]:
                site = one.site
                data = layout.arenas[site.arena].data if site.arena >= 0 else None
                if data is not None and data.dim() and len(data):
                    self.widths[site.name, site.end.port] = data[:1].numel() * data.element_size()


def widths_of(graph: Graph, instances: Sequence[Instance], settings: Mapping[str, Any]) -> dict[tuple[str, int], int]:
    """Returns the bytes of a row, by node and output port, from a pass over some instances on a copy of the graph."""
    widths = _Widths()
    with torch.random.fork_rng(devices=[]), Inline(copy.deepcopy(graph), max_active_keys=8, **settings) as runtime:
        if runtime.player is not None:
            widths.listen(runtime)
            runtime.train(list(instances))
    return widths.widths


def _busy(stats: RunStats) -> tuple[float, ...]:
    """Seconds in which each worker has played."""
    return tuple(share * stats.seconds for share in stats.busy)


def _until(runtime: Runtime, instances: Sequence[Instance], seconds: float) -> None:
    end = time.perf_counter() + seconds

    def stream() -> Iterator[Instance]:
        order = random.Random(0)
        while True:  # in another order each time: a layout that comes again would cost less than it does in a run
            for place, instance in enumerate(order.sample(instances, len(instances))):
                if place % 16 == 0 and time.perf_counter() > end:
                    return
                yield instance

    runtime.train(stream())


class _one_thread:
    """Context: torch computes with one thread, as workers do."""

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *error: object) -> None:
        torch.set_num_threads(self.before)
