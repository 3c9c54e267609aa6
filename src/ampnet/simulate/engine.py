"""Engine: events in simulated time, and computers whose processes share cores.

    events     (time, function): the earliest is next; functions add further events
    computer   n processes that compute, c cores:   n <= c   each at full speed
                                                     n > c    each at c / n of it (the system gives them equal shares)

While processes share cores, the speed of all changes whenever one begins or ends. All have the same speed, so they end
in the order of the work that is left: a **virtual clock** that runs at this speed gives each a fixed end, and one event
for the first of them is enough.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Then = Callable[..., None]


class Engine:
    """The events of a simulation. ``now``: simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        """Events so far."""
        self._heap: list[tuple[float, int, Then, tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, then: Then, *given: Any) -> None:
        """Call a function in this number of seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, then, given))

    def run(self, until: float) -> None:
        """Run events until this time, or until there are none."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            self.now, _, then, given = pop(heap)
            self.events += 1
            then(*given)
        self.now = max(self.now, min(until, self.now) if not heap else until)

    @property
    def waits(self) -> bool:
        """Whether there are events to come."""
        return bool(self._heap)


class Computer:
    """The cores of one computer, and the processes that compute on them now."""

    def __init__(self, engine: Engine, cores: int, processes: int, crowd: float) -> None:
        """``processes``: how many there are in all. ``crowd``: by how much each further one that computes slows down
        all of them."""
        self.engine, self.cores, self.crowd = engine, cores, crowd
        self.computing = 0
        self._shares = processes > cores
        self._clock = self._seen = 0.0
        self._ends: list[tuple[float, int, Then, tuple[Any, ...]]] = []
        self._count = self._version = 0

    def slow(self, more: int = 1) -> float:
        """The factor by which a process that begins now is slower than one alone."""
        return 1.0 + self.crowd * (min(self.computing + more, self.cores) - 1)

    def compute(self, seconds: float, then: Then, *given: Any) -> None:
        """Call a function when a process has had a core for this number of seconds."""
        if not self._shares:
            self.computing += 1
            self.engine.after(seconds, self._end_alone, then, given)
            return
        self._advance()
        self.computing += 1
        self._count += 1
        heapq.heappush(self._ends, (self._clock + seconds, self._count, then, given))
        self._plan()

    def _end_alone(self, then: Then, given: tuple[Any, ...]) -> None:
        self.computing -= 1
        then(*given)

    def _advance(self) -> None:
        """Bring the virtual clock up to now."""
        now = self.engine.now
        if self.computing:
            self._clock += (now - self._seen) * min(1.0, self.cores / self.computing)
        self._seen = now

    def _plan(self) -> None:
        """Make an event for the process that ends first."""
        self._version += 1
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._clock)
            self.engine.after(left * max(1.0, self.computing / self.cores), self._end, self._version)

    def _end(self, version: int) -> None:
        if version != self._version:  # others have begun or ended since
            return
        self._advance()
        _, _, then, given = heapq.heappop(self._ends)
        self.computing -= 1
        self._plan()
        then(*given)

    def clear(self) -> None:
        """End all processes at once: nothing of theirs is called any more."""
        self._advance()
        self._ends.clear()
        self._version += 1
        if self._shares:
            self.computing = 0
