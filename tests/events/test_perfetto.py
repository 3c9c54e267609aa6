"""The trace: valid JSON whatever the names, boxes that nest, and all that a report needs comes back."""

from __future__ import annotations

import json
from collections import Counter
from math import nan
from pathlib import Path
from typing import Any

import pytest

from ampnet.controller import Progress
from ampnet.errors import DataError
from ampnet.events.log import Backward, Begin, Epoch, Event, Forward, LogWriter, Rest, Updated
from ampnet.events.perfetto import PerfettoWriter
from ampnet.events.record import Recorder
from ampnet.events.run_file import read_run, read_trace
from tests.events.pipeline import pipeline
from tests.events.replicated import replicated
from tests.events.runs import epoch, runtime, update


def strict(path: Path) -> list[dict[str, Any]]:
    """The events of a trace; what is not JSON by the letter fails."""
    data = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(data) == {"displayTimeUnit", "traceEvents"}
    events: list[dict[str, Any]] = data["traceEvents"]
    return events


def write(path: Path, events: list[Event], **how: Any) -> list[dict[str, Any]]:
    writer = PerfettoWriter(path, **how)
    for event in events:
        writer(event)
    writer.close()
    return strict(path)


def test_a_row_for_each_worker_and_a_box_for_each_batch(tmp_path: Path) -> None:
    events = pipeline(3)
    written = write(tmp_path / "run.json", events)
    rows = {e["tid"]: e["args"]["name"] for e in written if e["name"] == "thread_name"}
    assert sorted(rows.values()) == ["controller", "worker 0", "worker 1", "worker 2"]
    boxes = [e for e in written if e["ph"] == "X"]
    kinds = Counter(e["cat"] for e in boxes)
    assert kinds == {
        "forward": sum(isinstance(e, Forward) for e in events),
        "backward": sum(isinstance(e, Backward) for e in events),
        "update": sum(isinstance(e, Updated) for e in events),
    }
    first = boxes[0]
    assert (first["name"], first["ts"], first["dur"]) == ("forward layer0", 0.0, 1000.0)
    assert first["args"] == {"node": "layer0", "instances": [0], "messages": 2, "rows": 32, "version": 0}
    late = [e for e in boxes if e["cat"] == "backward"][-1]
    assert late["args"]["staleness"] > 0
    assert {e["name"] for e in written if e["ph"] == "i"} == {"begin", "pump", "retire", "epoch", "rest"}
    assert all(e["pid"] == 1 for e in written)


def test_boxes_of_a_worker_never_overlap(tmp_path: Path) -> None:
    """Perfetto drops boxes that overlap without nesting, so start and end are rounded, not start and length."""
    log: list[Event] = []
    runtime(update(3), listeners=[log.append], max_active_keys=4).run([epoch()])
    spans = sorted((e["ts"], e["dur"]) for e in write(tmp_path / "run.json", log) if e["ph"] == "X")
    ends = [round((ts + dur) * 1000) for ts, dur in spans]
    starts = [round(ts * 1000) for ts, _ in spans]
    assert len(spans) > 100
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))


def test_what_was_written_is_what_a_log_would_tell(tmp_path: Path) -> None:
    events = pipeline(settings={"workload": "made up", "seed": 3})
    write(tmp_path / "run.json", events)
    recorder, log = Recorder(), LogWriter(tmp_path / "run.jsonl")
    for event in events:
        recorder(event)
        log(event)
    log.close()
    kept, trace, again = recorder.record(), read_run(tmp_path / "run.json"), read_run(tmp_path / "run.jsonl")
    assert trace.settings == again.settings == kept.settings == {"workload": "made up", "seed": 3}
    assert trace.totals == again.totals == kept.totals
    assert trace.streams == again.streams == kept.streams
    assert again.boxes == kept.boxes
    for one, other in zip(trace.boxes, kept.boxes, strict=True):
        assert (one.node, one.worker, one.kind, one.instances) == (
            other.node,
            other.worker,
            other.kind,
            other.instances,
        )
        assert (one.messages, one.rows, one.version) == (other.messages, other.rows, other.version)
        assert one.staleness == other.staleness
        assert (one.start, one.seconds) == pytest.approx((other.start, other.seconds), abs=2e-9)


