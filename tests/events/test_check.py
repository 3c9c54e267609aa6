"""The checker accepts the logs of real runs, and tells all that is wrong with others at once.

What it finds in a log that was tampered with, promise by promise: test_rules.py, test_staleness_rules.py,
test_update_rules.py and test_replica_rules.py.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet import Stream
from ampnet.events import (
    Backward,
    Event,
    EventLog,
    Forward,
    LogWriter,
    PromiseBroken,
    Pump,
    Rest,
    Retire,
    Updated,
    assert_kept,
    check,
    read_log,
)
from ampnet.state import States
from tests.events.runs import SCHEDULES, epoch, instances, record, runtime, update
from tests.events.tamper import Unit, good, positions


def test_the_good_logs_are_good() -> None:
    assert check(good()) == []
    assert check(good("instances")) == []


@pytest.mark.parametrize("unit", ["messages", "instances"])
@pytest.mark.parametrize("keys", [1, 4, 30])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_real_runs_keep_them(schedule: str, keys: int, unit: Unit) -> None:
    """Epochs without a barrier between them, one of them empty, and inference beside them."""
    for together in (False, True):
        log = EventLog()
        made = runtime(update(7, unit), max_active_keys=keys, schedule=schedule, seed=keys, listeners=[log])
        made.run(
            [
                epoch(12, 1, name="first"),
                epoch(9, 2, train=False, name="validate"),
                Stream([], True, "empty"),
                epoch(9, 3, name="second", bucket=1),
                epoch(12, 4, name="second"),
            ],
            together=together,
        )
        made.run([epoch(6, 5), epoch(6, 6)], barrier=True)
        made.infer(instances(6, 7))
        assert check(log) == []


@settings(max_examples=12)
@given(
    st.integers(1, 9),
    st.integers(1, 30),
    st.integers(1, 6),
    st.sampled_from(["messages", "instances"]),
    st.integers(0, 999),
)
def test_any_run_keeps_them(keys: int, frequency: int, batch: int, unit: Unit, seed: int) -> None:
    streams = [epoch(16, seed, name="a"), epoch(12, seed + 1, train=False, name="v"), epoch(16, seed + 2, name="b")]
    events = record(
        streams,
        update(frequency, unit),
        max_active_keys=keys,
        max_batch=batch,
        schedule="random",
        seed=seed,
        together=True,
    )
    assert check(events) == []


def test_a_log_from_disk(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "run.jsonl")
    for event in good():
        writer(event)
    writer.close()
    assert_kept(read_log(tmp_path / "run.jsonl"))


def test_frozen_nodes_owe_no_update() -> None:
    assert check(record([epoch(), epoch(seed=1)], None, max_active_keys=4)) == []
    log = EventLog()
    made = runtime(update(7), updates={"embedding": None}, max_active_keys=4, listeners=[log])
    made.run([epoch(), epoch(seed=1)])
    assert not any(isinstance(e, Updated) and e.node == "embedding" for e in log)
    assert check(log) == []


def test_retirements_of_two_streams_at_once() -> None:
    """Both events then say how many are in flight after the second."""
    events = record([epoch(20, 1, name="a"), epoch(20, 2, name="b")], update(5), max_active_keys=30, schedule="fifo")
    assert any(isinstance(a, Retire) and isinstance(b, Retire) for a, b in pairwise(events))
    assert check(events) == []


def test_a_stopped_run_is_no_idle_pump() -> None:
    """Once `stop` was called at the end of an epoch, the rest drains: places get free, and data no longer waits."""
    log = EventLog()
    made = runtime(update(7), max_active_keys=6, listeners=[log])
    made.run([epoch(20, 1, name="a"), epoch(60, 2, name="b")], on_end=lambda stats: made.stop())
    assert sum(len(e.instances) for e in log if isinstance(e, Pump)) < 5 + 60
    last = [e for e in log if isinstance(e, Retire)]
    assert any(e.more for e in last)
    assert check(log) == []


def test_a_run_cut_short() -> None:
    log = EventLog()

    def burst(event: Event) -> None:
        if isinstance(event, Backward) and event.node == "linear1" and event.version == 3:
            raise RuntimeError("burst")

    made = runtime(update(5), max_active_keys=4, listeners=[log, burst])
    with pytest.raises(RuntimeError, match="burst"):
        made.train(instances())
    assert check(log, complete=False) == []
    assert {"P1", "P5"} == {v.promise for v in check(log)}


def test_all_violations_are_raised_at_once() -> None:
    events = [replace(e, in_flight=99) if isinstance(e, Pump) else e for e in good()]
    count = len(positions(good(), Pump))
    assert count > 20
    with pytest.raises(PromiseBroken) as caught:
        assert_kept(events)
    assert len(caught.value.violations) == count
    text = str(caught.value)
    assert text.count("P6, event") == 20
    assert f"... and {count - 20} more" in text
    assert isinstance(caught.value, AssertionError)
    assert_kept(good())


def test_a_listener_that_came_late_is_served_too() -> None:
    """Without a Begin nothing is known of limits; the rest is still checked."""
    rest = Rest(0.0, {})
    state = States.of(instance=np.arange(3))
    assert check([Forward(0.0, 0.0, "w", "relu", 0, False, state, ((0, state),), (), 3, None), rest]) == []
    found = check([Forward(0.0, 0.0, "w", "relu", 0, True, state, ((0, state),), (), 3, None), rest])
    assert [v.promise for v in found] == ["P1"]
    assert "(instance=0), (instance=1), (instance=2)" in found[0].sentence
