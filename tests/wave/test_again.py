"""What is kept from one wave to the next: scores by structure, layouts by scores, and calls on memory that stays."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, NodeError, Update, feed
from ampnet.data.list_reduction import generate
from ampnet.models import by_hand
from ampnet.nodes import Cond, Linear, Loss, Phi
from ampnet.plan import planner as planner_module
from ampnet.testing import assert_close
from tests.replicas.small import case, hand, taken
from tests.wave.both import NAMES, model, player_of
from tests.wave.test_gradients import F64, chain, rows_of


def twins(name: str) -> tuple[Graph, Graph]:
    """Two graphs of one model, with equal weights that may be changed."""
    if name == "by-hand":
        return hand()[0], hand()[0]
    of = case(name)
    return of.graph(), of.graph()


@pytest.mark.parametrize("keys", [1, 2, 9])
@pytest.mark.parametrize("name", NAMES)
def test_the_second_and_third_time_are_like_messages(name: str, keys: int) -> None:
    """In training and in inference, by the same layouts, and with other weights each time."""
    graphs, instances = twins(name), model(name)[1]
    before = [{n: v.clone() for n, v in graph.module().state_dict().items()} for graph in graphs]
    runtimes = [
        Inline(graph, max_active_keys=keys, waves=waves) for graph, waves in zip(graphs, (True, False), strict=True)
    ]
    try:
        for again in range(1, 5):
            results = []
            for graph, runtime in zip(graphs, runtimes, strict=True):
                taken(graph)
                stats = runtime.train(instances), runtime.infer(instances)
                losses = torch.tensor([s.loss for s in stats], dtype=F64)
                results.append({**taken(graph), "losses": losses})
            assert_close(*results)
            assert player_of(runtimes[0]).instances == 2 * again * len(instances)
            for number, graph in enumerate(graphs):
                if name == "by-hand" or number == 0:  # the others share their weights
                    for value in graph.module().state_dict().values():
                        value.mul_(1.1)
    finally:
        for graph, values in zip(graphs, before, strict=True):
            graph.module().load_state_dict(values)


def sequence(tokens: list[int], h0: Tensor) -> Instance:
    data = generate(1, 0)
    one = by_hand.instance(data, np.array([0]), 4, F64)
    count = len(tokens)
    return Instance(
        {
            **one.feeds,
            "tokens": feed(torch.tensor(tokens), t=np.arange(count), length=count),
            "h0": feed(h0, t=0, length=count),
        }
    )


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("update", [None, Update(partial(torch.optim.SGD, lr=0.1), 3, "instances")])
def test_a_start_state_that_is_zero_at_first_and_not_later(keys: int, update: Update | None) -> None:
    """Products with zeros are left out, and what was left out must be made when they are zeros no more."""
    zero, some, other = torch.zeros(1, 4, dtype=F64), *torch.randn(2, 1, 4, dtype=F64)
    rounds = [[zero, zero, zero], [zero, zero, zero], [some, zero, other], [zero, some, zero], [zero, zero, zero]]
    found = []
    for waves in (True, False):
        graph = by_hand.build(4, dtype=F64)
        results: dict[str, Tensor] = {}
        with Inline(graph, update=update, max_active_keys=keys, waves=waves) as runtime:
            for number, starts in enumerate(rounds):
                given = [sequence([1, 2, 3], h0) for h0 in starts]
                results[f"loss {number}"] = torch.tensor(runtime.train(given).loss, dtype=F64)
                if update is None:
                    results.update({f"{name} {number}": total for name, total in taken(graph).items()})
        found.append({**results, **graph.module().state_dict()})
    assert_close(*found)


def test_rows_of_another_width_or_dtype_are_no_matter_of_the_layout() -> None:
    """Same states, so the same layout; what fits no longer is an error."""
    graph = chain(Linear(4, 4, dtype=F64))
    good, bad = (
        rows_of(1),
        [Instance({"x": feed(torch.ones(1, 1, dtype=F64)), "label": feed(torch.ones(1, 4, dtype=F64))})],
    )
    with Inline(graph) as runtime:
        for _ in range(3):
            runtime.train(good)
        with pytest.raises(NodeError, match="node 'n0' .*instance=3.*expects rows of width 4, got a payload of shape"):
            runtime.train(bad)
        runtime.train(good)


# Scores


def test_equal_structures_are_rehearsed_once() -> None:
    graph = by_hand.build(4, dtype=F64)
    start = torch.zeros(1, 4, dtype=F64)
    with Inline(graph, max_active_keys=3) as runtime:
        runtime.train([sequence([1, 2, 3], start), sequence([3, 2, 1], start + 1), sequence([5, 5, 5], start)])
        assert player_of(runtime).planner.rehearsed == 1
        runtime.train([sequence([1, 2], start), sequence([4, 4, 4], start)])
        assert player_of(runtime).planner.rehearsed == 2
        runtime.infer([sequence([3, 4], start), sequence([1, 2, 3], start)])
        assert player_of(runtime).planner.rehearsed == 2
        runtime.train([sequence([1], start)])
        assert player_of(runtime).planner.rehearsed == 3
        assert player_of(runtime).instances == 8


@pytest.mark.parametrize("name", NAMES)
def test_the_next_epoch_rehearses_nothing(name: str) -> None:
    graph, instances = model(name)
    with Inline(graph, max_active_keys=4) as runtime:
        runtime.train(instances)
        first = player_of(runtime).planner.rehearsed
        assert first == len({instance.digest() for instance in instances})
        runtime.train(instances[::-1])
        runtime.infer(instances)
        assert player_of(runtime).planner.rehearsed == first


def test_digests_tell_structures_apart_and_no_payloads() -> None:
    def digest(x: Tensor, t: list[int], **more: object) -> bytes:
        return Instance({"x": feed(x, t=t, **more), "y": feed(torch.zeros(1, 1))}).digest()  # type: ignore[arg-type]

    one = digest(torch.zeros(2, 3), [0, 1])
    assert one == digest(torch.ones(2, 3), [0, 1])
    others = [
        digest(torch.zeros(2, 3), [1, 0]),
        digest(torch.zeros(3, 3), [0, 1, 2]),
        digest(torch.zeros(2, 3), [0, 1], offsets=[0, 0, 2]),
        digest(torch.zeros(2, 3), [0, 1], length=2),
    ]
    assert len({one, *others}) == 5


def test_scores_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph("line")
    graph.add("linear", Linear(2, 2))
    graph.add("loss", Loss("squared_error", key=("instance",)))
    graph.input("x", "linear", ("t",))
    graph.input("label", "loss.label")
    graph.chain("linear", "loss.prediction")
    instances = [
        Instance({"x": feed(torch.ones(1, 2), t=1000 + i), "label": feed(torch.zeros(1, 2))}) for i in range(500)
    ]
    with Inline(graph, max_active_keys=100) as runtime:
        player = player_of(runtime)
        planner = player.planner
        runtime.train(instances[:1])
        each = planner._bytes
        monkeypatch.setattr(planner_module, "_SCORES", 200 * each)
        runtime.train(instances[1:])
        assert player.instances == planner.rehearsed == len(instances)
        assert len(planner._scores) == 200
        assert planner._bytes == sum(score.nbytes for score in planner._scores.values()) == 200 * each
        runtime.train(instances[-100:])
        assert planner.rehearsed == len(instances)
        runtime.train(instances[1:2])  # never was a wave by itself, so no layout knows it
        assert planner.rehearsed == len(instances) + 1


def test_where_an_instance_goes_by_its_number_the_number_is_in_its_digest() -> None:
    """A score knows states and structure; once, all instances went where the first of them had gone."""
    found = []
    for waves in (True, False):
        graph = Graph("turns")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for name in ("odd", "even"):
                graph.add(name, Linear(2, 2, dtype=F64))
        graph.add("cond", Cond(lambda s: s.instance % 2, ("even", "odd")))
        graph.add("phi", Phi(("even", "odd")))
        graph.add("loss", Loss("squared_error"))
        graph.input("x", "cond")
        graph.input("label", "loss.label")
        for way in ("even", "odd"):
            graph.connect(f"cond.{way}", way)
            graph.connect(way, f"phi.{way}")
        graph.connect("phi", "loss.prediction")
        random = torch.Generator().manual_seed(1)
        rows = torch.randn(2, 6, 1, 2, generator=random, dtype=F64)
        instances = [Instance({"x": feed(x), "label": feed(y)}) for x, y in zip(*rows, strict=True)]
        with Inline(graph, max_active_keys=3, waves=waves) as runtime:
            runtime.train(instances)
            assert runtime.stats().instances == (6 if waves else 0)
        found.append(taken(graph))
    assert_close(*found)
