"""Engine: the queue of events in simulated time, and computers whose processes share cores.

    events     (time, function): the earliest is next; functions add further events
    shares     seconds that a process spent computing, waiting, idle
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

from ampnet.errors import DataError

Then = Callable[..., None]
MOST = 1_000_000
"""The maximal number of events at one moment."""


class EventQueue:
    """The events of a simulation. ``now``: simulated seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.past = 0
        """Events so far."""
        self._heap: list[tuple[float, int, Then, tuple[Any, ...]]] = []
        self._count = self._still = 0

    def after(self, seconds: float, then: Then, *given: Any) -> None:
        """Call a function in this number of seconds."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, then, given))

    def run(self, until: float) -> None:
        """Run all events until this time. Raises `DataError` if there are ever more at the same moment."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            at, _, then, given = pop(heap)
            self._still = self._still + 1 if at == self.now else 0
            if self._still > MOST:
                raise DataError(f"simulated time stands still at {at:g} seconds: a wave has to cost more than nothing")
            self.now = at
            self.past += 1
            then(*given)
        self.now = until

    @property
    def waits(self) -> bool:
        """Whether there are events to come."""
        return bool(self._heap)


class Shares:
    """Seconds that a process spent in each of its states."""

    def __init__(self, events: EventQueue, state: str) -> None:
        """``state``: the first one."""
        self._events, self._state, self._since = events, state, events.now
        self._spent: dict[str, float] = {}

    def enter(self, state: str) -> None:
        """It is in another state from now on."""
        now = self._events.now
        self._spent[self._state] = self._spent.get(self._state, 0.0) + now - self._since
        self._state, self._since = state, now

    def begin(self) -> None:
        """Begin to measure."""
        self._spent.clear()
        self._since = self._events.now

    def seconds(self, state: str) -> float:
        """Seconds in a state so far."""
        now = self._events.now - self._since if state == self._state else 0.0
        return self._spent.get(state, 0.0) + now


class Computer:
    """The cores of one computer, and the processes that compute on them now."""

    def __init__(self, events: EventQueue, cores: int, processes: int, crowd: float) -> None:
        """``processes``: how many there are in all. ``crowd``: by how much each further one that computes slows down
        all of them."""
        self.events, self.cores, self.crowd = events, cores, crowd
        self.computing = 0
        self.shares = processes > cores
        """Whether processes may have to share cores."""
        self._clock = self._seen = 0.0
        self._ends: list[tuple[float, int, Then, tuple[Any, ...]]] = []
        self._count = self._version = 0

    def slow(self) -> float:
        """The factor by which a process that begins now is slower than one alone, while it has a core."""
        return 1.0 + self.crowd * (min(self.computing + 1, self.cores) - 1)

    def compute(self, seconds: float, then: Then, *given: Any) -> None:
        """Call a function when a process has had a core for this number of seconds."""
        if not self.shares:
            self.computing += 1
            self.events.after(seconds, self._end_alone, self._version, then, given)
            return
        self._advance()
        self.computing += 1
        self._count += 1
        heapq.heappush(self._ends, (self._clock + seconds, self._count, then, given))
        self._plan()

    def _end_alone(self, version: int, then: Then, given: tuple[Any, ...]) -> None:
        if version == self._version:
            self.computing -= 1
            then(*given)

    def _advance(self) -> None:
        """Bring the virtual clock up to now."""
        now = self.events.now
        if self.computing:
            self._clock += (now - self._seen) * min(1.0, self.cores / self.computing)
        self._seen = now

    def _plan(self) -> None:
        """Make an event for the process that ends first."""
        self._version += 1
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._clock)
            self.events.after(left * max(1.0, self.computing / self.cores), self._end, self._version)

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
        self.computing = 0
