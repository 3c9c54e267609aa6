"""The event log: typed events of a run, the source of all statistics, pictures and checks.

A listener is a function that takes an event. Without listeners no event is made. An event refers to the states of its
messages; they are immutable, so nothing is copied.

    pump -> forward ... forward -> backward ... backward -> return -> retire        one instance
    update, synced, epoch, rest                                    a node; a replica of one; a stream; the end of a run
    worked                                                         the sums of a node over an interval
    wave -> played ... played                    instances computed together; instead of forward and backward
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ampnet.errors import DataError
from ampnet.events.columns import fields_of, line_of, text_of
from ampnet.events.stream_file import StreamFile
from ampnet.events.typed import brief, checker, parsed, read, shown
from ampnet.state import States

if TYPE_CHECKING:
    from ampnet.controller import Progress
    from ampnet.events.sampling import Sampling

PortStates = tuple[tuple[int, States], ...]
"""(port, states) of every batch sent."""


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of events. ``time``: seconds by the run's clock."""

    time: float


@dataclass(frozen=True, slots=True)
class Begin(Event):
    """A run begins, under these settings."""

    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pump(Event):
    """The controller sent instances into the graph."""

    stream: str
    train: bool
    instances: tuple[int, ...]
    sent: PortStates
    """Per input number."""
    in_flight: int
    """Instances in flight afterwards."""
    more: bool
    """Whether data still waits to be pumped."""


@dataclass(frozen=True, slots=True)
class Forward(Event):
    """A node handled forward messages. ``time`` is the start."""

    seconds: float
    worker: str
    node: str
    port: int
    train: bool
    received: States
    sent: PortStates
    """Forward, per output port."""
    answered: PortStates
    """Backward at once, per input port (a Loss; a Flatmap without children)."""
    rows: int
    version: int | None
    """Updates of the node so far; None for a node without parameters."""


@dataclass(frozen=True, slots=True)
class Backward(Event):
    """A node handled backward messages. ``time`` is the start."""

    seconds: float
    worker: str
    node: str
    port: int
    received: States
    sent: PortStates
    """Per input port."""
    rows: int
    version: int | None
    gradients: int
    """The number of messages with a gradient (the others were empty answers)."""
    lags: tuple[tuple[int, int], ...]
    """(staleness, messages) of this batch, for a node with parameters."""


@dataclass(frozen=True, slots=True)
class Wave(Event):
    """A wave (instances computed together) begins on a worker. ``time`` is the start."""

    seconds: float
    """Seconds of its rehearsal and layout."""
    worker: str
    wave: int
    """Number of the wave on that worker, from 1."""
    train: bool
    instances: tuple[int, ...]
    operations: int
    """Operations of its layout, one direction."""


FORWARD, BACKWARD, COLLECT = 0, 1, 2
"""Directions of an operation. "collect" computes the weight gradient of all rows of a wave at a port of a node, after
the last backward there."""


class Operation(NamedTuple):
    """One operation of a wave, as `Played` announces it."""

    node: str
    port: int
    round: int
    direction: int
    start: float
    seconds: float
    rows: int
    messages: int
    version: int | None
    lag: int
    wanted: bool


