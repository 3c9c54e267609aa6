"""The log on disk: what was written is what is read, and a file that is no log is refused by line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ampnet.errors import DataError
from ampnet.events.log import (
    Announcer,
    Backward,
    Begin,
    Event,
    EventLog,
    Forward,
    LogWriter,
    Rest,
    Synced,
    Updated,
    Worked,
    from_json,
    read_log,
    to_json,
    without_time,
)
from ampnet.runtime.events import KINDS, events_note, events_of
from ampnet.state import States
from tests.events.runs import epoch, record, update


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    streams = [epoch(name="train"), epoch(20, 1, train=False, name="validate")]
    log, writer = record(streams, update(10), max_active_keys=3, together=True), LogWriter(path)
    for event in log:
        writer(event)
    writer.close()
    again = list(read_log(path))
    assert again == log
    assert without_time(again) == without_time(log)


def test_states_keep_fields_and_integers() -> None:
    states = States.of(instance=[2**40, 3], t=[0, -1])
    event = Backward(
        1.5, 0.25, "w0", "linear1", 0, states, ((0, states), (1, states.slice(0, 0))), 2, 4, 2, ((0, 1), (3, 1))
    )
    again = from_json(to_json(event))
    assert again == event
    assert isinstance(again, Backward)
    assert again.received.columns.dtype == np.int64
    assert again.lags == ((0, 1), (3, 1))


def test_a_file_has_its_name_only_when_finished(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    writer = LogWriter(path)
    writer(Rest(0.0, {}))
    assert not path.exists()
    writer.close()
    writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["run.jsonl"]


def test_nothing_stays_of_a_log_that_is_not_kept(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "run.jsonl")
    writer(Rest(0.0, {}))
    writer.close(keep=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "torn",
    [
        '{"event": "Rest", "time": 1.0, "he',
        '{"event": "Rest", "time": 1.0}',
        '{"event": "Nap", "time": 1.0}',
        "[]",
        "7",
        "",
    ],
)
def test_a_torn_line_is_named(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "run.jsonl"
    writer = LogWriter(path)
    writer(Rest(0.0, {}))
    writer(Rest(1.0, {"linear1.cache": 2}))
    writer.close()
    with path.open("a", encoding="utf-8") as file:
        file.write(torn + "\n")
    events = read_log(path)
    assert next(events) == Rest(0.0, {})
    assert next(events) == Rest(1.0, {"linear1.cache": 2})
    with pytest.raises(DataError, match=r"run\.jsonl, line 3: not an event of a run"):
        next(events)


def test_runs_are_compared_without_their_times() -> None:
    first, second = (record([epoch()], update(5), max_active_keys=3, schedule="random", seed=4) for _ in range(2))
    assert [e.time for e in first] != [e.time for e in second]
    assert without_time(first) == without_time(second)


SYNCED = Synced(1.5, 0.25, "w0", "cell#2", "cell", 3, 12, True, 4, 0.015, -(2**62) - 5)
"""Its digest has all the bits of an int64."""


def test_a_synchronisation_is_written_and_sent_between_processes() -> None:
    assert from_json(json.loads(json.dumps(to_json(SYNCED)))) == SYNCED
    assert Synced in KINDS
    states = States.of(instance=[3, 4])
    others: list[Event] = [
        Backward(1.0, 0.25, "w0", "cell#2", 0, states, ((0, states),), 2, 4, 2, ((0, 1), (3, 1))),
        Updated(1.25, 0.1, "w0", "cell#2", 11, 0, "together", "messages", 8),
    ]
    note = events_note([*others, SYNCED])
    assert events_of(note) == [*others, SYNCED]


WORKED = Worked(2.5, "w0", "cell#2", 5, ((0, 2), (3, 3)), 4)


@pytest.mark.parametrize("event", [WORKED, Worked(2.5, "w0", "cell#2", 0, (), 1)])
def test_a_sum_is_written_and_sent_between_processes(event: Worked) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event
    assert Worked in KINDS
    states = States.of(instance=[3, 4])
    backward = Backward(1.0, 0.25, "w0", "cell#2", 0, states, ((0, states),), 2, 4, 2, ((0, 1), (3, 1)))
    mixed: list[Event] = [backward, event, SYNCED, replace(event, node="cell#1"), backward]
    assert events_of(events_note(mixed)) == mixed


class Counting:
    """A listener that wants some kinds."""

    kinds = (Begin, Worked)

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.seen.append(event)


def test_a_listener_hears_of_the_kinds_that_it_wants() -> None:
    states = States.of(instance=[3])
    backward = Backward(1.0, 0.1, "w", "linear1", 0, states, (), 1, 2, 1, ((0, 1),))
    forward = Forward(1.0, 0.1, "w", "relu", 0, True, states, (), (), 1, None)
    events: list[Event] = [Begin(0.0, {}), forward, backward, WORKED, Rest(2.0, {})]
    counting, log = Counting(), EventLog()
    alone, both = Announcer([counting]), Announcer([counting, log])
    for event in events:
        alone(event)
        both(event)
    assert counting.seen == [events[0]] * 2 + [WORKED] * 2
    assert log.events == events
    assert [kind for kind in (Begin, Forward, Backward, Updated, Worked, Rest) if alone.wants(kind)] == [Begin, Worked]
    assert both.wants(Backward)
    assert not Announcer().wants(Worked)
