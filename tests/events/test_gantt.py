"""Gantt charts: what is on them, in every format; what cannot be drawn is said in one sentence."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ampnet.errors import DataError
from ampnet.events.boxes import Box, boxes_of
from ampnet.events.gantt import MANY, chart, gantt, labels, natural
from ampnet.events.gantt_page import describe, page, round_step
from tests.events.pipeline import pipeline
from tests.events.replicated import replicated

BOXES = boxes_of(pipeline())


def box(instances: tuple[int, ...] = (), more: int = 0, **other: Any) -> Box:
    given: dict[str, Any] = {"kind": "forward", "train": True, "version": None, "staleness": None} | other
    return Box("w", "n", start=0.0, seconds=1e-3, instances=instances, more=more, messages=1, rows=2, **given)


def test_a_row_for_each_worker_with_its_utilisation() -> None:
    """
    worker 0   [  14  ][ 20 ][  15  ] ...   busy all the time, as worker 1 to 3 are within a few per cent
    """
    drawn = chart(BOXES)
    assert [row.name for row in drawn.rows] == [f"worker {w}" for w in range(4)]
    assert drawn.looks == ("forward", "backward", "update")
    for row in drawn.rows:
        assert 0.5 < row.busy <= 1.0 + 1e-9
        assert {b.worker for b in row.boxes} == {row.name}
        assert f"{row.name} {100 * row.busy:.0f} %" in drawn.title
    assert drawn.title.startswith("steady state, ")
    many = chart(boxes_of(pipeline(6)))
    assert re.search(r"busy: \d+ % on average of 6 workers$", many.title)


def test_boxes_are_named_where_a_row_shows_several_nodes() -> None:
    assert chart(BOXES).mixed == frozenset(), "a layer on each worker: the numbers of instances say more"
    one = boxes_of(pipeline(2, worker="w"))
    drawn = chart(one)
    assert drawn.mixed == {"w"}
    assert "layer1" in page(drawn, one)


def test_rows_may_be_nodes() -> None:
    drawn = chart(BOXES, rows="nodes")
    assert {row.name for row in drawn.rows} == {f"layer{w}" for w in range(4)}
    assert sum(len(row.boxes) for row in drawn.rows) == sum(len(row.boxes) for row in chart(BOXES).rows)


def test_a_window_and_workers_may_be_chosen() -> None:
    drawn = chart(BOXES, start=0.1, stop=0.12, workers=["worker 2"])
    assert [row.name for row in drawn.rows] == ["worker 2"]
    assert all(b.stop > 0.1 and b.start < 0.12 for b in drawn.rows[0].boxes)
    assert chart(BOXES, start=0.25).window.stop == max(b.stop for b in BOXES)
    chosen = chart(BOXES, instances=(30, 31))
    assert chosen.title.startswith("instances 30 to 31, ")
    shown = [b for row in chosen.rows for b in row.boxes]
    assert {b.instances for b in shown if not chosen.pale(b)} == {(30,), (31,)}
    assert any(chosen.pale(b) for b in shown)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"start": 900.0}, "a window from 900 to 0.2"),
        ({"start": 900.0, "stop": 901.0}, "nothing was done between 900 and 901 s; the run's boxes are from 0 to 0.2"),
        ({"instances": (500, 510)}, "no batch holds an instance from 500 to 510; those recorded are 0 to 79"),
        ({"workers": ["worker 9"]}, "there is no worker 'worker 9'; there are worker 0, worker 1, worker 2, worker 3"),
    ],
)
def test_what_cannot_be_drawn_is_said(how: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        chart(BOXES, **how)
    with pytest.raises(DataError, match="the run has no boxes"):
        chart([])


def test_too_many_boxes_are_refused() -> None:
    many = [Box("w", "n", "forward", float(i), 1.0, True, (i,), 0, 1, 1, None, None) for i in range(MANY + 1)]
    with pytest.raises(DataError, match="5,001 boxes are in this window"):
        chart(many, start=0.0)
    assert 55 <= len(chart(many).rows[0].boxes) <= 150


def test_numbers_in_a_box_from_long_to_short() -> None:
    assert labels(box((12,))) == ["12"]
    assert labels(box((12, 13, 15))) == ["12 13 15", "12+2"]
    assert labels(box((1, 2), more=30)) == ["1+31"]
    assert labels(box()) == []


def test_worker_10_comes_after_worker_9() -> None:
    names = [f"worker {i}" for i in range(12)]
    assert sorted(sorted(names), key=natural) == names
    assert sorted(["10", "9", "b2", "a10", ""], key=natural) == ["", "9", "10", "a10", "b2"]


def test_what_the_pointer_is_told() -> None:
    backward = box((3, 4), kind="backward", version=7, staleness=1.5)
    assert describe(backward).splitlines() == [
        "backward n, w",
        "1,000 µs from 0.000000 s",
        "1 message, 2 rows",
        "instances 3, 4",
        "after 7 updates of the node",
        "staleness 1.5",
    ]
    assert "(inference)" in describe(box((3,), train=False))
    assert describe(box(kind="update", version=7)).endswith("update 7 of the node, 1 gradient")


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("html", b"<!doctype html>")])
def test_a_picture_in_the_format_of_its_ending(ending: str, start: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"run.{ending}"
    drawn = gantt(pipeline(), path, title="made up")
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if ending != "png":
        text = path.read_text()
        assert drawn.title in text
        assert ">worker 3<" in text
        assert all(look in text for look in drawn.looks)
    if ending == "svg":
        ElementTree.parse(path)


def test_an_ending_that_says_no_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the ending must be one of .png, .svg, .html"):
        gantt(BOXES, tmp_path / "run.gif")
    assert list(tmp_path.iterdir()) == []


class Tags(HTMLParser):
    """Checks that tags are closed in order, and notes them."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags(text: str) -> Tags:
    parser = Tags()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_whole_escaped_and_fetches_nothing() -> None:
    evil = '<script>alert("&")</script>'
    boxes = boxes_of(pipeline(2, worker=evil + "{}", node=evil + "{}"))
    text = page(chart(boxes, title=evil), boxes)
    seen = tags(text).seen
    assert [tag for tag, _ in seen].count("script") == 1
    assert not [given for _, given in seen if {"src", "href"} & set(given)]
    assert "@import" not in text
    assert "url(" not in text


def test_a_page_holds_what_is_around_the_window() -> None:
    boxes = boxes_of(pipeline(instances=2000))
    drawn = chart(boxes)
    shown = sum(len(row.boxes) for row in drawn.rows)
    assert shown < page(drawn, boxes).count('<g class="box"') <= 1600


def test_ticks_are_at_round_numbers() -> None:
    assert [round_step(v) for v in (0.9, 1.0, 1.1, 3.0, 7.0, 0.012)] == pytest.approx([1, 1, 2, 5, 10, 0.02])


def test_names_that_matplotlib_would_read_as_formulas(tmp_path: Path) -> None:
    """A name with two dollars was set as a formula once, and a broken one is an error."""
    gantt(pipeline(2, worker="$\\frac{{{}$"), tmp_path / "run.png")


def test_synchronisations_have_a_colour_of_their_own() -> None:
    drawn = chart(boxes_of(replicated()))
    assert drawn.looks == ("forward", "backward", "update", "sync")
    text = page(drawn, boxes_of(replicated()))
    assert "sync cell#2, worker 1" in text
    assert "made equal to the other replicas, after 2 updates of its own; version 3" in text
    assert "after 1 update of its own" in describe(box(kind="sync", version=4))
