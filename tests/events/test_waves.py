"""What readers make of waves: boxes, sums, traces, pictures and reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ampnet.events import LogWriter, PerfettoWriter, Played, Recorder, RunRecord, UtilisationMeter, read_run
from ampnet.events.boxes import FEW, REMEMBERED, Box, Travellers, boxes_of
from ampnet.events.gantt import COLOURS, Room, chart, gantt, look_of, named_labels
from ampnet.events.gantt_page import describe, page
from ampnet.events.log import BACKWARD, COLLECT, FORWARD, Begin, Event, Operation, Rest, Updated, Wave
from ampnet.events.report import page as report_page
from ampnet.events.report.sections import summary
from ampnet.events.utilisation import NodeUse, WorkerUse
from ampnet.events.waves import WavesUnderWay
from tests.events.test_gantt import tags
from tests.events.waved import WaveScript, interleaved, sequential


def operation(node: str, direction: int, start: float, seconds: float = 1.0, **other: Any) -> Operation:
    given: dict[str, Any] = {"port": 0, "round": 0, "rows": 6, "messages": 3, "version": None, "lag": 0}
    return Operation(node=node, direction=direction, start=start, seconds=seconds, wanted=False, **given | other)


SMALL: list[Event] = [
    Begin(10.0, {}),
    Wave(10.0, 0.5, "w0", 1, True, tuple(range(20, 0, -1)), 2),
    Played.of(
        "w0",
        1,
        True,
        [operation("cell", FORWARD, 11.0, 2.0, version=4), operation("loss", FORWARD, 13.0, rows=5, messages=5)],
    ),
    Played.of(
        "w0",
        1,
        True,
        [
            operation("loss", BACKWARD, 15.0),
            operation("cell", BACKWARD, 16.0, 3.0, version=5, lag=1),
            operation("cell", COLLECT, 19.0, 0.5, version=5, messages=3),
        ],
    ),
    Rest(20.0, {}),
]
"""One wave of 20 instances: laid out, played forward, and after a pause backward."""


def recorded(events: list[Event] | tuple[Event, ...], **how: Any) -> RunRecord:
    recorder = Recorder(**how)
    for event in events:
        recorder(event)
    return recorder.record()


def test_waves_are_forgotten_when_their_instances_have_retired() -> None:
    waves = WavesUnderWay()
    wave = Wave(0.0, 0.0, "w0", 1, True, (3, 4), 5)
    waves.begin(wave)
    waves.begin(wave)
    waves.begin(Wave(0.0, 0.0, "w1", 1, True, (3,), 5))
    assert waves.of(3) == [("w0", 1), ("w1", 1)]
    assert [gone.worker for gone in waves.retire([3, 99])] == ["w1"]
    assert list(waves.waves) == [("w0", 1)]
    assert waves.retire([4]) == [wave]
    assert waves.waves == {}


def test_an_operation_is_a_box_and_so_is_a_layout() -> None:
    boxes = boxes_of(SMALL)
    few = tuple(range(1, FEW + 1))
    assert boxes[0] == Box("w0", "layout", "layout", 0.0, 0.5, True, few, 8, 20, 0, None, None, 1)
    assert boxes[1] == Box("w0", "cell", "forward", 1.0, 2.0, True, few, 8, 3, 6, 4, None, 1, 0)
    assert [(b.kind, b.staleness) for b in boxes[3:]] == [("backward", None), ("backward", 1.0), ("collect", None)]
    assert [look_of(b) for b in boxes] == ["layout", "forward", "forward", "backward", "backward", "collect"]


def test_the_instances_of_old_waves_are_forgotten() -> None:
    travellers = Travellers()
    for number in range(REMEMBERED + 5):
        travellers.begin(Wave(0.0, 0.0, "w0", number, True, (number,), 1))
    piece = SMALL[2]
    assert isinstance(piece, Played)
    assert travellers.of(piece) == ((), 0)
    travellers.begin(Wave(0.0, 0.0, "w0", 1, True, (5,), 1))
    assert travellers.of(piece) == ((5,), 0)


def test_where_the_time_went() -> None:
    """
    seconds   0    0.5  1          3      4   5        6         9    9.5  10
    w0        [lay]     [ cell >  ][loss >]   [loss < ][ cell < ][coll]    rest
    """
    meter = UtilisationMeter()
    for event in SMALL:
        meter(event)
    assert meter.wall == 10.0
    nodes = meter.nodes()
    assert nodes["cell", "forward"] == NodeUse(1, 3, 6, 2.0, 3.0, 6.0, 0.2, {2: 1})
    assert nodes["loss", "forward"].histogram == {4: 1}
    # To collect is a batch of the backward.
    assert nodes["cell", "backward"] == NodeUse(2, 6, 12, 3.5, 3.0, 6.0, 0.35, {2: 2})
    assert meter.workers() == {"w0": WorkerUse(5, 17, 0, 8.0, 0.8)}


def test_a_record_has_every_operation() -> None:
    log = interleaved()
    record = recorded(log)
    operations = sum(len(e.nodes) for e in log if isinstance(e, Played))
    others = sum(isinstance(e, Updated | Wave) for e in log)
    assert record.totals.boxes == len(record.boxes) == operations + others
    assert record.totals.waves == sum(isinstance(e, Wave) for e in log)
    assert record.totals.wave_instances == sum(len(e.instances) for e in log if isinstance(e, Wave))
    assert set(record.totals.workers["worker0"]) == {"forward", "backward", "update", "layout"}
    assert record.boxes == boxes_of(log)
    cut = recorded(log, most=20)
    assert len(cut.boxes) == 20
    assert cut.totals == record.totals


def test_a_trace_and_a_log_tell_the_same(tmp_path: Path) -> None:
    events = interleaved("instances", 2)
    writer, log = PerfettoWriter(tmp_path / "run.json"), LogWriter(tmp_path / "run.jsonl")
    for event in events:
        writer(event)
        log(event)
    writer.close()
    log.close()
    kept, trace, again = recorded(events), read_run(tmp_path / "run.json"), read_run(tmp_path / "run.jsonl")
    assert trace.totals == again.totals == kept.totals
    assert again.boxes == kept.boxes
    assert len(trace.boxes) == len(kept.boxes)
    for one, other in zip(trace.boxes, kept.boxes, strict=True):
        for name in ("worker", "node", "kind", "train", "instances", "more", "messages", "version", "wave", "round"):
            assert getattr(one, name) == getattr(other, name), name
        assert one.staleness == other.staleness
        assert (one.start, one.seconds) == pytest.approx((other.start, other.seconds), abs=2e-9)


def test_slices_of_a_trace(tmp_path: Path) -> None:
    writer = PerfettoWriter(tmp_path / "run.json")
    for event in SMALL:
        writer(event)
    writer.close()
    written = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    slices = [e for e in written if e["ph"] == "X"]
    assert [e["name"] for e in slices] == [
        "layout",
        "forward cell",
        "forward loss",
        "backward loss",
        "backward cell",
        "collect cell",
    ]
    few = list(range(1, FEW + 1))
    about = {"node": "cell", "wave": 1, "instances": few, "more": 8, "round": 0, "port": 0, "messages": 3, "rows": 6}
    assert slices[4]["args"] == about | {"version": 5, "staleness": 1}
    assert slices[0]["args"]["operations"] == 2
    assert (slices[4]["ts"], slices[4]["dur"]) == (6_000_000.0, 3_000_000.0)


def test_the_slices_of_a_trace_are_bounded(tmp_path: Path) -> None:
    events = interleaved()
    writer = PerfettoWriter(tmp_path / "run.json", most=33)
    for event in events:
        writer(event)
    writer.close()
    text = (tmp_path / "run.json").read_text()
    assert text.count('"ph":"X"') == 33
    assert text.count("no boxes from here on: 33 are written") == 1
    assert read_run(tmp_path / "run.json").totals == recorded(events).totals


def test_colours_are_those_of_the_paper() -> None:
    """Orange forward, blue backward, yellow update: by their hues."""

    def channels(look: str) -> tuple[int, int, int]:
        text = COLOURS[look]
        red, green, blue = (int(text[i : i + 2], 16) for i in (1, 3, 5))
        return red, green, blue

    red, green, blue = channels("forward")
    assert red > green > blue
    red, green, blue = channels("backward")
    assert blue > green > red
    red, green, blue = channels("update")
    assert min(red, green) > 200 > 100 > blue


def test_the_name_of_a_node_stands_in_its_box_where_it_fits() -> None:
    box = boxes_of(SMALL)[1]
    assert named_labels(box) == ["cell 1+19", "cell"]
    assert Room(100.0, 20.0, 6.0, 10.0).fit(box, named=True) == ("cell 1+19", False)
    assert Room(30.0, 20.0, 6.0, 10.0).fit(box, named=True) == ("cell", False)
    assert Room(12.0, 60.0, 6.0, 10.0).fit(box, named=True) == ("cell 1+19", True)
    assert Room(12.0, 30.0, 6.0, 10.0).fit(box, named=True) == ("cell", True)
    assert Room(26.0, 20.0, 6.0, 10.0).fit(box, named=False) == ("1+19", False)
    assert Room(12.0, 20.0, 6.0, 10.0).fit(box, named=True) == ("", False)
    assert Room(100.0, 5.0, 6.0, 10.0).fit(box, named=True) == ("", False)
    update = Box("w0", "cell", "update", 0.0, 1.0, True, (), 0, 8, 0, 5, None)
    assert named_labels(update) == ["cell"]


def test_pictures_of_waves(tmp_path: Path) -> None:
    log = sequential(waves=3)
    drawn = gantt(log, tmp_path / "run.svg", stop=4e-3)
    assert drawn.looks == ("forward", "backward", "collect", "update", "layout")
    text = (tmp_path / "run.svg").read_text()
    for word in ("readout", "collect (weight gradient)", "layout of a wave", "forward", "backward", "update"):
        assert word in text
    gantt(log, tmp_path / "run.png")
    gantt(log, tmp_path / "run.html")
    html = (tmp_path / "run.html").read_text()
    tags(html)
    assert re.search(r'data-n="readout 0\+2&#10;readout"', html)
    assert "wave 1 of the worker, round 2" in html
    assert "wave 1 of the worker is rehearsed and laid out" in html
    rows = chart(boxes_of(log), rows="nodes")
    assert rows.mixed == frozenset()
    assert drawn.mixed == {"worker0"}
    assert {row.name for row in rows.rows} >= {"cell", "layout"}


def test_names_in_a_page_are_escaped() -> None:
    evil = '"><script>|a|\n&'
    names = [evil, evil, "other"]
    boxes = [Box("w", n, "forward", float(i), 1.0, True, (i,), 0, 1, 1, None, None, 1, 0) for i, n in enumerate(names)]
    text = page(chart(boxes), boxes)
    seen = tags(text).seen
    assert [tag for tag, _ in seen].count("script") == 1
    groups = [given for tag, given in seen if tag == "g" and given.get("class") == "box"]
    assert groups[0]["data-n"] == '"><script>|a| & 0\n"><script>|a| &'
    assert describe(boxes[0]).startswith(f"forward {evil}, w")


def test_a_report_of_waves_says_which_engine_ran() -> None:
    run = WaveScript(
        engine="waves",
        engine_reason="nothing speaks against it",
        versions={"python": "3.12.1", "torch": "2.4", "ampnet": "0.9"},
    )
    run.begin()
    run.pump(0, 1)
    run.play(run.wave(0, 1))
    text = report_page(recorded(run.end()))
    tags(text)
    assert "engine: waves" in summary(recorded(run.events))
    assert "<td>engine</td><td>waves (nothing speaks against it)</td>" in text
    assert "<td>waves</td><td>1, 2.0 instances each on average</td>" in text
    assert "<td>versions</td><td>python 3.12.1, torch 2.4, ampnet 0.9</td>" in text
    assert "<td>version of torch</td><td>2.4</td>" in text
    assert "<td>workers</td><td>1: worker0</td>" in text
    assert "In a wave a batch is an operation" in text
    assert "<th class=n>layout</th>" in text


def test_the_controller_is_no_worker() -> None:
    events = [*SMALL[:-1], Updated(19.5, 0.1, "controller", "entrance", 1, 1, "full", "messages", 1), SMALL[-1]]
    record = recorded(events)
    assert "; the worker busy 80 % of the time" in summary(record)
    text = report_page(record)
    assert "<td>workers</td><td>1: w0</td>" in text
    assert "<td>controller</td>" in text, "what it did is told, in a row of its own"
