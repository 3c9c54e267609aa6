"""Plan: the fastest way to run a model on a machine, searched by simulation.

    [1] ways         cuts, copies and tiles of heavy nodes, replicas of the whole model: proposed from the costs of a
                     wave (`ampnet.placement.ways`), and ranked by what those let expect
    [2] waves        the best of them with several wave sizes and numbers of instances in flight, each simulated briefly
    [3] placement    of the winner: single nodes, and units, are moved from the busiest worker as long as that helps
    [4] check        the winner, simulated for longer

A way that does not fit into the memory of a computer is left out, and so is one whose gradients are too stale.
A way with more workers has to be faster by a tenth (`PAYS`). Losses of workers are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ampnet.errors import DataError, GraphError
from ampnet.placement.memory import shown
from ampnet.placement.place import place
from ampnet.placement.ways import PAYS, Way, Ways
from ampnet.simulate.machine import Machine
from ampnet.simulate.result import Result, ways
from ampnet.simulate.study import Study

WAYS = 6
"""The number of ways that are simulated."""
BRIEF = 400
"""Waves of a brief simulation, about: for each worker."""
FEW, LONGER = 20, 8
"""The minimal number of waves of the simulation of one process, and how often it is made eight times as long for it."""
LATENCIES = 60
"""A brief simulation lasts this number of latencies longer, where computers are linked."""
MOVES = 24
"""The maximal number of placements that are tried in [3]."""
SAME = 0.98
"""A candidate this near to the best counts as equal to it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way with its waves, and what was simulated."""

    workers: int
    replicas: int
    copies: Mapping[str, int]
    tiles: Mapping[str, int]
    max_active_keys: int
    wave_size: int | None
    result: Result

    @property
    def throughput(self) -> float:
        """Instances a second."""
        return self.result.throughput

    def options(self) -> dict[str, Any]:
        """The options of `Study.simulate`."""
        return {
            "workers": self.workers,
            "replicas": self.replicas,
            "replicate": self.copies,
            "tile": self.tiles,
            "max_active_keys": self.max_active_keys,
            "wave_size": self.wave_size,
        }

    def words(self) -> str:
        """The options of the command line that select it, beside the placement."""
        parts = [f"--replicas {self.replicas}"] if self.replicas > 1 else []
        if self.workers != self.replicas or not parts:
            parts.append(f"--workers {self.workers}")
        for option, given in (("--replicate", self.copies), ("--tile", self.tiles)):
            if given:
                parts.append(f"{option} {','.join(f'{name}={count}' for name, count in given.items())}")
        parts.append(f"--max-active-keys {self.max_active_keys}")
        if self.wave_size is not None:
            parts.append(f"--wave-size {self.wave_size}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """The outcome of a search."""

    best: Candidate
    one: Result
    """One process, for comparison."""
    others: tuple[Candidate, ...]
    """The best of each other way, the fastest first."""
    left_out: tuple[str, ...]
    """Ways that do not fit, with the reason."""
    simulated: int
    """The number of simulations."""

    @property
    def speedup(self) -> float:
        """Against one process."""
        return self.times(self.best)

    def times(self, one: Candidate) -> float:
        """How many times as fast as one process a candidate is."""
        return one.throughput / self.one.throughput

    @property
    def hosts(self) -> Mapping[str, int]:
        """The worker of each node of one copy of the model."""
        return self.best.result.setting.placed


class Planner:
    """A search. ``staleness``: the largest mean staleness allowed."""

    def __init__(
        self,
        study: Study,
        machine: Machine,
        *,
        staleness: float | None = None,
        memory_per_worker: int | None = None,
        tell: Callable[[str], None] = lambda text: None,
        tried: Sequence[Way] | None = None,
        waves: Callable[[Way], Iterable[tuple[int, int | None]]] | None = None,
    ) -> None:
        """``tell`` gets a line for each way that is tried. ``tried``: the ways that are allowed (None: all). ``waves``:
        instances in flight and wave sizes of a way (None: several)."""
        self._tried, self._given = tried, waves
        self.study, self.staleness, self._tell = study, staleness, tell
        self.machine = replace(machine, loss_every=math.inf)  # a brief simulation would see none, or too many
        self.limit = memory_per_worker
        self.simulated = 0
        self._wave = study.placing.total
        """Seconds of a wave at one process whose speed is 1."""
        self._left_out: list[str] = []

    def run(self) -> Plan:
        """Search. Raises `GraphError` if nothing fits."""
        one = self._one()
        found: list[Candidate] = []
        for way in self._ways():  # [1]
            best = self._with_waves(way)  # [2]
            if best is not None:
                found.append(best)
                self._tell(f"{best.words()}: {best.throughput / one.throughput:.2f} x one process")
        alone = Candidate(1, 1, {}, {}, self.study.max_active_keys, None, one)
        if self._one_fits(one) and (self._tried is None or any(way.workers == 1 for way in self._tried)):
            found.insert(0, alone)
        if not found:
            raise GraphError([f"nothing fits on machine '{self.machine.name}': {'; '.join(self._left_out)}"])
        best = self._chosen(found)
        if best.workers > best.replicas:
            best = self._moved(best)  # [3]
        if best is not alone:
            result = self._simulate(best.options(), best.result.setting.placed, 4 * self._seconds(best.workers))
            best = replace(best, result=result)  # [4]
        others = sorted((other for other in found if other.words() != best.words()), key=lambda c: -c.throughput)
        return Plan(best, one, tuple(others), tuple(self._left_out), self.simulated)

    # -- [1]

    def _one(self) -> Result:
        """One process, whether it fits or not: for comparison, and to know how long a wave takes there."""
        keys = self.study.max_active_keys
        for _ in range(LONGER):
            one = self.study.simulate(self.machine, workers=1, max_active_keys=keys, seconds=self._seconds(1))
            self.simulated += 1
            if one.throughput * one.seconds >= FEW * keys:
                self._wave = keys / one.throughput * self.machine.seats()[0][1].speed
                return one
            self._wave *= 8
        raise DataError(
            f"in {self._seconds(1):,.0f} simulated seconds one process on machine '{self.machine.name}' computed fewer "
            f"than {FEW} waves: 'speed' or 'flops' of its hosts are too small for this model"
        )

    def _one_fits(self, one: Result) -> bool:
        fault = None if one.fits else f"needs {shown(one.memory)}, and its computer has less"
        try:
            place(self.study.graph, 1, {}, self.study.placing, self.limit)
        except GraphError as error:
            fault = error.faults[0]
        if fault is not None:
            self._left_out.append(f"one process: {fault}")
        return fault is None

    def _ways(self) -> list[Way]:
        """The ways that let expect most, the best first."""
        workers = self.machine.workers
        costs = self.study.placing_on(self.machine, workers)
        whole = Ways(self.study.graph, costs, workers, self.limit)
        found: dict[str, Way] = {}
        tried = self._tried
        if tried is None:
            tried = (*_tried(whole.splits()), *_tried(whole.whole(parted=True)))
        for way in tried:
            if way.workers > 1 and way.workers <= workers and not (way.changes and way.replicas > 1):
                found.setdefault(way.options(), way)
        return sorted(found.values(), key=lambda way: -way.speedup)[:WAYS]

    # -- [2]

    def _with_waves(self, way: Way) -> Candidate | None:
        """The best of several wave sizes and numbers in flight."""
        size = self.study.max_active_keys
        best: Candidate | None = None
        fault = ""
        for options in self._waves(way, size):
            try:
                result = self._simulate(options, None, self._seconds(way.workers))
                if not result.fits and way.workers > way.replicas:  # the fastest cut; there may be one that fits
                    with suppress(GraphError):
                        result = self._simulate(options, None, self._seconds(way.workers), self._share())
            except GraphError as error:
                fault = error.faults[0]
                break
            if not result.fits:
                fault = f"needs {shown(result.memory)} for a worker, more than its computer has for each"
                continue
            if self.staleness is not None and result.stale > self.staleness:
                fault = f"a mean staleness of {result.stale:.1f}"
                continue
            if best is None or result.throughput > best.throughput / SAME:
                keys, wave = options["max_active_keys"], options["wave_size"]
                assert isinstance(keys, int)
                best = Candidate(way.workers, way.replicas, way.copies, way.tiles, keys, wave, result)
        if best is None:
            self._left_out.append(f"{way.options()}: {fault}")
        return best

    def _waves(self, way: Way, size: int) -> Iterator[dict[str, Any]]:
        """Numbers in flight and wave sizes, those with the freshest gradients first."""
        common = {
            "workers": way.workers,
            "replicas": way.replicas,
            "replicate": way.copies,
            "tile": way.tiles,
        }
        if self._given is not None:
            for keys, wave in self._given(way):
                yield {**common, "max_active_keys": keys, "wave_size": wave}
            return
        parts = way.workers // way.replicas
        if parts == 1:
            for each in (size, 2 * size):
                yield {**common, "max_active_keys": each * way.replicas, "wave_size": None}
            return
        for size_ in dict.fromkeys((size, max(1, size // 2), max(1, size // 4))):
            for waves in (parts, 2 * parts):
                yield {**common, "max_active_keys": waves * size_ * way.replicas, "wave_size": size_}

    def _chosen(self, found: list[Candidate]) -> Candidate:
        """The simplest that no other beats by a tenth."""
        chosen: Candidate | None = None
        for one in sorted(found, key=lambda c: (c.workers, bool(c.copies or c.tiles), -c.throughput)):
            if chosen is None or one.throughput > PAYS * chosen.throughput:
                chosen = one
        assert chosen is not None
        return chosen

    # -- [3]

    def _moved(self, best: Candidate) -> Candidate:
        """The candidate with nodes moved from its busiest worker, where that is faster."""
        tried = 0
        improved = True
        while improved and tried < MOVES:
            improved = False
            setting = best.result.setting
            hosts, parts = setting.placed, setting.asked or setting.parts
            busy = [0.0] * parts
            for part in range(setting.parts):
                busy[setting.chair(part)] = best.result.workers[part].busy
            busiest = busy.index(max(busy))
            free = [worker for worker in sorted(range(parts), key=busy.__getitem__) if worker != busiest]
            for unit in self._units(hosts, busiest):
                for worker in free[:2]:
                    if tried == MOVES:
                        return best
                    tried += 1
                    moved = {**hosts, **dict.fromkeys(unit, worker)}
                    try:
                        result = self._simulate(best.options(), moved, self._seconds(best.workers))
                    except GraphError:  # they do not fit there
                        continue
                    if result.fits and result.throughput > 1.02 * best.throughput:
                        best, improved = replace(best, result=result), True
                        break
                if improved:
                    break
        return best

    def _units(self, hosts: Mapping[str, int], worker: int) -> list[list[str]]:
        """The units of a worker that compute, the cheapest first."""
        costs = self.study.placing
        unit_of = {name: unit for unit in costs.units for name in unit}
        units = {unit_of.get(name, frozenset((name,))) for name in costs.seconds if hosts.get(name) == worker}
        lists = [sorted(name for name in unit if name in costs.seconds) for unit in units]
        return sorted(lists, key=lambda names: (sum(map(costs.own, names)), names))

    # -- simulations

    def _seconds(self, workers: int) -> float:
        """Simulated seconds of a brief simulation: some hundred waves of a worker, fewer where there are many."""
        kinds = self.machine.seats()[:workers]
        slowest = min(kind.speed for _, kind in kinds)
        latency = self.machine.between.latency if kinds[0][0] != kinds[-1][0] else 0.0
        return max(0.05, BRIEF * self._wave / slowest / max(1.0, workers / 8)) + LATENCIES * latency

    def _share(self) -> int | None:
        """Bytes of a computer for each of its workers, of the smallest; None: no limit."""
        least = min(kind.memory / kind.places for kind in self.machine.hosts)
        return None if least == math.inf else int(least)

    def _simulate(
        self, options: Mapping[str, Any], hosts: Mapping[str, int] | None, seconds: float, limit: int | None = None
    ) -> Result:
        self.simulated += 1
        given = {**options, "memory_per_worker": self.limit if limit is None else limit}
        return self.study.simulate(self.machine, affinity=hosts, seconds=seconds, **given)


def _tried(given: Iterator[Way]) -> Iterator[Way]:
    """The ways that can be made."""
    while True:
        try:
            yield next(given)
        except StopIteration:
            return
        except GraphError:
            continue


def text(plan: Plan, unit: str, records: float) -> str:
    """Returns a plan as lines of text."""
    best = plan.best
    lines = [
        f"{ways(best.result.setting)}: {best.throughput * records:,.0f} {unit}/s expected, {plan.speedup:.2f} x one "
        f"process; bound by {best.result.bound}; {plan.simulated} simulations"
    ]
    for other in plan.others[:4]:
        lines.append(f"  instead: {other.words()}: {plan.times(other):.2f} x, staleness {other.result.stale:.1f}")
    lines += [f"  left out: {reason}" for reason in plan.left_out]
    return "\n".join(lines)