def test_sums_of_a_real_run(tmp_path: Path) -> None:
    recorder = Recorder()
    with runtime(update(3), listeners=[recorder], max_active_keys=4) as run:
        run.run([epoch(name="train 1"), epoch(20, 1, train=False, name="valid 1")], turn_seconds=0)
        wanted = run.counts()
    record = recorder.record()
    batches = [use for of in record.totals.nodes.values() for use in (of.forward, of.backward) if use is not None]
    assert sum(use.invocations for use in batches) == wanted.invocations
    assert sum(use.messages for use in batches) == wanted.messages
    assert [(s.name, s.train, s.instances > 0) for s in record.streams] == [
        ("train 1", True, True),
        ("valid 1", False, True),
    ]
    assert record.totals.in_flight == 4
    assert set(record.totals.workers) == {"inline"}
    assert 0 < sum(record.totals.workers["inline"].values()) <= record.totals.wall
    with_parameters = {name for name, of in record.totals.nodes.items() if of.staleness is not None}
    assert with_parameters == set(run.graph.parameterised())
    assert record.points
    assert record.points[-1].records > 0


def test_strange_names_and_numbers_stay_json(tmp_path: Path) -> None:
    odd = 'a "quoted"\\ node\n</script> é'
    events = pipeline(
        2, 10, settings={"rate": nan, "path": Path("x"), "nested": {"t": (1, 2)}}, node=odd + "{}", worker=odd + "{}"
    )
    events[-2:-2] = [Epoch(1001.0, "empty", True, nan, {"accuracy": nan})]
    written = write(tmp_path / "run.json", events)
    assert next(e for e in written if e["ph"] == "X")["args"]["node"] == odd + "0"
    record = read_trace(tmp_path / "run.json")
    assert record.boxes[0].worker == odd + "0"
    assert record.settings == {"rate": None, "path": "x", "nested": {"t": [1, 2]}}
    assert (record.streams[0].loss, record.streams[0].metrics) == (None, {})


def test_turns_are_counters_and_come_back_as_points(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    writer = PerfettoWriter(path, clock=lambda: 1000.25)
    writer.turn(Progress("train 1", True, 300, 0.2, 1.5, {"accuracy": 0.25, "odd": nan}, 4))
    writer.turn(Progress("train 1", True, 0, 0.0, nan, {}, 4))
    for event in pipeline():  # a runtime of several processes hands its events out late
        writer(event)
    writer.close()
    writer.turn(Progress("train 1", True, 300, 0.2, 1.5, {}, 4))  # after the end nothing is written
    losses = [e for e in strict(path) if e["ph"] == "C" and e["name"] == "loss, training"]
    assert sorted((e["ts"], e["args"]["loss"]) for e in losses)[0] == (250_000.0, 1.5)
    assert len(losses) == 2
    first, second = read_trace(path).points
    assert (first.time, first.loss, first.metrics, first.records) == (0.25, 1.5, {"accuracy": 0.25}, 300)
    assert second.loss is None


def test_turns_of_a_run_without_events_are_left_out(tmp_path: Path) -> None:
    writer = PerfettoWriter(tmp_path / "run.json")
    writer.turn(Progress("train 1", True, 300, 0.2, 1.5, {}, 4))
    writer.close()
    assert read_trace(tmp_path / "run.json").points == []


def test_the_number_of_boxes_is_bounded_and_the_sums_are_not(tmp_path: Path) -> None:
    events = pipeline()
    full = write(tmp_path / "full.json", events)
    cut = write(tmp_path / "cut.json", events, most=50)
    assert sum(e["ph"] == "X" for e in cut) == 50
    assert any(e["name"].startswith("no boxes from here on: 50") for e in cut)
    assert len(cut) < len(full) / 3
    whole, part = read_trace(tmp_path / "full.json"), read_trace(tmp_path / "cut.json")
    assert part.totals == whole.totals
    assert part.streams == whole.streams
    assert part.totals.boxes == len(whole.boxes) > len(part.boxes) == 50
    recorder = Recorder(most=50)
    for event in events:
        recorder(event)
    assert len(recorder.record().boxes) == 50
    assert recorder.record().totals == whole.totals


def test_a_file_has_its_name_only_when_finished(tmp_path: Path) -> None:
    writer = PerfettoWriter(tmp_path / "run.json")
    writer(Begin(0.0, {}))
    assert not (tmp_path / "run.json").exists()
    writer.close()
    writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    other = PerfettoWriter(tmp_path / "other.json")
    other(Begin(0.0, {}))
    other.close(keep=False)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_trace_saved_again_by_another_program_is_read(tmp_path: Path) -> None:
    events = write(tmp_path / "run.json", pipeline())
    (tmp_path / "indented.json").write_text(json.dumps({"traceEvents": events}, indent=1))
    (tmp_path / "bare.json").write_text(json.dumps(events))
    wanted = read_trace(tmp_path / "run.json")
    assert read_run(tmp_path / "indented.json") == wanted
    assert read_run(tmp_path / "bare.json") == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no event in it"),
        ("[]", "no totals in it"),
        ('{"traceEvents": []}', "no totals in it"),
        ('{"traceEvents": 7}', "not a trace"),
        ('{"other": []}', "not a trace"),
        ("[1, 2]", "line 1: not an event of a trace of ours"),
        ('{"displayTimeUnit":"ms","traceEvents":[\n{"ph":"M"', "line 2: not an event of a trace of ours"),
        ('{"displayTimeUnit":"ms","traceEvents":[\n{"ph":"X","name":"x"},\n]}\n', "line 2: not an event of a trace"),
        ('{"displayTimeUnit":"ms","traceEvents":[\n', "ends in the middle"),
        ("hello\n", "line 1: not an event of a run"),
        (
            '{"event": "Rest", "time": "late", "held": {}}\n{"event": "Rest", "time": 1, "held": {}}\n',
            "line 1: not an event",
        ),
    ],
)
def test_a_file_that_is_none_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(DataError, match=said) as refused:
        read_run(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("true", "forged"),
    [
        ('"instances":[', '"instances":["<img src=x onerror=alert(1)>",'),
        ('"messages":', '"more":"<b>","messages":'),
        ('"max":', '"max":"<b>","other":'),
        ('"records":', '"records":"<b>","other":'),
        ('"cat":"forward"', '"cat":"<b>"'),
    ],
)
def test_texts_in_the_place_of_numbers_are_refused(true: str, forged: str, tmp_path: Path) -> None:
    """Once the numbers of instances of a forged trace were put into pages as they were."""
    writer = PerfettoWriter(tmp_path / "run.json")
    for event in pipeline(3):
        writer(event)
    writer.turn(Progress("train", True, 5, 0.1, 0.5, {}, 1))
    writer.close()
    text = (tmp_path / "run.json").read_text()
    assert true in text
    (tmp_path / "run.json").write_text(text.replace(true, forged, 1))
    with pytest.raises(DataError, match="not an event of a trace of ours"):
        read_run(tmp_path / "run.json")


