"""The log on disk: what was written is what is read, and a file that is no log is refused by line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ampnet.errors import DataError
from ampnet.events.log import Backward, LogWriter, Rest, from_json, read_log, to_json, without_time
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
