"""Utilisation: the time of nodes and workers, and the sizes of batches.

    worker 0   [ linear1 > ][ relu > ][  linear1 <  ][u]          [ linear1 > ] ...     > forward  < backward  u update
               |<----------------- busy --------------->|  idle  |

A node gets all messages that wait at it, so the size of its batches depends on the schedule and on ``max_active_keys``.
With small batches the overhead of Python and kernel launches is paid for few messages: `NodeUse.histogram` shows them.
Shares are relative to the wall time of all runs, from Begin to Rest; the time between runs does not count. With several
workers the shares of all nodes may add up to more than 1, those of one worker's nodes may not.

In a wave an operation is a batch. Collecting a weight's gradient is a batch of the node's backward, of all messages of
the wave at that port. The rehearsal and layout of a wave keep its worker busy, and belong to no node.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ampnet.events.log import Backward, Begin, Event, Forward, Played, Rest, Synced, Updated, Wave, ended

DIRECTIONS = ("forward", "backward", "backward")
"""The direction that each direction of a wave's operations counts towards."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The statistics of a node in one direction."""

    invocations: int
    """Batches handled."""
    messages: int
    """Messages in them."""
    rows: int
    """Payload rows in them."""
    seconds: float
    """Time spent in the node, without updates."""
    mean_messages: float
    """Mean number of messages of a batch."""
    mean_rows: float
    """Mean number of rows of a batch."""
    share: float
    """Share of the wall time spent here; NaN before any time has passed."""
    histogram: dict[int, int]
    """Batches by size: 1 -> of one message, 2 -> of 2 to 3, 4 -> of 4 to 7, ...; 0 -> of none."""


@dataclass(frozen=True, slots=True)
class UpdateUse:
    """The statistics of a node's updates."""

    updates: int
    """Updates made."""
    gradients: int
    """Gradients in them, in the node's own unit (messages or instances)."""
    flushes: int
    """The number of flushes at the end of an epoch among them."""
    seconds: float
    """Time spent in them."""
    share: float
    """Share of the wall time spent in them; NaN before any time has passed."""


@dataclass(frozen=True, slots=True)
class WorkerUse:
    """The statistics of a worker."""

    invocations: int
    """Batches handled, in both directions."""
    messages: int
    """Messages in them."""
    updates: int
    """Updates of its nodes."""
    seconds: float
    """Time spent in its nodes, including updates, synchronisations of replicas and the layout of waves."""
    share: float
    """Busy share of the wall time; the rest went into queues, routing, the controller, or waiting."""


@dataclass(slots=True)
class _Tally:
    """Sums of one node and direction, of a node's updates, or of a worker."""

    invocations: int = 0
    messages: int = 0
    rows: int = 0
    updates: int = 0
    gradients: int = 0
    flushes: int = 0
    seconds: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter)


class UtilisationMeter:
    """A listener that adds up time and batch sizes. It may be read at any time."""

    kinds = (Begin, Forward, Backward, Wave, Played, Updated, Synced, Rest)
    """The events it wants."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, str], _Tally] = {}
        self._updates: dict[str, _Tally] = {}
        self._workers: dict[str, _Tally] = {}
        self._began: float | None = None
        self._latest = 0.0
        self._ended = 0.0

    def __call__(self, event: Event) -> None:
        self._watch(event)
        match event:
            case Forward():
                self._handled("forward", event)
            case Backward():
                self._handled("backward", event)
            case Played():
                self._played(event)
            case Updated():
                self._updated(event)
            case Synced() | Wave():
                self._workers.setdefault(event.worker, _Tally()).seconds += event.seconds
            case _:
                pass

    def _watch(self, event: Event) -> None:
        """Update the wall time: of finished runs, and of the current one."""
        if isinstance(event, Begin) or self._began is None:
            self._ended, self._began, self._latest = self.wall, event.time, event.time
        self._latest = max(self._latest, ended(event))
        if isinstance(event, Rest):
            self._ended, self._began = self.wall, None

    def _handled(self, direction: str, event: Forward | Backward) -> None:
        messages = len(event.received)
        node = self._nodes.setdefault((event.node, direction), _Tally())
        worker = self._workers.setdefault(event.worker, _Tally())
        for tally in (node, worker):
            tally.invocations += 1
            tally.messages += messages
            tally.rows += event.rows
            tally.seconds += event.seconds
        node.sizes[bucket(messages)] += 1

    def _played(self, event: Played) -> None:
        """Add operations. A log of waves has one every 10 to 100 us, so this loop is kept short."""
        nodes = self._nodes
        for node, direction, seconds, size, many in zip(
            event.nodes, event.directions, event.seconds, event.rows, event.messages, strict=True
        ):
            key = node, DIRECTIONS[direction]
            tally = nodes.get(key)
            if tally is None:
                tally = nodes[key] = _Tally()
            tally.seconds += seconds
            tally.invocations += 1
            tally.messages += many
            tally.rows += size
            tally.sizes[1 << (many.bit_length() - 1) if many else 0] += 1
        worker = self._workers.setdefault(event.worker, _Tally())
        worker.invocations += len(event.nodes)
        worker.messages += sum(event.messages)
        worker.rows += sum(event.rows)
        worker.seconds += sum(event.seconds)

    def _updated(self, event: Updated) -> None:
        for tally in (self._updates.setdefault(event.node, _Tally()), self._workers.setdefault(event.worker, _Tally())):
            tally.updates += 1
            tally.gradients += event.count
            tally.flushes += event.reason == "flush"
            tally.seconds += event.seconds

    @property
    def wall(self) -> float:
        """Returns the seconds from Begin to Rest of all runs so far; for a run in progress, up to its latest event."""
        return self._ended + (self._latest - self._began if self._began is not None else 0.0)

    def nodes(self) -> dict[tuple[str, str], NodeUse]:
        """Returns the statistics by (node, "forward" or "backward")."""
        return {
            key: NodeUse(
                t.invocations,
                t.messages,
                t.rows,
                t.seconds,
                t.messages / t.invocations,
                t.rows / t.invocations,
                self._share(t),
                dict(sorted(t.sizes.items())),
            )
            for key, t in self._nodes.items()
        }

    def updates(self) -> dict[str, UpdateUse]:
        """Returns the statistics of updates, by node."""
        return {
            node: UpdateUse(t.updates, t.gradients, t.flushes, t.seconds, self._share(t))
            for node, t in self._updates.items()
        }

    def workers(self) -> dict[str, WorkerUse]:
        """Returns the statistics by worker."""
        return {
            worker: WorkerUse(t.invocations, t.messages, t.updates, t.seconds, self._share(t))
            for worker, t in self._workers.items()
        }

    def _share(self, tally: _Tally) -> float:
        return tally.seconds / self.wall if self.wall > 0 else float("nan")


def bucket(size: int) -> int:
    """Returns the largest power of two that is not above ``size``; 0 for an empty batch."""
    return 1 << (size.bit_length() - 1) if size else 0
