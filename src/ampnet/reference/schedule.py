"""Schedule: in which order a worker serves what waits at its nodes.

What waits is held in **lanes**, one for each (node, direction, port, training or inference). A schedule names the
lane to serve next, and may say how many of its messages to take. The order decides how full batches get, and so the
speed; with updates frozen it decides nothing else (promise P3).

* ``sweep``: lanes in topological order forward, then in the opposite order backward, round and round. Messages of many
  instances meet at a node, because everything before it has been served first.
* ``backward-first`` (the paper's): gradients before activations, oldest first. Instances retire sooner; batches are
smaller.
* ``fifo``: the lane whose oldest message has waited longest.
* ``random``: any lane, any number of its messages. For tests.

How much of a lane is taken is a separate question. At a node of matrix products a batch pays up to some number of
rows (`ENOUGH_ROWS`: on a CPU, about a hundred rows already run at full speed); beyond it, a larger batch only means
that more instances are half done at the same time, and so more staleness. Such a node is handed no more than is
enough, the oldest instances first: what does not gain from running side by side runs one after the other. Other nodes
take all that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ampnet.graph import End
from ampnet.message import Messages
from ampnet.nodes.node import Direction, Node
from ampnet.nodes.transform import Parameterised
from ampnet.state import Column

ENOUGH_ROWS = 100
"""Default number of rows beyond which a larger batch is not worth its staleness; measured in docs/design.md."""


class Lane:
    """What waits at one port of a node, in one direction and of one kind."""

    __slots__ = (
        "arrivals",
        "batches",
        "direction",
        "light",
        "node",
        "number",
        "passes",
        "port",
        "routes",
        "rows",
        "train",
        "trained",
        "waiting",
    )

    def __init__(self, node: Node, direction: Direction, port: int, train: bool) -> None:
        self.node, self.direction, self.port, self.train = node, direction, port, train
        self.trained = node if direction and isinstance(node, Parameterised) else None
        """The node, where gradients of its parameters come in here."""
        self.light = not node.saturates
        self.passes = node.passing[direction]
        self.routes: tuple[Sequence[Route], Sequence[Route]] = ((), ())
        """Where the node's output ports lead (forward) and its input ports (backward); set by the worker."""
        self.number = 0
        """The index of the node among the worker's nodes; whether batches emit events. Both set by the worker."""
        self.batches: list[Messages] = []
        self.arrivals: list[int] = []
        self.waiting = self.rows = 0

    def push(self, messages: Messages, arrival: int) -> None:
        count = messages.states.columns.shape[1]
        self.batches.append(messages)
        self.arrivals.append(arrival)
        self.waiting += count
        self.rows += count if messages.offsets is None else int(messages.offsets[-1])

    def take(self, most: int | None = None, enough_rows: int | None = None) -> Messages:
        """Messages as one batch: at most ``most``, and no more than it takes to have ``enough_rows``.

        Where not all can be taken, those of the oldest instances are. Empty answers are not mixed with gradients.
        """
        batches = self.batches
        all_fit = (most is None or self.waiting <= most) and (enough_rows is None or self.rows <= enough_rows)
        if all_fit and (len(batches) == 1 or not any(b.payload is None for b in batches)):
            self.clear()
            return Messages.merge(batches)
        order = range(len(batches)) if all_fit else sorted(range(len(batches)), key=lambda i: _age(batches[i]))
        empty = batches[order[0]].payload is None
        parts: list[Messages] = []
        taken: list[int] = []
        count = rows = 0
        for i in order:
            batch = batches[i]
            if (batch.payload is None) != empty:
                continue
            fit = len(batch) if most is None else min(len(batch), most - count)
            if enough_rows is not None and rows + batch.rows > enough_rows:
                fit = min(fit, _first_reaching(batch, enough_rows - rows))
            if fit < len(batch):
                parts.append(batch.slice(0, fit))
                batches[i] = batch.slice(fit, len(batch))
            else:
                parts.append(batch)
                taken.append(i)
            count += fit
            rows += parts[-1].rows
            if fit < len(batch) or count == most or (enough_rows is not None and rows >= enough_rows):
                break
        for i in sorted(taken, reverse=True):
            del batches[i], self.arrivals[i]
        self.waiting -= count
        self.rows -= rows
        return Messages.merge(parts)

    def drop(self, instances: Column) -> None:
        """Forget the messages of these instances."""
        batches, arrivals = self.batches, self.arrivals
        self.clear()
        for batch, arrival in zip(batches, arrivals, strict=True):
            kept = np.flatnonzero(~np.isin(batch.states.column("instance"), instances))
            if len(kept):
                self.push(batch.take(kept), arrival)

    def clear(self) -> None:
        self.batches, self.arrivals = [], []
        self.waiting = self.rows = 0

    def __repr__(self) -> str:
        kind = "training" if self.train else "inference"
        return f"{self.node.name} {self.direction.name.lower()} port {self.port} ({kind}, {self.waiting} waiting)"


def _age(batch: Messages) -> int:
    """The first instance of a batch: instances are numbered as they are pumped, so low means old."""
    return int(batch.states.columns[0, 0])


def _first_reaching(batch: Messages, rows: int) -> int:
    """The smallest number of leading messages of a batch that together have ``rows`` rows."""
    if batch.offsets is None:
        return rows
    return int(np.searchsorted(batch.offsets[1:], rows)) + 1


Route = tuple[End, Lane | None, Lane | None]
"""An end of an edge, and its lanes for training and inference; None where it is not hosted by this worker."""


class Schedule(Protocol):
    """The order in which a worker serves its lanes. ``lanes``: forward in topological order, then backward."""

    hands_on: bool
    """Whether a batch that is large enough may pass light nodes without waiting for their turn."""

    def attach(self, lanes: Sequence[Lane]) -> None:
        """These are the worker's lanes."""

    def next(self) -> tuple[Lane, int | None] | None:
        """The lane to serve now and how many messages to take at most (None: all); None if nothing waits."""


class Sweep:
    """Round and round in topological order."""

    hands_on = True

    def __init__(self) -> None:
        self._lanes: Sequence[Lane] = ()
        self._cursor = 0

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes, self._cursor = lanes, 0

    def state(self) -> Any:
        """Returns what its choices depend on besides the lanes, as plain data."""
        return self._cursor

    def restore(self, state: Any) -> None:
        """Continue from a state."""
        self._cursor = state

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
    """The message that has waited longest."""

    hands_on = False

    def __init__(self) -> None:
        self._lanes: Sequence[Lane] = ()

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def next(self) -> tuple[Lane, int | None] | None:
        ready = [lane for lane in self._lanes if lane.waiting]
        return (min(ready, key=self._rank), None) if ready else None

    def _rank(self, lane: Lane) -> tuple[int, int]:
        """The rank of a lane; the lowest is served."""
        return 0, lane.arrivals[0]


class BackwardFirst(Fifo):
    """Gradients before activations, oldest first (the paper's worker)."""

    def _rank(self, lane: Lane) -> tuple[int, int]:
        return -lane.direction, lane.arrivals[0]


class Random:
    """Any lane, any number of its messages, drawn from ``seed``."""

    hands_on = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._lanes: Sequence[Lane] = ()

    def attach(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes

    def state(self) -> Any:
        return self._rng.bit_generator.state

    def restore(self, state: Any) -> None:
        self._rng.bit_generator.state = state

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
