"""Cut: share out units among workers, so that the busiest worker has as little as possible to do.

    [1] start      intervals of about equal cost, in topological order; the largest first, each to the least loaded
    [2] improve    move a unit, or a stretch of neighbours, or swap two, as long as that helps
    [3] exact      where there are few units and workers, all ways are tried instead

The objective is the load of the busiest worker (`Costs.loads`), then, among equal cuts, the rows that cross. A
worker must not hold more bytes of parameters than ``limit``; units are parted only where they would not fit otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, product

import numpy as np

from ampnet.errors import GraphError
from ampnet.placement.costs import Costs, Crossings
from ampnet.placement.memory import PROCESS, shown

_WAYS = 4096
"""Up to this number of cuts, all are tried."""
_MANY = 100
"""From this number of units times workers, the search is shortened."""
_CROSSINGS, _OTHERS = 0.1, 0.01
"""The weights of crossings, and of the load of the other workers, relative to the load of the busiest."""
_FULL = 1e3
"""The penalty in seconds for each share of a worker's memory beyond its limit."""


def cut(costs: Costs, workers: int, fixed: Mapping[str, int], limit: int | None = None) -> dict[str, int]:
    """A worker for every node that costs something. ``fixed`` nodes are where it says."""
    problem = _Problem(costs, workers, fixed, limit)
    best = problem.exact() if problem.ways() <= _WAYS else problem.search()
    if limit is None or not problem.too_much(best):
        return problem.named(best)
    if costs.units:
        return cut(replace(costs, units=[]), workers, fixed, limit)
    raise GraphError([_refusal(costs, workers, limit)])