@dataclass(frozen=True, slots=True)
class Played(Event):
    """Consecutive operations of one wave.

    ``time`` is the start of the first. The fields from ``nodes`` on are columns, with one entry per operation.
    """

    worker: str
    wave: int
    train: bool
    nodes: tuple[str, ...]
    ports: tuple[int, ...]
    """The site of the node."""
    rounds: tuple[int, ...]
    directions: tuple[int, ...]
    """0 forward, 1 backward, 2 collect."""
    starts: tuple[float, ...]
    seconds: tuple[float, ...]
    rows: tuple[int, ...]
    messages: tuple[int, ...]
    """The number of messages with a gradient at a node with parameters. Forward and backward: of this operation.
    Collect: of all operations of the port in this wave. At other nodes: the rows."""
    versions: tuple[int | None, ...]
    """The node's number of updates when the operation was played; None for a node without parameters."""
    lags: tuple[int, ...]
    """At a node with parameters. Backward: updates between the operation's forward and now. Forward: updates since the
    oldest of its products was made (products of a loop's inputs are made in its first round); else 0."""
    wanted: tuple[bool, ...]
    """Forward in training: whether a backward of the same (wave, node, port, round) follows. Rows that depend on no
    parameter get none. Else False."""

    @classmethod
    def of(cls, worker: str, wave: int, train: bool, operations: Sequence[Operation]) -> Played:
        """Returns the event of these operations, at least one."""
        return cls(operations[0].start, worker, wave, train, *zip(*operations, strict=True))

    def operations(self) -> Iterator[Operation]:
        """Yields the operations."""
        return map(
            Operation,
            self.nodes,
            self.ports,
            self.rounds,
            self.directions,
            self.starts,
            self.seconds,
            self.rows,
            self.messages,
            self.versions,
            self.lags,
            self.wanted,
        )


@dataclass(frozen=True, slots=True)
class Updated(Event):
    """A node updated its parameters. ``time`` is the start."""

    seconds: float
    worker: str
    node: str
    version: int
    """Updates of the node so far, this one included."""
    count: int
    """Gradients in it."""
    reason: str
    """The reason of the update::

        "full"      the counter reached ``frequency``
        "flush"     an epoch has ended; these are its leftovers
        "late"      it was due while the replica waited for a synchronisation; it holds at least ``frequency``
        "together"  the gradients of all replicas were averaged; ``count`` is the number that this one contributed,
                    maybe none. Later gradients stay for the next update
    """
    unit: str
    """The unit of the count: "messages" or "instances"."""
    frequency: int
    """The node's ``min_update_frequency``."""


@dataclass(frozen=True, slots=True)
class Synced(Event):
    """A replica was synchronised with the others of its group. ``time`` is the start."""

    seconds: float
    worker: str
    node: str
    """The replica: "cell#2"."""
    group: str
    """The original node: "cell"."""
    round: int
    """The number of the group's synchronisation, from 1."""
    version: int
    """The version of the replica afterwards."""
    moved: bool
    """Whether it increased the version: the weights were replaced by the mean. Shared parameters and averaged gradients
    do not change the version."""
    updates: int
    """The number of its updates since the synchronisation before."""
    drift: float
    """The distance of its weights from the mean just before, relative to the mean's norm; 0 if nothing moves."""
    digest: int
    """The digest of its weights afterwards: equal for all replicas."""


@dataclass(frozen=True, slots=True)
class Worked(Event):
    """Sums over the work of a node with parameters since its last such event, for meters.

    Backward and Updated hold the same information event by event. ``time`` is the end of the interval.
    """

    worker: str
    node: str
    messages: int
    """Backward messages."""
    lags: tuple[tuple[int, int], ...]
    """(staleness, messages)."""
    updates: int


@dataclass(frozen=True, slots=True)
class Return(Event):
    """Answers to pumped messages came back to the controller."""

    port: int
    """Input number."""
    states: States


@dataclass(frozen=True, slots=True)
class Retire(Event):
    """Instances are complete: everything pumped for them has come back (training), or all results are in
    (inference)."""

    stream: str
    train: bool
    instances: tuple[int, ...]
    in_flight: int
    more: bool


@dataclass(frozen=True, slots=True)
class Epoch(Event):
    """The last instance of a stream retired; after a training stream, leftover gradients have been flushed."""

    stream: str
    train: bool
    loss: float
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Restart(Event):
    """Workers were started again: one was lost, or has joined. Instances in flight are computed again; waves that had
    begun are gone, and after a loss gradients that were not applied."""

    worker: str
    how: str
    """How it was lost; or "joined"."""
    instances: tuple[int, ...]
    """Those in flight."""


@dataclass(frozen=True, slots=True)
class Rest(Event):
    """A run has ended. ``held`` names every cache or queue that is not empty."""

    held: dict[str, int]


