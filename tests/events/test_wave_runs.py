"""Logs of real runs by waves: promises are kept, sums add up, and what was written is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampnet.events import (
    EventLog,
    LogWriter,
    PerfettoWriter,
    Played,
    Recorder,
    StalenessMeter,
    Updated,
    UtilisationMeter,
    Wave,
    check,
    read_log,
    read_run,
    staleness_of,
)
from tests.events.runs import epoch, runtime, update
from tests.events.waved import Unit
from tests.events.worked import in_sum, one_by_one


@pytest.mark.parametrize("unit", ["messages", "instances"])
@pytest.mark.parametrize("keys", [1, 4, 12])
@pytest.mark.parametrize("together", [False, True])
def test_promises_are_kept(unit: Unit, keys: int, together: bool) -> None:
    log, meter = EventLog(), StalenessMeter()
    streams = [epoch(80, 1, name="train 1"), epoch(40, 2, train=False, name="valid"), epoch(80, 3, name="train 2")]
    policy = update(20 if unit == "messages" else 3, unit)
    with runtime(policy, waves=True, max_active_keys=keys, listeners=[log, meter]) as run:
        run.run(streams, together=together)
        run.run([epoch(40, 4)])
    assert any(isinstance(event, Wave) for event in log)
    assert check(log) == []
    assert in_sum(log) == one_by_one(log)
    assert meter.nodes() == staleness_of(log)


def test_sums_and_files_agree(tmp_path: Path) -> None:
    log, meter, recorder = EventLog(), UtilisationMeter(), Recorder()
    text, trace = LogWriter(tmp_path / "run.jsonl"), PerfettoWriter(tmp_path / "run.json")
    with runtime(update(10), waves=True, max_active_keys=4, listeners=[log, meter, recorder, text, trace]) as run:
        run.run([epoch(80, 1), epoch(40, 2, train=False, name="valid")])
        counts = run.counts()
    text.close()
    trace.close()
    assert list(read_log(tmp_path / "run.jsonl")) == log.events
    assert '"start_ns"' in (tmp_path / "run.jsonl").read_text(), "times of the clock are whole nanoseconds"
    worker = meter.workers()["inline"]
    assert worker.invocations == counts.invocations
    assert worker.updates == sum(isinstance(event, Updated) for event in log)
    assert all(sum(use.histogram.values()) == use.invocations for use in meter.nodes().values())
    kept, again, written = recorder.record(), read_run(tmp_path / "run.jsonl"), read_run(tmp_path / "run.json")
    assert kept.totals == again.totals == written.totals
    assert kept.boxes == again.boxes
    assert kept.totals.boxes == len(written.boxes)
    assert kept.totals.waves == sum(isinstance(event, Wave) for event in log)
    assert sum(len(event.nodes) for event in log if isinstance(event, Played)) == worker.invocations


def test_boxes_of_a_worker_never_overlap(tmp_path: Path) -> None:
    """Perfetto drops boxes that overlap without nesting."""
    trace = PerfettoWriter(tmp_path / "run.json")
    with runtime(update(3), waves=True, max_active_keys=4, listeners=[trace]) as run:
        run.run([epoch()])
    trace.close()
    boxes = read_run(tmp_path / "run.json").boxes
    ends = [round(box.stop * 1e9) for box in boxes]
    starts = [round(box.start * 1e9) for box in boxes]
    assert len(boxes) > 100
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
