"""A wave's operations as a line of a log: what was written is read, to the last bit, however the times came about."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from ampnet.errors import DataError
from ampnet.events.columns import line_of
from ampnet.events.log import (
    Announcer,
    Epoch,
    Event,
    LogWriter,
    Operation,
    Played,
    Rest,
    Wave,
    Worked,
    ended,
    from_json,
    read_log,
    to_json,
    without_time,
)
from tests.events.waved import interleaved

WAVE = Wave(1.5, 0.25, "worker0", 3, True, (7, 9), 40)


def clocked(count: int = 50) -> Played:
    """Operations at the times of a real clock."""
    operations = []
    for i in range(count):
        start = time.perf_counter()
        stop = time.perf_counter()
        version = None if i % 3 == 0 else 10_000 + i
        operations.append(
            Operation(f'n "{i % 4}"', i % 2, i // 4, i % 3, start, stop - start, i, 2 * i, version, i % 5, i % 2 == 0)
        )
    return Played.of("worker 0\n", 17, True, operations)


def test_times_of_a_clock_are_whole_nanoseconds_and_come_back_to_the_last_bit() -> None:
    event = clocked()
    line = line_of(event)
    assert '"start_ns": [0, ' in line
    assert line.isascii()
    assert "\n" not in line
    assert from_json(json.loads(line)) == event
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


def test_other_times_are_written_as_they_are() -> None:
    event = clocked(5)
    odd = replace(event, starts=tuple(s + 1e-11 for s in event.starts), seconds=(0.1, 1 / 3, 1e-12, 0.0, 2.0))
    assert '"starts": [' in line_of(odd)
    assert from_json(json.loads(line_of(odd))) == odd
    late = replace(event, time=event.time + 1 / 3e10)
    assert from_json(json.loads(line_of(late))) == late


def test_columns_whose_entries_are_equal_are_written_once() -> None:
    one = Operation("cell", 0, 0, 0, 1.0, 0.5, 8, 8, None, 0, True)
    event = Played.of("w", 1, True, [one, one._replace(start=1.5), one._replace(start=2.0)])
    data = json.loads(line_of(event))
    assert (data["nodes"], data["ports"], data["rows"], data["versions"], data["wanted"]) == ("cell", 0, 8, None, 1)
    assert data["count"] == 3
    again = from_json(data)
    assert again == event
    assert isinstance(again, Played)
    assert again.wanted == (True, True, True)
    assert again.wanted[0] is True
    empty = Played(1.0, "w", 1, True, (), (), (), (), (), (), (), (), (), (), ())
    assert from_json(json.loads(line_of(empty))) == empty
    assert ended(empty) == 1.0


def test_operations_one_by_one() -> None:
    event = clocked(6)
    operations = list(event.operations())
    assert len(operations) == 6
    assert operations[4].node == event.nodes[4]
    assert operations[4].wanted is event.wanted[4]
    assert Played.of(event.worker, event.wave, event.train, operations) == event
    assert ended(event) == event.starts[-1] + event.seconds[-1]
    assert ended(WAVE) == 1.75


def test_a_log_of_waves_is_read_as_it_was_written(tmp_path: Path) -> None:
    events: list[Event] = [*interleaved(), clocked(), WAVE]
    writer = LogWriter(tmp_path / "run.jsonl")
    for event in events:
        writer(event)
    writer.close()
    assert list(read_log(tmp_path / "run.jsonl")) == events
    assert writer.size == (tmp_path / "run.jsonl").stat().st_size
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        json.loads(line)


def test_lines_of_other_events_are_what_json_makes_of_them(tmp_path: Path) -> None:
    odd: list[Event] = [Epoch(1.0, 'tr"ain\n', False, nan, {"a": inf}), Worked(1.0, "w", "n", 3, ((0, 2), (1, 1)), 0)]
    events = [*interleaved("instances", 1), *odd]
    writer = LogWriter(tmp_path / "run.jsonl")
    for event in events:
        writer(event)
    writer.close()
    lines = (tmp_path / "run.jsonl").read_text().splitlines()
    for line, event in zip(lines, events, strict=True):
        if not isinstance(event, Played):
            assert line == json.dumps(to_json(event))


def test_runs_are_compared_without_their_times() -> None:
    event = clocked(4)
    later = replace(event, time=0.0, starts=(0.0, 1.0, 2.0, 3.0), seconds=(1.0, 1.0, 1.0, 1.0))
    assert without_time([event, WAVE]) == without_time([later, replace(WAVE, time=9.0, seconds=0.0)])
    assert without_time([event]) != without_time([replace(event, lags=(9, 9, 9, 9))])


@pytest.mark.parametrize(
    "torn",
    [
        '"rows": [1, 2, 3]',
        '"count": 2',
        '"length_ns": [1]',
        '"lags": []',
    ],
)
def test_a_column_of_another_length_is_refused(torn: str, tmp_path: Path) -> None:
    data = json.loads(line_of(clocked(4)))
    data |= json.loads("{" + torn + "}")
    (tmp_path / "run.jsonl").write_text(json.dumps(data) + "\n")
    with pytest.raises(DataError, match=r"line 1: not an event of a run"):
        list(read_log(tmp_path / "run.jsonl"))


def test_a_listener_gets_waves_only_if_it_wants_them() -> None:
    seen: list[Event] = []

    class Wanting:
        kinds = (Played,)

        def __call__(self, event: Event) -> None:
            seen.append(event)

    announce = Announcer([Wanting()])
    assert announce.wants(Played)
    assert not announce.wants(Wave)
    for event in (WAVE, clocked(1), Rest(0.0, {})):
        announce(event)
    assert [type(event) for event in seen] == [Played]
