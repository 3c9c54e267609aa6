"""Padded waves: rows of padding have no part in gradients, updates, counts, losses or metrics."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ampnet import Inline, Instance, Seq, Update
from ampnet.errors import DataError, NodeError
from ampnet.events.log import EventLog
from ampnet.graph import Graph
from ampnet.lang import compile, fold
from ampnet.lang import loss as ampnet_loss
from ampnet.models import ListReduction, TreeLstm
from ampnet.plan.capacity import Capacities, rounded
from ampnet.testing import assert_close, model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.written import WrittenModel, example, seeded
from ampnet.wave.kernels.padded import PaddedLoss
from tests.wave.padded import assert_equal, on_programs, trained, versions_of, weights_of

CHUNK = 100


def check(seed: int) -> tuple[int, str | None]:
    """The gradients of a random model, of padded waves, are those of plain autograd."""
    program, drawn = seeded(seed)
    model, size = WrittenModel(program), 1 + seed % 3
    graph = compile(model, *example())
    instances = list(graph.instances(drawn))
    with Inline(graph, update=None, max_active_keys=6, wave_size=size) as runtime:
        captured = on_programs(runtime)
        runtime.train(instances)
    assert_close(by_model_names(graph, graph.gradients()), model_gradients(model, drawn))
    return captured.padded, captured.reason


@pytest.mark.parametrize("seed", range(30))
def test_gradients_of_random_models(seed: int) -> None:
    padded, reason = check(seed)
    assert padded or reason is not None


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, CHUNK))
def test_many_seeds(first: int) -> None:
    failed = {}
    for seed in range(first, first + CHUNK):
        try:
            check(seed)
        except Exception as error:
            failed[seed] = f"{type(error).__name__}: {error}"
    assert not failed


# -- training


def sequences(count: int, seed: int = 0) -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(seed)
    drawn = [torch.from_numpy(rng.integers(0, 10, int(rng.integers(2, 7)))) for _ in range(count)]
    return [(Seq(tokens), tokens.sum() % 10) for tokens in drawn]


def network() -> Graph:
    torch.manual_seed(0)
    data = sequences(1)[0]
    return compile(ListReduction(hidden=8).double(), *data)


def epochs(graph: Graph, order: np.ndarray) -> list[Instance]:
    data = sequences(40)
    return [graph.instance(*data[i]) for i in order]  # type: ignore[attr-defined]


SHUFFLED = [partial(epochs, order=np.random.default_rng(seed).permutation(40)) for seed in range(4)]
UPDATES = {
    "sgd": Update(partial(torch.optim.SGD, lr=0.05), 10, "instances"),
    "momentum": Update(partial(torch.optim.SGD, lr=0.05, momentum=0.9), 10, "instances"),
    "adam": Update(partial(torch.optim.Adam, lr=0.01), 10, "instances"),
    "adagrad": Update(partial(torch.optim.Adagrad, lr=0.05), 10, "instances"),
    "clipped": Update(partial(torch.optim.SGD, lr=0.5), 10, "instances", clip_norm=0.1),
    "every second wave": Update(partial(torch.optim.SGD, lr=0.05), 20, "instances"),
    "messages": Update(partial(torch.optim.SGD, lr=0.05), 30, "messages"),
    "nadam": Update(partial(torch.optim.NAdam, lr=0.01), 10, "instances"),
}


@pytest.mark.parametrize("name", UPDATES)
def test_training_is_that_of_plain_waves(name: str) -> None:
    settings: dict[str, Any] = {"max_active_keys": 10, "wave_size": 10}
    plain = trained(network, SHUFFLED, UPDATES[name], False, **settings)
    padded = trained(network, SHUFFLED, UPDATES[name], True, **settings)
    assert_equal(plain[1], padded[1], 1e-8)
    assert plain[2] == padded[2]
    for a, b in zip(plain[0], padded[0], strict=True):
        assert b.loss == pytest.approx(a.loss, rel=1e-9)
        assert b.metrics == pytest.approx(a.metrics)
        assert (a.records, a.instances) == (b.records, b.instances)


def test_waves_of_a_shuffled_stream_share_programs() -> None:
    many = [partial(epochs, order=np.random.default_rng(seed).permutation(40)) for seed in range(20)]
    *_, captured = trained(network, many, UPDATES["adam"], True, max_active_keys=20)
    assert captured is not None
    assert captured.padded == 20 * 4  # an update of ten is a wave of ten
    assert len(captured._programs) <= 12
    assert len({prepared.kind for prepared in captured._preparation.kept.values()}) < len(captured._preparation.kept)


def test_a_last_wave_that_is_smaller_is_padded_too() -> None:
    some = [partial(epochs, order=np.arange(37)), partial(epochs, order=np.arange(37))]
    plain = trained(network, some, UPDATES["adam"], False, max_active_keys=10)
    padded = trained(network, some, UPDATES["adam"], True, max_active_keys=10)
    assert_equal(plain[1], padded[1], 1e-8)
    assert plain[2] == padded[2]


# -- who looks, and who cannot be padded


def test_a_log_is_written_operation_by_operation() -> None:
    graph = network()
    with Inline(graph, update=UPDATES["adam"], max_active_keys=10, listeners=[EventLog()]) as runtime:
        captured = on_programs(runtime)
        runtime.train(epochs(graph, np.arange(40)))
        assert captured.padded == 0
        assert "a log" in (runtime.stats().uncaptured or "")
    assert_equal(
        weights_of(graph),
        trained(network, [partial(epochs, order=np.arange(40))], UPDATES["adam"], True, max_active_keys=10)[1],
        1e-8,
    )


def test_a_module_of_sequences_says_why_it_is_not_padded() -> None:
    found = {check(seed)[1] for seed in range(30)}
    assert any(reason is not None and "module of whole sequences" in reason for reason in found)


def test_losses_that_skip_say_so_too() -> None:
    class Skips(ListReduction):
        def forward(self, tokens: Any, label: torch.Tensor) -> Any:
            start = self.zeros(self.width)
            ampnet_loss(self.classify(fold(self.step, tokens, start)), label, on_nan="skip")

    graph = compile(Skips(hidden=8).double(), *sequences(1)[0])
    with Inline(graph, update=UPDATES["sgd"], max_active_keys=10) as runtime:
        captured = on_programs(runtime)
        runtime.train(epochs(graph, np.arange(20)))
        assert captured.padded == 0
        assert "may skip" in (runtime.stats().uncaptured or "")


@pytest.mark.parametrize("weights", ["estimate", "predict"])
def test_derived_weights_say_so_too(weights: Any) -> None:
    update = Update(partial(torch.optim.SGD, lr=0.05), 10, "instances", weights=weights)
    graph = network()
    with Inline(graph, update=update, max_active_keys=10) as runtime:
        captured = on_programs(runtime)
        runtime.train(epochs(graph, np.arange(20)))
        assert captured.padded == 0
        assert "derived" in (runtime.stats().uncaptured or "")


# -- numbers that are not finite, or out of range


def spoilt(instance: Instance, name: str, value: float) -> Instance:
    given = instance.feeds[name]
    assert given.payload is not None
    payload = given.payload.clone()
    payload.view(-1)[0] = value
    return replace(instance, feeds={**instance.feeds, name: replace(given, payload=payload)})


@pytest.mark.parametrize(("name", "value"), [("label", 77), ("tokens", -1)])
@pytest.mark.parametrize("place", [0, 10, 30])
def test_an_index_out_of_range_is_named_and_changes_nothing(name: str, value: float, place: int) -> None:
    graph = network()
    with Inline(graph, update=UPDATES["adam"], max_active_keys=1, wave_size=1) as runtime:
        captured = on_programs(runtime)
        good = epochs(graph, np.arange(40))
        runtime.train(good)
        until = [*good[:place], spoilt(good[place], name, value)]
        with pytest.raises(NodeError, match="out of range"):
            runtime.train([*until, *good])
        assert captured.reason is None
        weights, versions = weights_of(graph), versions_of(graph)
        assert runtime.held() == {}
        runtime.train(good)
        assert captured.padded >= 80
    other = network()
    with Inline(other, update=UPDATES["adam"], max_active_keys=1, wave_size=1) as runtime:
        runtime.train(epochs(other, np.arange(40)))
        runtime.train(epochs(other, np.arange(place)))
    assert_equal(weights, weights_of(other), 1e-8)
    assert versions == versions_of(other)


def test_a_payload_that_is_not_finite_is_refused() -> None:
    program, drawn = seeded(0)
    graph = compile(WrittenModel(program), *example())
    instances = list(graph.instances(drawn))
    name = next(n for n, f in instances[0].feeds.items() if f.payload is not None and f.payload.is_floating_point())
    with Inline(graph, update=Update(partial(torch.optim.SGD, lr=0.01)), max_active_keys=2) as runtime:
        on_programs(runtime)
        runtime.train(instances)
        before = weights_of(graph)
        with pytest.raises(DataError, match="not finite"):
            runtime.train([spoilt(instances[0], name, float("nan")), *instances[1:]])
        assert_equal(weights_of(graph), before, 0)


def test_waves_whose_padding_was_at_fault_are_played_again() -> None:
    """A false alarm: nothing is lost, and what is counted is counted once."""
    graph = network()
    with Inline(graph, update=UPDATES["sgd"], max_active_keys=10) as runtime:
        captured = on_programs(runtime)
        runtime.train(epochs(graph, np.arange(40)))
        ledger = captured._ledger
        ledger._bad.fill_(True)  # from the next wave on
        stats = runtime.train(epochs(graph, np.arange(40)))
        assert captured.reason is not None
        assert runtime.stats().uncaptured == captured.reason
    plain = trained(network, [partial(epochs, order=np.arange(40))] * 2, UPDATES["sgd"], False, max_active_keys=10)
    assert_equal(plain[1], weights_of(graph), 1e-8)
    assert versions_of(graph) == plain[2]
    assert stats.instances == 40
    assert stats.records == 40


def test_a_program_that_fails_is_played_call_by_call_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: PaddedLoss, op: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(PaddedLoss, "forward", fail)
    graph = network()
    with Inline(graph, update=UPDATES["sgd"], max_active_keys=10) as runtime:
        captured = on_programs(runtime)
        runtime.train(epochs(graph, np.arange(40)))
        assert captured.padded == 0
        assert "no such kernel" in (runtime.stats().uncaptured or "")
        assert "not captured" in runtime.stats().words()
    plain = trained(network, [partial(epochs, order=np.arange(40))], UPDATES["sgd"], False, max_active_keys=10)
    assert_equal(plain[1], weights_of(graph), 1e-10)


# -- capacities


def test_capacities_are_exact_until_sizes_differ() -> None:
    capacities = Capacities()
    capacities.look({"a": 100, "b": 7})
    assert (capacities.room("a"), capacities.room("b")) == (100, 7)
    capacities.look({"a": 90, "b": 7})
    assert not capacities.exact
    assert capacities.room("a") == rounded(101)
    generation = capacities.generation
    capacities.look({"a": 101, "b": 8})
    assert capacities.generation == generation
    capacities.look({"a": 1000, "b": 8})
    assert capacities.generation > generation


@pytest.mark.parametrize("size", [1, 2, 5, 10, 33, 100, 1000, 54_321])
def test_rounded_has_room_and_little_waste(size: int) -> None:
    assert size < rounded(size) <= 1.4 * size + 5


def test_a_tree_model_trains_the_same() -> None:
    from ampnet import Tree

    rng = np.random.default_rng(0)

    def tree() -> Tree:
        leaves = int(rng.integers(2, 7))
        parents = np.full(2 * leaves - 1, -1)
        roots, free = list(range(leaves)), leaves
        while len(roots) > 1:
            a, b = (roots.pop(int(rng.integers(len(roots)))) for _ in range(2))
            parents[a] = parents[b] = free
            roots.append(free)
            free += 1
        words = torch.from_numpy(rng.integers(0, 20, leaves))
        return Tree(parents, leaves={"word": words}, label=torch.from_numpy(rng.integers(0, 5, 2 * leaves - 1)))

    trees = [tree() for _ in range(30)]

    def make() -> Graph:
        torch.manual_seed(0)
        return compile(TreeLstm(20, 6, 6, 5).double(), trees[0])

    def data(graph: Any) -> list[Instance]:
        return [graph.instance(one) for one in trees]

    update = Update(partial(torch.optim.Adagrad, lr=0.05), 10, "instances")
    plain = trained(make, [data] * 3, update, False, max_active_keys=10)
    padded = trained(make, [data] * 3, update, True, max_active_keys=10)
    assert_equal(plain[1], padded[1], 1e-8)
    assert plain[2] == padded[2]
    assert padded[3] is not None
    assert padded[3].padded == 9
