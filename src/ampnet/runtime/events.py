"""Events of several processes: collected in workers, sent to the controller, and passed to listeners in order.

    worker     collects its events ──EVENTS──> 256 at a time, and at every SHOW note
    controller keeps them, and its own; once every worker has answered a SHOW, all events older than the question are
               complete: they are passed to the listeners, in order of their ends

In a note, states are one concatenated array of numbers, not text: a log may hold every message of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from ampnet.events.log import Announcer, Backward, Event, Forward, Listener, Played, Synced, Updated, Wave, Worked
from ampnet.runtime.protocol import Kind
from ampnet.runtime.transport import Note
from ampnet.state import Ints, States

KINDS: tuple[type[Event], ...] = (Forward, Backward, Updated, Synced, Worked, Wave, Played)
"""The types of events that workers emit."""
_NAMES = [tuple(item.name for item in fields(kind)) for kind in KINDS]
_VALUES = [attrgetter(*names) for names in _NAMES]


def events_note(events: Sequence[Event], token: int | None = None) -> Note:
    """Returns a note with events; ``token``: the SHOW note that they answer."""
    columns: list[Ints] = []
    layouts: dict[tuple[str, ...], int] = {}
    rows = []
    for event in events:
        kind = KINDS.index(type(event))
        rows.append([kind, *(_plain(value, columns, layouts) for value in _VALUES[kind](event))])
    numbers = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    return Note(Kind.EVENTS, {"token": token, "rows": rows, "layouts": list(layouts)}, {"states": numbers})


def _plain(value: Any, columns: list[Ints], layouts: dict[tuple[str, ...], int]) -> Any:
    """Convert a value for JSON; states go to the columns."""
    if isinstance(value, States):
        columns.append(value.columns.reshape(-1))
        return [layouts.setdefault(value.fields, len(layouts)), len(value)]
    if isinstance(value, tuple):
        return [_plain(one, columns, layouts) for one in value]
    return value


def events_of(note: Note) -> list[Event]:
    """Returns the events of a note."""
    numbers: Ints = np.asarray(note.arrays["states"])
    layouts = [tuple(names) for names in note.data["layouts"]]
    used = 0

    def states(layout: int, count: int) -> States:
        nonlocal used
        names = layouts[layout]
        begin, used = used, used + len(names) * count
        return States.trusted(names, numbers[begin:used].reshape(len(names), count))

    events: list[Event] = []
    for kind, *values in note.data["rows"]:
        whole: dict[str, Any] = {}
        for name, value in zip(_NAMES[kind], values, strict=True):
            if name == "received":
                value = states(*value)
            elif name in ("sent", "answered"):
                value = tuple((port, states(*given)) for port, given in value)
            elif isinstance(value, list):
                value = tuple(tuple(one) if isinstance(one, list) else one for one in value)
            whole[name] = value
        events.append(KINDS[kind](**whole))
    return events


class InOrder(Announcer):
    """Buffers events until they are complete; see the head of this file."""

    def __init__(self, listeners: Sequence[Listener] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(listeners, clock)
        self._kept: list[Event] = []

    def __call__(self, event: Event) -> None:
        self._kept.append(event)

    def collect(self, events: Sequence[Event]) -> None:
        """Add events of a worker."""
        self._kept += events

    def release(self, until: float) -> None:
        """Pass on all events that ended by then: every worker has sent its events up to that time."""
        self._kept.sort(key=ended)
        ready = [event for event in self._kept if ended(event) <= until]
        self._kept = self._kept[len(ready) :]
        for event in ready:
            super().__call__(event)

    def drop(self) -> None:
        """Drop all events: the run was abandoned."""
        self._kept.clear()


class Collector(Announcer):
    """The announcer of a worker: buffers the events that the controller's listeners want, to be sent."""

    def __init__(self, wanted: Announcer) -> None:
        """``wanted``: the controller's announcer, as of the fork."""
        super().__init__()
        self.events: list[Event] = []
        self._wanted = wanted

    def wants(self, kind: type[Event]) -> bool:
        return self._wanted.wants(kind)

    def samples(self, kind: type[Event]) -> bool:
        return self._wanted.samples(kind)

    def __call__(self, event: Event) -> None:
        self._wanted.spend(event)
        self.events.append(event)


def ended(event: Event) -> float:
    """Returns the time when an event ended, by the run's clock."""
    if isinstance(event, Played):
        return event.starts[-1] + event.seconds[-1]
    if isinstance(event, Wave):  # its operations follow it
        return event.time
    return event.time + float(getattr(event, "seconds", 0.0))