def test_runs_cut_short_and_several_runs(tmp_path: Path) -> None:
    """A stream of a run that was abandoned is not taken up by the next; the wall time leaves out the break."""
    first, second = pipeline(since=10.0), pipeline(since=500.0)
    half = first[: len(first) // 2]
    write(tmp_path / "run.json", [*half, *second])
    record = read_trace(tmp_path / "run.json")
    (stream,) = record.streams
    assert stream.instances == 80
    assert stream.began == pytest.approx(490.0)
    assert record.totals.wall < 5
    assert isinstance(first[-1], Rest)


@pytest.mark.parametrize("sync", ["updates", "shared"])
def test_replicas_come_back_from_a_trace_and_from_a_log(sync: str, tmp_path: Path) -> None:
    events = replicated(sync=sync)
    written = write(tmp_path / "run.json", events)
    box = next(e for e in written if e["ph"] == "X" and e["cat"] == "sync")
    assert box["name"] == "sync cell#1"
    moved = sync == "updates"
    drift = box["args"].pop("drift")
    assert (drift > 0) == moved
    version = 3 if moved else 2
    about = {"node": "cell#1", "group": "cell", "round": 1, "version": version, "updates": 2, "moved": moved}
    assert box["args"] == about
    recorder, log = Recorder(), LogWriter(tmp_path / "run.jsonl")
    for event in events:
        recorder(event)
        log(event)
    log.close()
    kept, trace, again = recorder.record(), read_run(tmp_path / "run.json"), read_run(tmp_path / "run.jsonl")
    assert trace.totals == again.totals == kept.totals
    assert kept.totals.replicas["cell"].rounds == 4
    assert kept.totals.workers["worker 1"]["sync"] == pytest.approx(4 * 0.5e-3)
    assert [(b.kind, b.node, b.messages, b.version) for b in trace.boxes] == [
        (b.kind, b.node, b.messages, b.version) for b in kept.boxes
    ]


def test_a_trace_from_before_there_were_replicas_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write(path, pipeline())
    text = path.read_text()
    assert text.count(',"replicas":{}') == 1
    path.write_text(text.replace(',"replicas":{}', ""))
    assert read_trace(path).totals.replicas == {}