Listener = Callable[[Event], None]


def ended(event: Event) -> float:
    """Returns the end time of an event: events of several processes are sorted by it."""
    if isinstance(event, Played):
        return event.starts[-1] + event.seconds[-1] if event.starts else event.time
    return event.time + float(getattr(event, "seconds", 0.0))


_KINDS = {
    kind.__name__: kind
    for kind in (
        Begin,
        Pump,
        Forward,
        Backward,
        Wave,
        Played,
        Updated,
        Synced,
        Worked,
        Return,
        Retire,
        Epoch,
        Restart,
        Rest,
    )
}


_NAMES: dict[type[Event], tuple[str, ...]] = {
    kind: tuple(item.name for item in fields(kind)) for kind in _KINDS.values()
}
_VALUES = {kind: attrgetter(*names) for kind, names in _NAMES.items()}
_encode = json.JSONEncoder().encode


class Announcer:
    """Passes events to listeners. An event that no listener wants is not made.

    A listener with a tuple ``kinds`` gets only events of those types, so that a meter costs no more than it needs; any
    other listener gets all. One with a ``sampling`` (`ampnet.events.sampling`) gets a sample of the events of some
    types; if another listener wants all of them, it gets all, too. The method ``turn`` of a listener, if any, is called
    with progress.
    """

    def __init__(self, listeners: Iterable[Listener] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        self.listeners, self._clock = tuple(listeners), clock
        self._wanting: dict[type[Event], tuple[Listener, ...]] = {}
        self._samplings: dict[type[Event], tuple[Sampling, ...]] = {}
        """The samplings of types that are only sampled."""
        for kind in _KINDS.values():
            wanting = [one for one in self.listeners if kind in getattr(one, "kinds", (kind,))]
            samplings = [getattr(one, "sampling", None) for one in wanting]
            sampled = [one for one in samplings if one is not None and kind in one.kinds]
            self._wanting[kind] = tuple(wanting)
            self._samplings[kind] = tuple(sampled) if len(sampled) == len(wanting) else ()
        self._turns: list[Callable[[Progress], None]] = [one.turn for one in self.listeners if hasattr(one, "turn")]

    def wants(self, kind: type[Event]) -> bool:
        """Whether a listener wants events of this type now."""
        samplings = self._samplings[kind]
        if not samplings:
            return bool(self._wanting[kind])
        now = self._clock()
        for sampling in samplings:  # noqa: SIM110 - a generator would double what this costs
            if sampling.open(now):
                return True
        return False

    def samples(self, kind: type[Event]) -> bool:
        """Whether the result of `wants` changes during a run."""
        return bool(self._samplings[kind])

    def __call__(self, event: Event) -> None:
        self.spend(event)
        for listener in self._wanting[type(event)]:
            listener(event)

    def spend(self, event: Event) -> None:
        """Count an event towards the samples."""
        for sampling in self._samplings[type(event)]:
            sampling.spend(event)

    def turn(self, progress: Progress) -> None:
        """Pass the progress to listeners."""
        for turn in self._turns:
            turn(progress)

    @property
    def turns(self) -> bool:
        """Whether a listener wants progress."""
        return bool(self._turns)


class EventLog:
    """A listener that keeps all events in ``events``."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def __len__(self) -> int:
        return len(self.events)


TOGETHER = 64
"""The number of lines that are buffered."""
LONGEST = 1 << 26
"""The maximal number of characters of a line."""


class LogWriter:
    """A listener that writes events to a file, one JSON object per line, under a temporary name until `close`.

    ``size`` is the number of bytes so far. If the disk is full, the events that had room are kept, and ``fault`` is the
    error; the run goes on.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = StreamFile(self.path)
        self._waiting: list[str] = []
        self.size = 0

    @property
    def fault(self) -> str | None:
        """The error that ended the file early; None without one."""
        return self._file.fault

    def __call__(self, event: Event) -> None:
        line = line_of(event) if isinstance(event, Played) else _line(event)
        self._waiting.append(line)
        self.size += len(line) + 1
        if len(self._waiting) >= TOGETHER:
            self._write()

    def _write(self) -> None:
        if self._waiting:
            self._file.write("\n".join(self._waiting) + "\n")
            self._waiting.clear()

    def close(self, *, keep: bool = True) -> None:
        """Finish the file; with ``keep=False`` remove it."""
        if self._file.closed:
            return
        if keep:
            self._write()
            self._file.finish()
        else:
            self._file.discard()


def _line(event: Event) -> str:
    """Returns the JSON text of `to_json`, in half the time."""
    kind = type(event)
    values = zip(_NAMES[kind], _VALUES[kind](event), strict=True)
    columns = ", ".join([f'"{name}": {_text(value)}' for name, value in values])
    return f'{{"event": "{kind.__name__}", {columns}}}'


def _text(value: Any) -> str:
    kind = type(value)
    if kind is float and value - value == 0:
        return repr(value)
    if kind is int:
        return str(value)
    if kind is str:
        return text_of(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is tuple and (not value or type(value[0]) is int):  # instances
        return str(list(value))
    return _encode(_plain(value))


def to_json(event: Event) -> dict[str, Any]:
    """Returns an event as plain data."""
    kind = type(event)
    out: dict[str, Any] = {"event": kind.__name__}
    for name in _NAMES[kind]:
        value = getattr(event, name)
        out[name] = _plain(value) if isinstance(value, (tuple, States)) else value
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, States):
        return {"fields": list(value.fields), "columns": value.columns.tolist()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return value


def from_json(data: dict[str, Any]) -> Event:
    """Returns the event that `to_json` encoded. Raises ValueError that names the field for anything else."""
    if not isinstance(data, dict):
        raise ValueError(f"it is {shown(data)}; an object was expected")
    data = dict(data)
    name = data.pop("event", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"its event is {shown(name)}; there are {', '.join(_KINDS)}")
    if kind is not Played:
        event = read(kind, data)
        if isinstance(event, Begin):
            _check_settings(event.settings)
        return event
    played = read(Played, fields_of(data))
    if played.directions and max(played.directions) > COLLECT:
        raise ValueError(f"directions has {max(played.directions)}; there are 0 to {COLLECT}")
    return played


def _check_settings(settings: dict[str, Any]) -> None:
    """Raise ValueError for settings of the wrong type, among those that rules and meters read."""
    from ampnet.events.replicas import groups_of

    checker(int | None)(settings.get("max_active_keys"))
    try:
        groups_of(settings)
    except DataError as error:
        raise ValueError(str(error)) from error


def read_log(path: str | Path) -> Iterator[Event]:
    """Yields the events of a file that `LogWriter` wrote. Raises `DataError` with the number of an invalid line."""
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for number, line in lines_of(path, file):
            try:
                event = from_json(parsed(line))
            except ValueError as error:
                raise not_an_event(path, number, error) from error
            yield event


def lines_of(path: str | Path, file: TextIO, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yields (number, line); the ``first`` has this number. Raises `DataError` for a line longer than any event."""
    number = first - 1
    while line := file.readline(LONGEST):
        number += 1
        if len(line) == LONGEST:
            raise DataError(f"{path}, line {number}: longer than {LONGEST:,} characters; this is not a run's file")
        yield number, line


def not_an_event(path: str | Path, line: int, error: Exception) -> DataError:
    """Returns the error for a line of a file that is not an event."""
    hint = "; a run is recorded by 'ampnet train' with --log or --trace" if line == 1 else ""
    return DataError(f"{path}, line {line}: not an event of a run ({brief(error)}){hint}")


def without_time(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Returns the events as plain data without their times, for comparing runs."""
    out = []
    for event in events:
        data = to_json(event)
        data.pop("time", None)
        data.pop("seconds", None)
        data.pop("starts", None)
        out.append(data)
    return out
