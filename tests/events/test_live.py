"""The live view: who may read it, what it says while a run goes on and afterwards, and that it changes nothing."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch

from ampnet import Graph, Inline, Instance, Processes, Stream
from ampnet.controller import Progress
from ampnet.events.live import Live, watch
from ampnet.events.live.standing import RunSize, speed
from ampnet.events.live.watch import DRAWN, POINTS, LiveData
from ampnet.events.log import Begin, Epoch, EventLog, Rest, Updated
from ampnet.events.record import Point, StreamRecord
from ampnet.models import by_hand
from tests.events.pipeline import pipeline
from tests.events.runs import HIDDEN, epoch, instances, runtime, update

EVIL = '<img src=x onerror="alert(1)">&'


def ask(live: Live, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", int(live.address.rpartition(":")[2].strip("/")), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text


def state(live: Live, after: int = 0) -> dict[str, Any]:
    return json.loads(ask(live, f"/state?after={after}")[2])


def words(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is made anew as often as it may be, however long that takes."""
    monkeypatch.setattr("ampnet.events.live.PATIENCE", 0)


@pytest.fixture
def live() -> Iterator[Live]:
    with Live() as made:
        yield made


# -- the server


def test_only_this_machine_is_answered(live: Live) -> None:
    status, headers, text = ask(live)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    nonce = re.search(r"script-src 'nonce-([^']+)'", policy)
    assert nonce is not None
    assert text.count("<script") == text.count(f'<script nonce="{nonce[1]}"') == 1
    assert "access-control-allow-origin" not in headers
    assert not re.search(r'(?:src|href)="(?!#)', text), "nothing is fetched from elsewhere"
    port = live.address.rpartition(":")[2].strip("/")
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", "LOCALHOST:80", "[::1]:9", f"127.0.0.1:{port}"):
        assert ask(live, Host=host)[0] == 200
    strange = ["evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "x"]
    for host in strange:
        for path in ("/", "/state"):
            assert ask(live, path, Host=host)[0] == 403, host


def test_there_is_a_page_and_its_state_and_nothing_else(live: Live) -> None:
    for path in ("/index.html", "/state/", "/../etc/passwd", "/%2e%2e", "/favicon.ico"):
        assert ask(live, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        status, headers, _ = ask(live, "/", method)
        assert (status, headers["allow"]) == (405, "GET")
    for query in ("after=-1", "after=x", "after=99999999999999999999", "other=1", ""):
        assert ask(live, f"/state?{query}")[0] == 200


def test_it_cannot_be_reached_from_elsewhere(live: Live) -> None:
    assert live._server._http.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_an_error_at_once(live: Live) -> None:
    port = int(live.address.rpartition(":")[2].strip("/"))
    with pytest.raises(OSError, match="in use"):
        Live(port=port)


def test_the_port_of_a_run_that_is_over_is_free() -> None:
    """Once a second run with the same ``--live PORT`` failed for a minute: the server closes its connections first, and
    the kernel keeps the port for their sake."""
    with Live() as first:
        port = int(first.address.rpartition(":")[2].strip("/"))
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
            while client.recv(1 << 16):
                pass
    with Live(port=port) as second:
        assert ask(second)[0] == 200


def test_it_ends_with_the_run_and_who_waits_gets_the_last_picture() -> None:
    live = Live(every=1e6)
    first = state(live)
    assert first["state"] == "waiting"
    got: list[dict[str, Any]] = []
    asking = threading.Event()
    original = live._server.state

    def asked(after: int) -> bytes:
        asking.set()
        return original(after)

    live._server.state = asked  # type: ignore[method-assign]
    waiting = threading.Thread(target=lambda: got.append(state(live, first["version"])))
    waiting.start()
    asking.wait()
    live(Begin(1.0, {"workload": "the last"}))
    live.close()
    waiting.join()
    assert (got[0]["state"], got[0]["title"]) == ("ended", "the last")
    with pytest.raises(ConnectionError):
        ask(live)
    live.close()


# -- what it says


def test_a_page_about_a_run_while_it_goes_on() -> None:
    graph = by_hand.build(HIDDEN)
    seen: list[dict[str, Any]] = []

    def endless() -> Iterator[Instance]:
        for seed in count():
            yield from instances(40, seed)
            if len(seen) >= 3:
                return

    with Live(graph, epochs=2, records={"train": 10**6}, every=0.05) as live:

        def look(progress: Progress) -> None:
            seen.append(state(live, seen[-1]["version"] if seen else 0))

        with Inline(graph, update=update(3), max_active_keys=4, listeners=[live]) as run:
            run.settings["workload"] = "reduction"
            run.run([Stream(endless(), True, "train 1")], on_turn=look, turn_seconds=0.0)
        last = state(live, seen[-1]["version"])
    assert [one["state"] for one in seen] == ["running"] * len(seen)
    assert [one["version"] for one in seen] == sorted({one["version"] for one in seen})
    assert (last["state"], last["title"]) == ("waiting", "reduction")
    sections = last["sections"]
    assert list(sections) == ["learning", "timeline", "workers", "nodes", "staleness"]
    assert 'class="curves"' in sections["learning"]
    assert "throughput" in sections["learning"]
    assert 2 <= sections["timeline"].count('class="box"') <= DRAWN
    assert re.search(r"inline .* \d+\.\d %", words(sections["workers"]))
    assert all(node in words(sections["nodes"]) for node in ("linear1", "linear2", "embedding"))
    assert "linear1" in words(sections["staleness"])
    facts = words(last["facts"])
    for what in ("stream train 1", "examples/s", "loss", "accuracy", "elapsed 0:", "staleness", "busy", "engine waves"):
        assert what in facts
    shares = [float(text.removesuffix(" %")) for text, _, _ in last["marks"].values()]
    assert 50 < sum(shares) < 102, "the controller loads rows, too, and is no node of the drawing"


def test_the_graph_is_drawn_with_a_place_for_every_share() -> None:
    graph = by_hand.build(HIDDEN)
    with Live(graph) as live:
        text = ask(live)[2]
    places = [i for i in range(40) if f'id="share{i}"' in text]
    assert len(places) == len(graph.nodes)
    assert all(f'id="outline{i}"' in text and f'id="heat{i}"' in text for i in places)


def test_everything_is_escaped(live: Live) -> None:
    settings = {"workload": EVIL, "engine": EVIL}
    for event in pipeline(30, settings=settings, worker=EVIL + "{}", node=EVIL + "{}"):
        live(event)
    live.turn(Progress(EVIL, True, 1, 1.0, 0.5, {EVIL: 0.5}, 1))
    live(Epoch(1e6, EVIL, True, 0.5, {EVIL: 0.5}))
    live(Rest(1e6, {}))
    last = state(live)
    made = [*last["sections"].values(), last["facts"]]
    assert all("<img" not in html for html in made)
    assert sum("&lt;img" in html for html in made) >= 4
    assert "<img" not in ask(live)[2], "the page begins with the same, as JSON"


def test_a_graph_with_strange_names_is_escaped() -> None:
    with Live(Graph("</svg>" + EVIL)) as live:
        assert "<img" not in ask(live)[2]


# -- what it keeps


def test_a_worker_is_as_busy_as_in_the_time_it_was_watched() -> None:
    """
    seconds    0         1         2         3
    a          uuuuu.....uuuuu.....uuuuu.....       all of it is told: 0.5
    b          UUUUuuuuuuUUUUuuuuuuUUUUuuuuuu       4 operations of each second are told, and it rests never: 1.0
    """
    watching = LiveData(4, 1.0, lambda: 3.0)
    watching(Begin(0.0, {}))
    for k in range(30):
        second, tenth = divmod(k, 10)
        if tenth == 0:
            watching(Updated(second + 0.0, 0.5, "a", "n", 1, 1, "full", "messages", 1))
        watching(Updated(k / 10, 0.1, "b", "m", 1, 1, "full", "messages", 1))
    watching(Rest(3.0, {}))
    record = watching.record()
    busy = {name: sum(of.values()) / record.totals.wall for name, of in record.totals.workers.items()}
    assert busy == pytest.approx({"a": 0.5, "b": 1.0})
    assert {box.worker for box in record.boxes} == {"a", "b"}
    assert max(box.stop for box in record.boxes) <= 2.5 + 1e-9, "no further than all were watched"
    assert record.totals.nodes["m"].updates is not None
    assert record.totals.nodes["m"].updates.updates == 12


def test_the_last_picture_is_not_the_rest_of_a_period() -> None:
    """Once, a run that ended just after a period had begun was shown with the few operations of its last moment.

    seconds    0         1         2
    first      ..........uuuuuuuuuuu|               the period of 10 operations stays, and not the one at its end
    second               (later)         uuu|       a run too short for a whole period: its own are shown
    """
    watching = LiveData(100, 1.0, lambda: 9.0)

    def run(begin: float, count: int, start: float) -> list[float]:
        watching(Begin(begin, {}))
        for k in range(count):
            watching(Updated(start + k / 10, 0.05, "a", "n", 1, 1, "full", "messages", 1))
        watching(Rest(start + count / 10, {}))
        return [round(box.start, 3) for box in watching.record().boxes]

    assert run(0.0, 11, 1.0) == [round(1 + k / 10, 3) for k in range(10)]
    assert run(5.0, 3, 5.2) == [5.2, 5.3, 5.4]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = LiveData(20, 1.0, lambda: 0.0)
    watching(Begin(0.0, {}))
    for k in range(5_000):
        watching.turn(Progress("train 1", True, k, 1.0, 0.5, {}, 1))
        watching(Updated(k / 100, 0.001, "a", "n", 1, 1, "full", "messages", 1))
    assert len(watching._turns) <= POINTS
    assert watching._turns[-1][1].records == 4_999
    assert len(watching._coming.boxes) <= 20
    assert len(watching._kept.boxes) <= 20
    monkeypatch.setattr(watch, "DRAWN", 5)
    assert len(watching.record().boxes) == 5


def test_the_time_that_is_left() -> None:
    """Two of ten epochs are done, 8 s of training and 2 s of validation each; half of the third's training is."""
    plan = RunSize(10, {"train": 100, "valid": 50})
    streams = [
        StreamRecord("train 1", True, 0.0, 8.0, 1, 0.1, {}),
        StreamRecord("valid 1", False, 8.0, 10.0, 1, 0.1, {}),
        StreamRecord("train 2", True, 10.0, 18.0, 1, 0.1, {}),
        StreamRecord("valid 2", False, 18.0, 20.0, 1, 0.1, {}),
    ]
    point = Point(24.0, "train 3", True, 50, 4.0, 0.1, {}, 1)
    assert plan.left(streams, point, 24.0) == pytest.approx(4 + 7 * 8 + 8 * 2)
    assert plan.left(streams, point, 25.0) == pytest.approx(3 + 7 * 8 + 8 * 2)
    early = Point(2.0, "train 1", True, 25, 2.0, 0.1, {}, 1)
    assert plan.left([], early, 2.0) == pytest.approx(9.75 * 8 + 10 * 4)  # validation as fast as training
    assert plan.left([], None, 2.0) is None
    assert RunSize().left(streams, point, 24.0) is None
    points = [Point(0.5 * k, "train 1", True, 10 * k, 0.5 * k, None, {}, 1) for k in range(12)]
    assert speed(points) == pytest.approx(20)
    assert speed(points[1:2]) == pytest.approx(20)


# -- that it changes nothing


@pytest.mark.parametrize("settings", [{}, {"schedule": "fifo", "wave_size": 1}, {"waves": False}])
def test_the_weights_are_the_same_to_the_bit(settings: dict[str, Any]) -> None:
    """Promise P20, with a browser that looks all the time."""

    def weights(*listeners: Any, **more: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        given = {"waves": True, "max_active_keys": 6, **settings}
        with runtime(update(3), listeners=listeners, **given) as run:
            run.run([epoch(200, name="train 1"), epoch(40, 1, train=False, name="valid 1")], turn_seconds=0.0, **more)
        assert run.engine.waves == given["waves"]
        return [p.detach().clone() for node in run.graph.parameterised().values() for p in node.updater.parameters]

    with Live(every=0.01, most=30) as live:
        looked = []
        look = lambda _: looked.append(state(live)) if len(looked) < 20 else None  # noqa: E731
        watched = weights(live, EventLog(), on_turn=look)
        alone = weights(live)
    assert looked
    for one, two, three in zip(weights(), watched, alone, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
def test_worker_processes_are_watched_and_keep_no_port() -> None:
    graph = by_hand.build(HIDDEN)
    live = Live(graph, every=0.05)
    address = ("127.0.0.1", int(live.address.rpartition(":")[2].strip("/")))
    placed = {"workers": 2, "affinity": {"*": 0, "linear2": 1, "loss": 1}}
    with Processes(graph, update=update(3), max_active_keys=8, listeners=[live], **placed) as run:
        run.run([epoch(400, name="train 1")])
        busy = words(state(live)["sections"]["workers"])
        assert "worker0" in busy
        assert "worker1" in busy
        live.close()  # the workers, which have a copy of its socket, are still there
        with socket.socket() as probe, pytest.raises(ConnectionError):
            probe.connect(address)
