"""Events of several processes: how they come to the controller's process, and in which order listeners hear of them.

    worker     collects what happened in it ──EVENTS──> 256 at a time, and whenever it is asked to SHOW what it has
    controller keeps all of it, and its own; once every worker has shown what it had when asked, all that is older than
               the question is complete: it goes to the listeners, in the order in which things ended

In a note, states are not text but one array of numbers, end to end: a log may be about every message of a run.
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
"""What happens in workers."""
_NAMES = [tuple(item.name for item in fields(kind)) for kind in KINDS]
_VALUES = [attrgetter(*names) for names in _NAMES]


def events_note(events: Sequence[Event], token: int | None = None) -> Note:
    """Events, to be sent; with ``token`` they answer a question."""
    columns: list[Ints] = []
    layouts: dict[tuple[str, ...], int] = {}
    rows = []
    for event in events:
        kind = KINDS.index(type(event))
        rows.append([kind, *(_plain(value, columns, layouts) for value in _VALUES[kind](event))])
    numbers = np.concatenate(columns) if columns else np.zeros(0, dtype=np.int64)
    return Note(Kind.EVENTS, {"token": token, "rows": rows, "layouts": list(layouts)}, {"states": numbers})


def _plain(value: Any, columns: list[Ints], layouts: dict[tuple[str, ...], int]) -> Any:
    """A value as JSON can hold it; states go to the columns."""
    if isinstance(value, States):
        columns.append(value.columns.reshape(-1))
        return [layouts.setdefault(value.fields, len(layouts)), len(value)]
    if isinstance(value, tuple):
        return [_plain(one, columns, layouts) for one in value]
    return value


def events_of(note: Note) -> list[Event]:
    """The events of a note."""
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
    """Keeps events until they are complete; see the head of this file."""

    def __init__(self, listeners: Sequence[Listener] = (), clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(listeners, clock)
        self._kept: list[Event] = []

    def __call__(self, event: Event) -> None:
        self._kept.append(event)

    def collect(self, events: Sequence[Event]) -> None:
        """Events of a worker."""
        self._kept += events

    def release(self, until: float) -> None:
        """Hand on all that ended by then: every worker has sent what it had at that time."""
        self._kept.sort(key=ended)
        ready = [event for event in self._kept if ended(event) <= until]
        self._kept = self._kept[len(ready) :]
        for event in ready:
            super().__call__(event)

    def drop(self) -> None:
        """A run was abandoned."""
        self._kept.clear()


class Collector(Announcer):
    """The announcer of a worker: keeps the events that the controller's listeners want, to be sent."""

    def __init__(self, wanted: Announcer) -> None:
        """``wanted``: the controller's, as it was when the worker was forked."""
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
    """When an event was over, by the run's clock."""
    if isinstance(event, Played):
        return event.starts[-1] + event.seconds[-1]
    if isinstance(event, Wave):  # what happens in it comes later
        return event.time
    return event.time + float(getattr(event, "seconds", 0.0))
