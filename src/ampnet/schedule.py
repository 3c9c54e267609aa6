"""Schedule: in which order a worker serves what waits at its nodes.

What waits is held in **lanes**, one for each (node, direction, port, training or inference). A schedule names the lane to
serve next, and may say how many of its messages to take. The order decides how full batches get, and so the speed; with
updates frozen it decides nothing else (promise P3).

* ``sweep``: lanes in topological order forward, then in the opposite order backward, round and round, each emptied in its
  turn. Messages of many instances meet at a node, because everything before it has been served first.
* ``backward-first`` (the paper's): gradients before activations, oldest first. Instances retire sooner; batches are smaller.
* ``fifo``: the lane whose oldest message has waited longest.
* ``random``: any lane, any number of its messages. For tests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from ampnet.message import Messages
from ampnet.nodes.node import Direction, Node


class Lane:
    """What waits at one port of a node, in one direction and of one kind."""

    __slots__ = ("arrivals", "batches", "direction", "node", "port", "train", "waiting")

    def __init__(self, node: Node, direction: Direction, port: int, train: bool) -> None:
        self.node, self.direction, self.port, self.train = node, direction, port, train
        self.batches: deque[Messages] = deque()
        self.arrivals: deque[int] = deque()
        self.waiting = 0

    def push(self, messages: Messages, arrival: int) -> None:
        self.batches.append(messages)
        self.arrivals.append(arrival)
        self.waiting += len(messages)

    def take(self, most: int | None) -> Messages:
        """The oldest messages, as one batch of at most ``most``. Empty answers are not mixed with gradients."""
        batches = self.batches
        if len(batches) == 1 and (most is None or len(batches[0]) <= most):
            self.waiting = 0
            self.arrivals.popleft()
            return batches.popleft()
        parts: list[Messages] = []
        room = self.waiting if most is None else most
        empty = batches[0].payload is None
        while batches and room > 0 and (batches[0].payload is None) == empty:
            batch = batches[0]
            if len(batch) > room:
                parts.append(batch.slice(0, room))
                batches[0] = batch.slice(room, len(batch))
                room = 0
            else:
                parts.append(batches.popleft())
                self.arrivals.popleft()
                room -= len(batch)
        merged = Messages.merge(parts)
        self.waiting -= len(merged)
        return merged

    def clear(self) -> None:
        self.batches.clear()
        self.arrivals.clear()
        self.waiting = 0

    def __repr__(self) -> str:
        kind = "training" if self.train else "inference"
        return f"{self.node.name} {self.direction.name.lower()} port {self.port} ({kind}, {self.waiting} waiting)"


class Schedule(Protocol):
    """The order in which a worker serves its lanes. ``lanes`` come forward in topological order, then backward reversed."""

    def attach(self, lanes: Sequence[Lane]) -> None:
        """These are the worker's lanes."""

    def next(self) -> tuple[Lane, int | None] | None:
        """The lane to serve now and how many messages to take at most (None: all); None if nothing waits."""


class Sweep:
    """Round and round in topological order, every lane emptied in its turn."""

    def __init__(self) -> None:
        self._lanes: Sequence[Lane] = ()
        self._cursor = 0

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes, self._cursor = lanes, 0

    def next(self) -> tuple[Lane, int | None] | None:
        lanes, cursor = self._lanes, self._cursor
        for i in range(cursor, len(lanes)):
            if lanes[i].waiting:
                self._cursor = i + 1
                return lanes[i], None
        for i in range(cursor):
            if lanes[i].waiting:
                self._cursor = i + 1
                return lanes[i], None
        return None


class Fifo:
    """Whoever has waited longest."""

    def __init__(self) -> None:
        self._lanes: Sequence[Lane] = ()

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def next(self) -> tuple[Lane, int | None] | None:
        ready = [lane for lane in self._lanes if lane.waiting]
        return (min(ready, key=lambda lane: lane.arrivals[0]), None) if ready else None


class BackwardFirst:
    """Gradients before activations, oldest first (the paper's worker)."""

    def __init__(self) -> None:
        self._lanes: Sequence[Lane] = ()

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def next(self) -> tuple[Lane, int | None] | None:
        ready = [lane for lane in self._lanes if lane.waiting]
        return (min(ready, key=lambda lane: (-lane.direction, lane.arrivals[0])), None) if ready else None


class Random:
    """Any lane, any number of its messages, drawn from ``seed``."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._lanes: Sequence[Lane] = ()

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def next(self) -> tuple[Lane, int | None] | None:
        ready = [lane for lane in self._lanes if lane.waiting]
        if not ready:
            return None
        lane = ready[int(self._rng.integers(len(ready)))]
        return lane, int(self._rng.integers(1, lane.waiting + 1))


SCHEDULES: dict[str, Callable[[int], Schedule]] = {
    "sweep": lambda seed: Sweep(),
    "backward-first": lambda seed: BackwardFirst(),
    "fifo": lambda seed: Fifo(),
    "random": Random,
}
"""By name, made with the run's seed."""


def make_schedule(schedule: str | Schedule, seed: int) -> Schedule:
    """A schedule by name, or the one given."""
    if not isinstance(schedule, str):
        return schedule
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule '{schedule}'; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[schedule](seed)
