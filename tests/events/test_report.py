"""The report: every section, from a trace and from a log; everything escaped; nothing fetched."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampnet.controller import Progress
from ampnet.draw import Edge, Item, Sketch
from ampnet.errors import DataError
from ampnet.events.boxes import boxes_of
from ampnet.events.log import Event, Synced
from ampnet.events.record import Recorder, RunRecord, point_of
from ampnet.events.report import SECTIONS, drawing_of, page, report
from ampnet.events.report.charts import DENSE, Curve, curves, histogram, lags, sizes, thin
from ampnet.events.report.drawing import sketch_from, without_replicas
from ampnet.events.report.sections import summary
from ampnet.graph import Graph
from ampnet.models import by_hand
from tests.events.pipeline import pipeline
from tests.events.replicated import Script, group, replicated
from tests.events.runs import epoch, runtime, update
from tests.events.test_gantt import tags


def recorded(events: list[Event]) -> RunRecord:
    recorder = Recorder()
    for event in events:
        recorder(event)
    return recorder.record()


@pytest.fixture(scope="module")
def real() -> RunRecord:
    """Two epochs of the RNN, with progress."""
    recorder = Recorder()
    run = runtime(update(3), listeners=[recorder], max_active_keys=4)
    run.settings |= {"workload": "list-reduction", "graph": drawing_of(run.graph)}
    streams = [epoch(name="train 1"), epoch(20, 1, train=False, name="valid 1"), epoch(name="train 2")]
    run.run(streams, turn_seconds=0.0)
    return recorder.record()


def test_every_section_is_there_and_whole(real: RunRecord, tmp_path: Path) -> None:
    report(real, tmp_path / "report.html")
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    text = (tmp_path / "report.html").read_text()
    seen = tags(text).seen
    assert [given["id"] for tag, given in seen if tag == "section"] == [s for s in SECTIONS if s != "replicas"]
    for name in real.totals.nodes:
        assert f"<b>{name}</b>" in text
    assert "Linear 16→8" in text or "Linear" in text
    assert 'class="graph"' in text
    assert " %" in text


def test_it_needs_nothing_from_elsewhere(real: RunRecord) -> None:
    seen = tags(page(real)).seen
    links = [value or "" for _, given in seen for name, value in given.items() if name in ("href", "src", "xlink:href")]
    assert links
    assert all(link.startswith("#") for link in links), "only places in the page itself"
    assert [tag for tag, _ in seen].count("script") == 1


def test_several_workers_each_have_a_row() -> None:
    text = page(recorded(pipeline()))
    assert "4 workers busy" in text
    for w in range(4):
        assert f"<td>worker {w}</td>" in text
    assert "holds no drawing" in text


def test_everything_is_escaped() -> None:
    evil = '<img src=x onerror="alert(1)">&'
    graph = Graph(evil)
    settings = {"workload": evil, evil: evil, "updates": {evil: {evil: evil}}, "graph": drawing_of(graph)}
    events = pipeline(2, settings=settings, worker=evil + "{}", node=evil + "{}")
    text = page(recorded(events))
    assert "<img" not in text
    assert "onerror=&quot;" in text or "onerror=" not in text.replace("&quot;", "")
    assert not any(tag == "img" for tag, _ in tags(text).seen)


def test_a_run_of_which_little_is_known() -> None:
    """Only a beginning; no boxes; no stream that ended."""
    text = page(recorded(pipeline()[:1]))
    tags(text)
    assert "the run has no boxes" in text
    cut = page(recorded(pipeline()[:40]))
    tags(cut)
    assert "0 training streams" in cut


def test_the_summary_names_what_counts(real: RunRecord) -> None:
    line = summary(real)
    assert line.startswith("valid 1: loss ")
    for part in ("accuracy ", "2 training streams in ", " instances trained, ", "staleness ", "the worker busy "):
        assert part in line


def test_the_drawing_survives_json(real: RunRecord) -> None:
    import json

    graph = by_hand.build(8)
    again = sketch_from(json.loads(json.dumps(drawing_of(graph))))
    assert [item.name for item in again.items] == [i.name for i in graph.inputs] + list(graph.nodes)
    assert drawing_of(graph) == real.settings["graph"]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"title": "x", "items": [{}], "edges": []},
        {"title": "x", "items": [], "edges": [{"source": 0, "out": 0, "target": 1, "into": 0, "back": False}]},
        {"title": "x", "items": 7, "edges": []},
    ],
)
def test_a_drawing_that_is_none_is_said(broken: dict[str, object]) -> None:
    with pytest.raises(DataError, match="a graph that cannot be drawn"):
        sketch_from(broken)


def test_boxes_left_out_are_said() -> None:
    recorder = Recorder(most=120)
    for event in pipeline():
        recorder(event)
    assert f"Of the run's {len(boxes_of(pipeline())):,} boxes, the first 120 were recorded." in page(recorder.record())


def test_histograms_have_a_bar_for_every_size() -> None:
    text = sizes({1: 10, 8: 3}, colour="red")
    assert text.count('fill="red"') == 4
    for title in ("1: 10 batches (77 %)", "2–3: 0 batches (0 %)", "8–15: 3 batches (23 %)"):
        assert title in text
    assert lags({0: 5, 1: 5, 79: 1}).count("<g>") == 40, "two to a bar"
    assert sizes({}, colour="red") == lags({}) == histogram({}, {}, "x", colour="red") == ""


def test_curves_of_little() -> None:
    assert curves("loss", [Curve("a", "red")]) == ""
    for points in ([(0.0, 0.0)], [(1.0, 5.0), (2.0, 5.0)], [(0.0, -1e-12), (9.0, 1e12)]):
        text = curves("loss", [Curve("a", "red", [points], dots=True)])
        tags(text)
        assert "nan" not in text
        assert text.count("<circle") == len(points)
    assert len(thin([(float(i), 0.0) for i in range(10_000)])) == DENSE


def test_running_curves_come_from_progress() -> None:
    """Without progress (a log) the throughput is in instances."""
    events = pipeline(instances=400)
    plain = recorded(events)
    assert "throughput: instances per second" in page(plain)
    assert "mean so far" not in page(plain)
    noted = recorded(events)
    for i in range(30):
        progress = Progress("train", True, 10 * i, 0.1 * i, 2.0 - 0.01 * i, {"accuracy": 0.5}, 6)
        noted.points.append(point_of(progress, 0.1 * i))
    text = page(noted)
    assert "throughput: examples per second" in text
    assert "mean so far" in text


def test_replicas_have_a_table_and_a_chart_for_each_group() -> None:
    text = page(recorded(replicated(count=3)))
    tags(text)
    assert '<section id="replicas">' in text
    assert "<h3>cell</h3><p>3 replicas, messages shared out by instance, weights averaged after a number" in text
    assert "4 synchronisations</p>" in text
    row = "<tr><td><b>cell#2</b></td><td>worker 1</td><td class=n>33.3 %</td><td class=n>12</td><td class=n>6</td>"
    assert row in text
    assert text.count("<circle") >= 3 * 4, "a dot for each replica and synchronisation"
    assert "<b>drift, %</b>" in text
    assert "<th class=n>sync</th>" in text, "and the workers spent time on it"
    assert "<td>replicas of cell</td><td>node cell, members cell#1 cell#2 cell#3, by_instance True" in text


def test_where_nothing_drifts_no_drift_is_drawn() -> None:
    text = page(recorded(replicated(sync="shared")))
    assert "parameters shared, 4 synchronisations</p>" in text
    assert "<b>drift, %</b>" not in text
    assert "<td class=n>-</td><td class=n>-</td></tr>" in text


def test_replicas_that_did_nothing_yet_and_many_groups() -> None:
    script = Script()
    script.begin(replicas=[group(f"<b>{i}", sync="later") for i in range(20)])
    text = page(recorded(script.events))
    tags(text)
    assert text.count("<details><summary><b>&lt;b&gt;") == 20, "many are folded"
    assert "2 replicas, messages shared out by instance, sync later, 0 synchronisations" in text
    assert "<td>-</td><td class=n>-</td><td class=n>0</td>" in text
    for i in range(20):
        for node in script.members:
            script.add(Synced, 0.1, "w", node.replace("cell", f"<b>{i}"), f"<b>{i}", 1, 1, True, 0, 0.1 + 0.01 * i, 7)
    text = page(recorded(script.events))
    assert "The drift of the 12 groups that drifted most is drawn." in text
    assert text.count("<b>drift, %</b>") == 12
    assert "1 synchronisation</summary>" in text


def test_counted_axes_have_whole_numbers() -> None:
    text = curves("x", [Curve("a", "red", [[(1.0, 0.5), (2.0, 0.7)]])], whole=True)
    assert ">1</text>" in text
    assert ">0.5</text>" not in text.partition('class="x"')[2]


def test_many_replicas_share_a_line() -> None:
    text = page(recorded(replicated(count=16)))
    tags(text)
    assert "<b>cell</b>, 16 replicas<br>mean" in text
    nodes = text.partition('<section id="nodes">')[2].partition("</section>")[0]
    assert nodes.count("<tr>") == 2, "a head and a line"
    assert "<small>16 replicas</small>" in nodes
    assert "16 workers" in nodes
    assert " s each</small>" in nodes
    replicas = text.partition('<section id="replicas">')[2].partition("</section>")[0]
    assert "<details><summary><b>cell</b>: 16 replicas, " in replicas
    assert "<td><b>cell</b></td><td class=n>16</td><td class=n>6.2</td><td class=n>192</td>" in replicas
    for name in ("least", "mean", "most"):
        assert f"</i>{name}</span>" in replicas
    workers = text.partition('<section id="workers">')[2].partition("</section>")[0]
    assert "<b>16 workers</b>" in workers
    assert "least / mean / most, %" in workers
    settings = text.partition('<section id="settings">')[2].partition("</section>")[0]
    assert "members cell#1 … cell#16" in settings


def test_settings_of_many_replicas_are_told_at_once() -> None:
    policy = {f"cell#{i + 1}": {"optimizer": "Adam"} for i in range(8)} | {"head": {"optimizer": "SGD"}}
    affinity = {f"cell#{i + 1}": i for i in range(8)} | {"head": 0}
    script = Script(8)
    script.begin(updates=policy, affinity=affinity)
    text = page(recorded(script.events))
    assert "<td>updates of cell (8 replicas)</td><td>optimizer Adam</td>" in text
    assert "<td>updates of head</td><td>optimizer SGD</td>" in text
    assert "<td>affinity</td><td>head 0, cell (8 replicas) 0 … 7</td>" in text


def test_replicas_are_one_item_of_the_drawing() -> None:
    """A node shares messages out to three replicas of a pair of nodes; another one brings them together."""
    shares = Item("share", "", "control", ("in",), ("1", "2", "3"), "", None)
    first = [Item(f"a#{i}", "Linear", "parameterised", ("x",), ("y", "z"), "a", None) for i in (1, 2, 3)]
    second = [Item(f"b#{i}", "Linear", "parameterised", ("x", "y"), ("y",), "b", None) for i in (1, 2, 3)]
    join = Item("join", "", "control", ("1", "2", "3"), ("out",), "", None)
    edges = [Edge(0, i, 1 + i, 0, False) for i in range(3)]
    edges += [Edge(1 + i, port, 4 + i, port, False) for i in range(3) for port in (0, 1)]
    edges += [Edge(4 + i, 0, 7, i, False) for i in range(3)]
    found = without_replicas(Sketch("x", [shares, *first, *second, join], edges))
    assert [(item.name, item.note) for item in found.items] == [
        ("share", ()),
        ("a", ("3 replicas",)),
        ("b", ("3 replicas",)),
        ("join", ()),
    ]
    assert found.edges == [
        Edge(0, 0, 1, 0, False),
        Edge(1, 0, 2, 0, False),
        Edge(1, 1, 2, 1, False),
        Edge(2, 0, 3, 0, False),
    ]
    assert found.items[0].outputs == ("1",)
    assert found.items[3].outputs == ()
    plain = Sketch("x", [shares], [])
    assert without_replicas(plain) is plain
