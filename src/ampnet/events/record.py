"""Record: the data of pictures and reports, collected from events during a run, or from its file afterwards.

    events ──> Recorder ──> RunRecord          a log that is read again
       └─────> PerfettoWriter ──> trace ──> RunRecord

Sums (time, batch sizes, staleness) are of the whole run. Only the first boxes are kept, up to a limit: a picture shows
a short interval, and a long run must not fill the memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any

from ampnet.events.boxes import Box, Travellers, box_of, box_of_layout, boxes_of_wave, in_order
from ampnet.events.log import (
    Backward,
    Begin,
    Epoch,
    Event,
    Forward,
    Played,
    Pump,
    Rest,
    Retire,
    Synced,
    Updated,
    Wave,
    Worked,
)
from ampnet.events.replicas import ReplicaMeter
from ampnet.events.staleness import StalenessMeter
from ampnet.events.totals import NodeTotal, Totals
from ampnet.events.utilisation import UtilisationMeter

if TYPE_CHECKING:
    from ampnet.controller import Progress

MOST = 500_000
"""The maximal number of boxes that are kept."""
LARGEST = 1e100
"""The largest value that can be drawn: sums and differences of a few such values are finite."""
KINDS = (Begin, Pump, Forward, Backward, Wave, Played, Updated, Synced, Worked, Retire, Epoch, Rest)
"""The types of events that a record needs."""


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream that has ended: an epoch's training or its validation."""

    name: str
    """The name of the stream."""
    train: bool
    """Whether it was training."""
    began: float
    """The time of its first pump, in seconds since the first event."""
    ended: float
    """The time of its last retirement, likewise."""
    instances: int
    """Instances retired."""
    loss: float | None
    """Mean loss; None if nothing had one."""
    metrics: dict[str, float]
    """Means of the metrics."""


@dataclass(frozen=True, slots=True)
class Point:
    """The progress of a run at some time: `Progress`, with the time."""

    time: float
    """Seconds since the first event."""
    stream: str
    """The stream pumped last."""
    train: bool
    """Whether it is training."""
    records: int
    """Its examples retired so far."""
    seconds: float
    """Since its first pump."""
    loss: float | None
    """Its mean loss so far; None before the first."""
    metrics: dict[str, float]
    """Its metrics so far."""
    in_flight: int
    """Instances in flight, of all streams."""


@dataclass(slots=True)
class RunRecord:
    """The data of a run for pictures and reports."""

    settings: dict[str, Any]
    """The settings of the first Begin; the command line adds "workload" and "graph", the drawing."""
    boxes: list[Box]
    """The first `MOST` boxes, in order of their starts."""
    streams: list[StreamRecord]
    """The streams that have ended, in order."""
    points: list[Point]
    """Progress at intervals; empty for an event log."""
    totals: Totals
    """Sums over the whole run."""
    incomplete: str = ""
    """What is missing in the file of the run, if it ends early; empty for a complete one."""


@dataclass(slots=True)
class _OpenStream:
    began: float
    instances: int = 0


