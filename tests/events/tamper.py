"""A good log, and ways to break it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Literal, TypeVar

from ampnet.events import Event, Violation, check
from tests.events.runs import epoch, record, update

Unit = Literal["messages", "instances"]
E = TypeVar("E", bound=Event)


@cache
def good(unit: Unit = "messages") -> tuple[Event, ...]:
    """Two epochs and inference together, four in flight."""
    streams = [epoch(40, 1, name="train"), epoch(20, 2, train=False, name="validate"), epoch(40, 3, name="again")]
    return tuple(record(streams, update(10 if unit == "messages" else 4, unit), max_active_keys=4, together=True))


def positions(events: Iterable[Event], kind: type[E], where: Callable[[E], bool] = lambda event: True) -> list[int]:
    return [i for i, e in enumerate(events) if isinstance(e, kind) and where(e)]


def at(kind: type[E], node: str | None = None, *, unit: Unit = "messages", **values: object) -> int:
    """The middle one of such events in the good log."""
    wanted = {**values, **({} if node is None else {"node": node})}
    found = positions(good(unit), kind, lambda e: all(getattr(e, k) == v for k, v in wanted.items()))
    return found[len(found) // 2]


def changed(position: int, *, unit: Unit = "messages", **values: object) -> list[Event]:
    events = list(good(unit))
    events[position] = replace(events[position], **values)  # type: ignore[arg-type]
    return events


def without(position: int, unit: Unit = "messages") -> list[Event]:
    events = list(good(unit))
    del events[position]
    return events


def with_extra(position: int, event: Event) -> list[Event]:
    events = list(good())
    events.insert(position, event)
    return events


def moved(source: int, target: int) -> list[Event]:
    events = list(good())
    events.insert(target, events.pop(source))
    return events


def broken(events: list[Event], promise: str, *words: str) -> list[Violation]:
    """Only this promise is broken, and the first sentence has these words."""
    found = check(events)
    assert {v.promise for v in found} == {promise}, found
    for word in words:
        assert word in found[0].sentence
    return found