class _Problem:
    """Units by number, and where they are now."""

    def __init__(self, costs: Costs, workers: int, fixed: Mapping[str, int], limit: int | None) -> None:
        self.costs, self.workers = costs, workers
        self.units, self.stuck = _units(costs, fixed)
        unit_of = {name: number for number, unit in enumerate(self.units) for name in unit}
        self.seconds = [sum(map(costs.own, unit)) for unit in self.units]
        self.sizes = [sum(costs.memory.get(name, 0) for name in unit) for unit in self.units]
        self.room = float("inf") if limit is None else max(1, limit - PROCESS)
        self.free = [number for number, worker in enumerate(self.stuck) if worker is None]
        self.same = len(self.free) == len(self.units)
        """Whether workers are interchangeable."""
        self._flows: list[Crossings[int]] = []
        self._touching: list[list[int]] = [[] for _ in self.units]
        for (name, _), made in costs.made.items():
            home, readers = unit_of[name], dict[int, list[str]]()
            for reader in made.readers:
                if unit_of[reader] != home:
                    readers.setdefault(unit_of[reader], []).append(reader)
            for number in {home, *readers} if readers else ():
                self._touching[number].append(len(self._flows))
            if readers:
                self._flows.append(Crossings(made, home, readers, costs.hop, costs.rate))

    def named(self, where: Sequence[int]) -> dict[str, int]:
        """The worker of each node. If no node is fixed, workers are numbered in the order of the nodes."""
        numbers: dict[int, int] = {}
        if self.same:
            for worker in where:
                numbers.setdefault(worker, len(numbers))
        return {name: numbers.get(where[i], where[i]) for i, unit in enumerate(self.units) for name in unit}

    # -- what a cut costs

    def put(self, where: Sequence[int]) -> None:
        """Set the current cut."""
        self.where, self.loads, self.held = list(where), [0.0] * self.workers, [0] * self.workers
        self.crossing = 0.0
        for number, worker in enumerate(where):
            self.loads[worker] += self.seconds[number]
            self.held[worker] += self.sizes[number]
        for flows in self._flows:
            flows.at = []
            self._count(flows)

    def _count(self, flows: Crossings[int]) -> None:
        """Update the loads for the current workers of a site and its readers."""
        loads = self.loads
        for worker, seconds in flows.at:
            loads[worker] -= seconds
            self.crossing -= seconds
        flows.at = flows.between(self.where)
        for worker, seconds in flows.at:
            loads[worker] += seconds
            self.crossing += seconds

    def move(self, number: int, worker: int) -> None:
        """Move a unit to a worker."""
        before = self.where[number]
        if worker == before:
            return
        self.where[number] = worker
        for place in self._touching[number]:
            self._count(self._flows[place])
        self.loads[before] -= self.seconds[number]
        self.loads[worker] += self.seconds[number]
        self.held[before] -= self.sizes[number]
        self.held[worker] += self.sizes[number]

    def cost(self) -> float:
        """The objective of the search: smaller is better."""
        loads, held = self.loads, self.held
        over = sum(size / self.room - 1 for size in held if size > self.room) if max(held) > self.room else 0.0
        others: float = sum([load * load for load in loads]) ** 0.5
        return max(loads) + _CROSSINGS * self.crossing + _OTHERS * others + _FULL * over

    def too_much(self, where: Sequence[int]) -> bool:
        """Whether a worker exceeds its memory limit."""
        self.put(where)
        return max(self.held) > self.room

    @property
    def _many(self) -> bool:
        """Whether the problem is too large for the full search."""
        return len(self.free) * self.workers > _MANY

    # -- [1]

    def _starts(self) -> Iterator[list[int]]:
        yield self._stretched(0.0)
        for weights in (self.seconds,) if self.room == float("inf") else (self.sizes, self.seconds):
            where, loads = [s or 0 for s in self.stuck], [0.0] * self.workers
            for number in sorted(range(len(self.units)), key=lambda n: (self.stuck[n] is None, -weights[n])):
                stuck = self.stuck[number]
                where[number] = loads.index(min(loads)) if stuck is None else stuck
                loads[where[number]] += weights[number]
            yield where
        yield from (self._stretched(shift / self.workers) for shift in (0.5, -0.5))

    def _stretched(self, shift: float) -> list[int]:
        seconds = np.array(self.seconds) + 1e-9
        middle = (np.cumsum(seconds) - seconds / 2) / seconds.sum()
        stretches = np.clip(((middle + shift) * self.workers).astype(int), 0, self.workers - 1).tolist()
        return [w if s is None else s for w, s in zip(stretches, self.stuck, strict=True)]

    # -- [2]

    def search(self) -> list[int]:
        """The best cut found from several starts."""
        best, least = [0] * len(self.units), float("inf")
        for start in islice(self._starts(), 2 if self._many else None):
            self.put(start)
            self._improve()
            if self.cost() < least - 1e-12:
                best, least = list(self.where), self.cost()
        return best

    def _improve(self) -> None:
        now, before = self.cost(), float("inf")
        while now < before - 1e-12:
            before = now
            for some in self._stretches():
                for worker in range(self.workers):
                    now = self._try([(number, worker) for number in some], now)
            busiest = self.loads.index(max(self.loads))
            inside = [number for number in self.free if self.where[number] == busiest]
            for a, b in product(inside, self.free):
                if self.where[a] == busiest != self.where[b]:
                    now = self._try([(a, self.where[b]), (b, busiest)], now)

    def _stretches(self) -> Iterator[Sequence[int]]:
        """Neighbours in topological order: one unit moved alone may only add crossings."""
        longest = len(self.free) if not self._many else 2
        for size in range(1, longest + 1):
            for start in range(len(self.free) - size + 1):
                yield self.free[start : start + size]

    def _try(self, moves: Sequence[tuple[int, int]], now: float) -> float:
        """Make these moves if they lower the cost; returns the cost."""
        back = [(number, self.where[number]) for number, _ in moves]
        for number, worker in moves:
            self.move(number, worker)
        new = self.cost()
        if new < now - 1e-12:
            return new
        for number, worker in back:
            self.move(number, worker)
        return now

    # -- [3]

    def ways(self) -> float:
        """The approximate number of cuts; infinite where a float cannot hold it (99 workers and 200 nodes)."""
        try:
            return float(self.workers) ** (len(self.free) - (1 if self.same else 0))
        except OverflowError:
            return float("inf")

    def exact(self) -> list[int]:
        """The best of all cuts, by exhaustive search."""
        self.put([s or 0 for s in self.stuck])
        self._best, self._least = list(self.where), float("inf")
        self._descend(0, 0)
        return self._best

    def _descend(self, place: int, used: int) -> None:
        if place == len(self.free):
            if self.cost() < self._least - 1e-12:
                self._best, self._least = list(self.where), self.cost()
            return
        last = min(used + 1, self.workers) if self.same else self.workers  # workers that host nothing are all alike
        for worker in range(last):
            self.move(self.free[place], worker)
            self._descend(place + 1, max(used, worker + 1))


def _units(costs: Costs, fixed: Mapping[str, int]) -> tuple[list[list[str]], list[int | None]]:
    """Units in the order of their first nodes, and the worker of those that have one. One whose nodes are fixed to
    several workers is parted; what is not fixed in it goes with the first."""
    unit_of = {name: unit for unit in costs.units for name in unit}
    found: dict[object, list[str]] = {}
    stuck: dict[object, int | None] = {}
    for name in costs.seconds:
        unit = unit_of.get(name, frozenset((name,)))
        workers = [fixed[one] for one in costs.seconds if one in unit and one in fixed]
        worker = fixed.get(name, workers[0] if workers else None)
        found.setdefault((unit, worker), []).append(name)
        stuck[unit, worker] = worker
    return list(found.values()), [stuck[key] for key in found]


def _refusal(costs: Costs, workers: int, limit: int) -> str:
    room = limit - PROCESS
    name, most = max(costs.memory.items(), key=lambda item: item[1])
    largest = f"node '{name}' needs {shown(most)} for parameters, sums of gradients and optimizer"
    left = f"of the {shown(limit)} of a worker, {shown(max(0, room))} are left beside Python and torch"
    if most > room:
        return f"{largest}; {left}. Remedy: a higher limit, or tiles if it is a Linear"
    total = sum(costs.memory.values())
    return (
        f"nodes need {shown(total)}, and do not fit on {workers} workers: {left}, and {largest}. Remedy: more workers, "
        f"or a higher limit"
    )