@dataclass(slots=True)
class Sums:
    """A listener that adds up `Totals` and streams, for `Recorder` and `PerfettoWriter`."""

    since: float | None = None
    """The time of the first event."""
    settings: dict[str, Any] = field(default_factory=dict)
    _use: UtilisationMeter = field(default_factory=UtilisationMeter)
    _staleness: StalenessMeter = field(default_factory=StalenessMeter)
    _replicas: ReplicaMeter = field(default_factory=ReplicaMeter)
    _spent: dict[str, dict[str, float]] = field(default_factory=dict)
    _hosts: dict[str, str] = field(default_factory=dict)
    _open: dict[str, _OpenStream] = field(default_factory=dict)
    _in_flight: int = 0
    _boxes: int = 0
    _waves: int = 0
    _wave_instances: int = 0

    def __call__(self, event: Event) -> StreamRecord | None:
        """Add an event. Returns the stream that it ends, if any."""
        if self.since is None:
            self.since = event.time
        match event:
            case Forward():
                self._worked("forward", event)
            case Backward():
                self._worked("backward", event)
            case Played():
                self._played(event)
            case Wave():
                self._waves += 1
                self._wave_instances += len(event.instances)
                self._use(event)
                self._spend(event.worker, "layout", event.seconds)
                self._boxes += event.seconds > 0
            case Updated():
                self._worked("update", event)
            case Worked():
                self._staleness(event)
                self._replicas(event)
            case Synced():
                self._replicas(event)
                self._worked("sync", event)
            case Pump():
                self._in_flight = max(self._in_flight, event.in_flight)
                self._open.setdefault(event.stream, _OpenStream(event.time - self.since))
            case Retire():
                if event.stream in self._open:
                    self._open[event.stream].instances += len(event.instances)
            case Epoch():
                return self._ended(event, event.time - self.since)
            case Begin():
                self._use(event)
                self._replicas(event)
                self.settings = self.settings or dict(event.settings)
                self._open.clear()  # of an interrupted run before
            case Rest():
                self._use(event)
            case _:
                pass
        return None

    def opened(self, stream: str, began: float) -> None:
        """Set the time of a stream's first pump, if `Pump` events are not passed."""
        if self.since is not None:
            self._open.setdefault(stream, _OpenStream(began - self.since))

    def _worked(self, kind: str, event: Forward | Backward | Updated | Synced) -> None:
        self._use(event)
        self._boxes += 1
        self._hosts[event.node] = event.worker
        self._spend(event.worker, kind, event.seconds)

    def _played(self, event: Played) -> None:
        self._use(event)
        self._boxes += len(event.nodes)
        self._hosts.update(dict.fromkeys(event.nodes, event.worker))
        backward = sum(compress(event.seconds, event.directions))
        self._spend(event.worker, "forward", sum(event.seconds) - backward)
        self._spend(event.worker, "backward", backward)

    def _spend(self, worker: str, kind: str, seconds: float) -> None:
        if worker not in self._spent:
            self._spent[worker] = dict.fromkeys(("forward", "backward", "update"), 0.0)
        spent = self._spent[worker]
        spent[kind] = spent.get(kind, 0.0) + seconds

    def _ended(self, event: Epoch, now: float) -> StreamRecord:
        stream = self._open.pop(event.stream, _OpenStream(now))
        metrics = {name: value for name, value in event.metrics.items() if finite(value) is not None}
        return StreamRecord(event.stream, event.train, stream.began, now, stream.instances, finite(event.loss), metrics)

    def totals(self) -> Totals:
        """The sums so far."""
        use, updates, staleness = self._use.nodes(), self._use.updates(), self._staleness.nodes()
        nodes = {
            name: NodeTotal(
                host,
                use.get((name, "forward")),
                use.get((name, "backward")),
                updates.get(name),
                staleness.get(name),
            )
            for name, host in self._hosts.items()
        }
        spent = {worker: dict(of) for worker, of in self._spent.items()}
        return Totals(
            self._use.wall,
            nodes,
            spent,
            self._staleness.overall(),
            self._in_flight,
            self._boxes,
            self._replicas.groups(),
            self._waves,
            self._wave_instances,
        )


class Recorder:
    """A listener that builds a `RunRecord`; a runtime calls its ``turn`` with progress.

    ``clock`` is the run's, for the times of turns. The boxes of waves are made by `record`: until then their events are
    kept.
    """

    kinds = KINDS
    """The events it wants."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most = self._left = most
        self._clock = clock
        self._sums = Sums()
        self._boxes: list[Box | tuple[Played, tuple[int, ...], int]] = []
        self._travellers = Travellers()
        self._streams: list[StreamRecord] = []
        self._turns: list[tuple[float, Progress]] = []

    def __call__(self, event: Event) -> None:
        ended = self._sums(event)
        if ended is not None:
            self._streams.append(ended)
        elif self._left > 0:
            self._keep(event)

    def _keep(self, event: Event) -> None:
        assert self._sums.since is not None
        match event:
            case Played():
                self._boxes.append((event, *self._travellers.of(event)))
                self._left -= len(event.nodes)
            case Wave():
                instances = self._travellers.begin(event)
                if event.seconds > 0:
                    self._boxes.append(box_of_layout(event, self._sums.since, *instances))
                    self._left -= 1
            case _:
                box = box_of(event, self._sums.since)
                if box is not None:
                    self._boxes.append(box)
                    self._left -= 1

    def turn(self, progress: Progress) -> None:
        """Record the progress of the run."""
        self._turns.append((self._clock(), progress))

    def record(self) -> RunRecord:
        """Returns the record so far."""
        sums = self._sums
        points = [] if sums.since is None else [point_of(progress, now - sums.since) for now, progress in self._turns]
        boxes: list[Box] = []
        for kept in self._boxes:
            if isinstance(kept, Box):
                boxes.append(kept)
            else:
                boxes += boxes_of_wave(kept[0], sums.since or 0.0, *kept[1:])
        return RunRecord(sums.settings, in_order(boxes[: self._most]), list(self._streams), points, sums.totals())


def point_of(progress: Progress, now: float) -> Point:
    """Returns the progress as a point; values that are not finite become None."""
    metrics = {name: value for name, value in progress.metrics.items() if finite(value) is not None}
    return Point(
        now,
        progress.stream,
        progress.train,
        progress.records,
        progress.seconds,
        finite(progress.loss),
        metrics,
        progress.in_flight,
    )


def finite(value: float) -> float | None:
    """Returns the value, or None for one that is not finite or too large to be drawn."""
    return value if abs(value) <= LARGEST else None
