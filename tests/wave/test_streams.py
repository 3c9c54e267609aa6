"""Streams by waves: what is told of them, and when, is what is told by messages."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from ampnet import Graph, Inline, Instance, Stream, StreamStats, Update, feed
from ampnet.errors import AmpnetError, StallError
from ampnet.events.log import Epoch, Event, Pump, Retire
from ampnet.nodes import Bcast, Linear, Loss
from ampnet.plan.lot import Lot
from ampnet.testing import assert_close
from tests.wave.both import NAMES, model, player_of, predictions
from tests.wave.test_gradients import F64, chain, rows_of

SGD = partial(torch.optim.SGD, lr=0.05)


def close(a: StreamStats, b: StreamStats) -> None:
    assert (a.name, a.train, a.instances, a.records, a.skipped, a.complete) == (
        b.name, b.train, b.instances, b.records, b.skipped, b.complete,
    )  # fmt: skip
    assert a.loss == pytest.approx(b.loss, rel=1e-10, nan_ok=True)
    assert a.metrics == pytest.approx(b.metrics, rel=1e-10)
    assert_close(predictions(a), predictions(b))


@pytest.mark.parametrize("keys", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_instances_without_a_label_among_others(name: str, keys: int) -> None:
    """Those who ask for a prediction only travel in waves of their own."""
    graph, instances = model(name)
    mixed = []
    for i, instance in enumerate(instances):
        feeds = dict(instance.feeds)
        if i % 3 == 1:
            for label in [n for n, f in feeds.items() if _is_label(graph, n)]:
                offsets = feeds[label].offsets
                feeds[label] = type(feeds[label])(None, feeds[label].fields, feeds[label].columns, offsets)
        mixed.append(Instance(feeds, instance.structure))
    if sum(not i.complete for i in mixed) < 1:
        pytest.skip("labels of this model come with what is computed")
    found = []
    for waves in (True, False):
        with Inline(graph, max_active_keys=keys, waves=waves) as runtime:
            found += runtime.run([Stream(mixed, False, "valid", keep_predictions=True)])
            if waves:
                assert player_of(runtime).instances == len(mixed)
    close(*found)


def _is_label(graph: Graph, name: str) -> bool:
    (given,) = (i for i in graph.inputs if i.name == name)
    node, _, port = given.target.partition(".")
    return isinstance(graph.nodes[node], Loss) and port == "label"


@pytest.mark.parametrize("keys", [1, 3, 20])
def test_two_streams_without_a_barrier_are_tallied_apart(keys: int) -> None:
    found: list[list[StreamStats]] = []
    for waves in (True, False):
        graph = chain(Linear(4, 4, dtype=F64))
        with torch.no_grad():
            for p in graph.module().parameters():
                p.fill_(0.25)
        streams = [
            Stream(rows_of(1, 2, 3, seed=1), True, "a"),
            Stream(rows_of(2, 2, seed=2), False, "b", keep_predictions=True),
            Stream([], True, "empty"),
            Stream(rows_of(1, 1, 1, 1, seed=3), True, "c"),
            Stream(rows_of(4, seed=4), False, "d"),
        ]
        with Inline(graph, max_active_keys=keys, waves=waves) as runtime:
            found.append(sorted(runtime.run(streams), key=lambda s: s.name))
            if waves:
                assert player_of(runtime).instances == 10
    for a, b in zip(*found, strict=True):
        close(a, b)


def test_streams_that_run_together() -> None:
    found = []
    for waves in (True, False):
        graph = chain(Linear(4, 4, dtype=F64))
        with torch.no_grad():
            for p in graph.module().parameters():
                p.fill_(0.25)
        streams = [Stream(rows_of(1, 2, 3), True, "train"), Stream(rows_of(2, 2, 1, 1, seed=2), False, "valid")]
        with Inline(graph, max_active_keys=3, waves=waves) as runtime:
            found.append(sorted(runtime.run(streams, together=True), key=lambda s: s.name))
    for a, b in zip(*found, strict=True):
        close(a, b)


@pytest.mark.parametrize("keys", [1, 4])
def test_a_run_can_be_stopped_when_a_stream_ends(keys: int) -> None:
    found = []
    for waves in (True, False):
        graph, ended = chain(Linear(4, 4, dtype=F64)), list[str]()
        with Inline(graph, update=Update(SGD, 1, "instances"), max_active_keys=keys, waves=waves) as runtime:

            def end(stats: StreamStats, runtime: Inline = runtime, ended: list[str] = ended) -> None:
                ended.append(stats.name)
                if stats.name == "b":
                    runtime.stop()

            streams = [Stream(rows_of(1, 2, 3, 1, 1), i % 2 == 0, "abcde"[i]) for i in range(5)]
            runtime.run(streams, on_end=end, barrier=True)
            found.append(ended)
            assert runtime.held() == {}
            stats = runtime.train(rows_of(1, 2))
            assert stats.complete
            assert stats.instances == 2
    assert found[0] == found[1]
    assert found[0][:2] == ["a", "b"]
    assert "e" not in found[0]


def test_a_loader_can_stop_a_run() -> None:
    found = []
    for waves in (True, False):
        with Inline(chain(Linear(4, 4, dtype=F64)), max_active_keys=2, waves=waves) as runtime:

            def loader(runtime: Inline = runtime) -> Any:
                for i, instance in enumerate(rows_of(*[1] * 9)):
                    if i == 5:
                        runtime.stop()
                    yield instance

            stats = runtime.train(loader())
            found.append((stats.instances, stats.complete))
    assert found[0] == found[1]
    assert found[0][1] is False


def each_row(*sizes: int) -> list[Instance]:
    """So many messages each, all of which are judged."""
    rows = torch.randn(sum(sizes), 4, dtype=F64, generator=torch.Generator().manual_seed(0)).split(sizes)
    return [
        Instance({"x": feed(x, t=list(range(len(x)))), "label": feed(-x, t=list(range(len(x))))}, results=1)
        for x in rows
    ]


@pytest.mark.parametrize("enough", [None, 1])
@pytest.mark.parametrize("keys", [1, 3])
def test_an_instance_may_be_over_after_one_result(keys: int, enough: int | None) -> None:
    """More of them are dropped. Once, several that came at once were an error."""
    found = []
    for waves in (True, False):
        graph = Graph("rows")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            graph.add("linear", Linear(4, 4, dtype=F64))
        graph.add("loss", Loss("squared_error"))
        graph.input("x", "linear", ("t",))
        graph.input("label", "loss.label", ("t",))
        graph.chain("linear", "loss.prediction")
        with Inline(graph, max_active_keys=keys, waves=waves, enough_rows=enough) as runtime:
            (stats,) = runtime.run([Stream(each_row(1, 3, 2, 1), False, "valid", keep_predictions=True)])
            assert stats.instances == 4
            found.append(stats)
            assert runtime.held() == {}
    close(*found)


def test_an_instance_with_fewer_results_than_were_promised_stalls() -> None:
    told = []
    for waves in (True, False):
        instances = [Instance(i.feeds, results=2) for i in rows_of(1, 1)]
        with Inline(chain(Linear(4, 4, dtype=F64)), waves=waves) as runtime:
            with pytest.raises(Exception, match="nothing can move|in flight") as caught:
                runtime.infer(instances)
            told.append((type(caught.value), str(caught.value)))
            assert runtime.held() == {}
    assert told[0] == told[1]


@pytest.mark.parametrize("waves", [True, False])
def test_what_inference_may_leave_behind_training_may_not(waves: bool) -> None:
    """Its plan is known from inference, and was good enough there: all results that were asked for had come."""
    graph = Graph("two")
    graph.add("linear", Linear(4, 4, dtype=F64))
    graph.add("bcast", Bcast(("a", "b")))
    graph.input("x", "linear")
    graph.connect("linear", "bcast")
    for port, name in (("a", "one"), ("b", "two")):
        graph.add(name, Loss("squared_error"))
        graph.input(f"label of {name}", f"{name}.label")
        graph.connect(f"bcast.{port}", f"{name}.prediction")
    asked = [Instance({"x": i.feeds["x"], "label of one": i.feeds["label"]}) for i in rows_of(1, 1, 2)]
    with Inline(graph, max_active_keys=2, waves=waves) as runtime:
        for _ in range(3):
            assert runtime.infer(asked).instances == 3
        for _ in range(2):
            with pytest.raises(StallError, match="node 'two': .* of port 'prediction' wait for port 'label'"):
                runtime.train(asked)
            assert runtime.held() == {}
        assert runtime.infer(asked).instances == 3


def test_who_listens_to_instances_still_hears_of_them() -> None:
    heard: dict[bool, list[Event]] = {}

    class Listener:
        kinds = (Pump, Retire, Epoch)

        def __init__(self, into: list[Event]) -> None:
            self.into = into

        def __call__(self, event: Event) -> None:
            self.into.append(event)

    for waves in (True, False):
        heard[waves] = []
        graph = chain(Linear(4, 4, dtype=F64))
        with Inline(graph, max_active_keys=2, waves=waves, listeners=[Listener(heard[waves])]) as runtime:
            runtime.train(rows_of(1, 1, 1, 1, 1))
            if waves:
                assert player_of(runtime).instances == 5
    for kind in (Pump, Retire):
        numbers = [[n for e in heard[w] if isinstance(e, kind) for n in e.instances] for w in (True, False)]  # type: ignore[attr-defined]
        assert len(numbers[0]) == len(numbers[1]) == 5
    assert sum(isinstance(e, Epoch) for e in heard[True]) == 1


def _sizes(runtime: Inline) -> list[int]:
    """The instances of every wave from now on."""
    planner, sizes = player_of(runtime).planner, []
    layout = planner.layout

    def laying(lot: Lot, behind: Any, pool: Any) -> Any:
        sizes.append(len(lot.numbers))
        return layout(lot, behind, pool)

    planner.layout = laying  # type: ignore[method-assign]
    return sizes


def test_updates_decide_on_the_size_of_waves_in_training_only() -> None:
    """Once waves of inference were no larger than the updates, which nobody makes there."""
    graph, instances = model("qm9")
    with Inline(graph, max_active_keys=4, update=Update(SGD, 2, "instances")) as runtime:
        sizes = _sizes(runtime)
        runtime.train(instances[:4])
        assert sizes == [2, 2]
        sizes.clear()
        runtime.infer(instances[:4])
        assert sizes == [4]


def _lots(runtime: Inline) -> list[int]:
    """The instances of every rehearsal from now on."""
    planner, lots = player_of(runtime).planner, []
    rehearse = planner._rehearse

    def rehearsing(lot: Lot, missing: Any) -> Any:
        lots.append(len(missing))
        return rehearse(lot, missing)

    planner._rehearse = rehearsing  # type: ignore[method-assign]
    return lots


def test_instances_that_wait_are_rehearsed_with_those_of_a_wave() -> None:
    """Four are in flight, and one more has been read. (Of a list, all are planned: `tests/plan/test_coming.py`.)"""
    graph = chain(Linear(4, 4, dtype=F64))
    with Inline(graph, max_active_keys=4, update=Update(SGD, 1, "instances")) as runtime:
        lots = _lots(runtime)
        runtime.train(iter(rows_of(1, 2, 3, 4, 5, 6, seed=1)))  # no two of one size, so no two of one score
        assert lots == [5, 1]


def test_one_that_cannot_be_rehearsed_does_not_spoil_the_waves_before_it() -> None:
    """The third has a message for an input that the others leave out, and cannot be joined."""
    graph = chain(Linear(4, 4, dtype=F64))
    good = rows_of(1, 2, 3, seed=1)
    bad = Instance({"x": good[2].feeds["x"]})
    with Inline(graph, max_active_keys=3, update=Update(SGD, 1, "instances")) as runtime:
        with pytest.raises(AmpnetError):
            runtime.train([*good[:2], bad])
        assert player_of(runtime).instances == 2


def test_a_wave_may_need_more_than_is_rehearsed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the wave needs, however many; and what is kept is counted once."""
    monkeypatch.setattr("ampnet.plan.planner._AHEAD", 2)
    graph = chain(Linear(4, 4, dtype=F64))
    with Inline(graph, max_active_keys=6, update=Update(SGD, 3, "instances")) as runtime:
        lots = _lots(runtime)
        runtime.train(rows_of(1, 2, 3, 4, 5, 6, seed=1))
        assert lots == [3, 3]
        planner = player_of(runtime).planner
        assert planner._bytes == sum(score.nbytes for score in planner._scores.values())
