"""The tools that hold a compiled model against the eager one notice when they differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline
from ampnet.lang import Model, Seq, compile, each, loss
from ampnet.runtime import inline
from ampnet.runtime.engine import Engine
from ampnet.testing import assert_compiled, assert_judged, compiled_gradients, model_gradients
from ampnet.testing.language import assert_played, ways


class Fickle(Model):
    """Can be made to compute something else after it was compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
        self.factor, self.weight, self.skip = 1.0, 1.0, False

    def forward(self, xs: Seq, y: Tensor) -> None:
        each(lambda x: loss(self.a(x) * self.factor, y, "squared_error", weight=self.weight), xs)
        if not self.skip:
            loss(self.a(y), y, "squared_error")


def data() -> list[tuple[Any, ...]]:
    torch.manual_seed(0)
    return [(Seq(torch.randn(n, 2, dtype=torch.float64)), torch.randn(2, dtype=torch.float64)) for n in (2, 1, 3)]


def test_a_model_is_itself() -> None:
    model = Fickle().double()
    graph = assert_compiled(model, data(), max_active_keys=2)
    assert graph.model is model
    assert "unused" not in graph.nodes
    gradients = compiled_gradients(graph, data())
    assert gradients.keys() == model_gradients(model, data()).keys() == dict(model.named_parameters()).keys()
    assert not gradients["unused.weight"].any()
    assert not any(total.any() for total in graph.gradients().values())  # the sums are left at zero


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"factor": 1.001}, "a.weight: differs by"),
        ({"weight": 2.0}, "a.weight: differs by"),
        ({"skip": True}, "a.weight: differs by"),
    ],
)
def test_a_difference_in_gradients_is_named(change: dict[str, Any], said: str) -> None:
    model = Fickle().double()
    graph = compile(model, *data()[0])
    for name, value in change.items():
        setattr(model, name, value)
    with pytest.raises(AssertionError, match=said):
        assert_compiled(model, data(), graph=graph)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"factor": 1.001, "weight": 0.0}, "mean of loss 'loss', instance 0: differs by"),
        ({"weight": 2.0}, "mean of loss 'loss', instance 0: differs by"),
        ({"skip": True}, "instance 0: 3 losses compiled, 2 eagerly"),
        ({"factor": -1.0}, "instance 0"),
    ],
)
def test_a_difference_in_what_is_inferred_is_named(change: dict[str, Any], said: str) -> None:
    model = Fickle().double()
    graph = compile(model, *data()[0])
    for name, value in change.items():
        setattr(model, name, value)
    with pytest.raises(AssertionError, match=said):
        assert_judged(graph, model, data())


def test_predictions_are_compared_where_losses_are_alike() -> None:
    class Sign(Model):
        def __init__(self) -> None:
            super().__init__()
            self.sign = 1.0

        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(x * self.sign, y * 0, "squared_error")

    model = Sign()
    given = [(torch.ones(2), torch.ones(2))]
    graph = compile(model, *given[0])
    assert_judged(graph, model, given)
    model.sign = -1.0
    with pytest.raises(AssertionError, match="instance 0, loss 'loss': no prediction is within"):
        assert_judged(graph, model, given)


def test_a_graph_that_is_not_played_in_waves_is_a_failure_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once such a graph was run by messages, whose results are right, and nobody noticed."""
    monkeypatch.setattr(inline, "choose_engine", lambda *a, **k: Engine(False, "node 'a' is too strange"))
    model = Fickle().double()
    graph = compile(model, *data()[0])
    for check in (assert_compiled, lambda model, data, graph: compiled_gradients(graph, data)):
        with pytest.raises(AssertionError, match="run message by message: node 'a' is too strange"):
            check(model, data(), graph=graph)
    with pytest.raises(AssertionError, match="run message by message: node 'a' is too strange"):
        assert_judged(graph, model, data())
    assert_compiled(model, data(), graph=graph, waves=False)


def test_instances_that_no_wave_played_are_a_failure() -> None:
    model = Fickle().double()
    graph = compile(model, *data()[0])
    with Inline(graph) as runtime:
        runtime.train(graph.instances(data()))
        assert_played(runtime, 3)
        with pytest.raises(AssertionError, match="3 instances were played in waves, of 4"):
            assert_played(runtime, 4)


def test_a_graph_is_run_in_waves_of_several_orders_and_by_messages() -> None:
    given = {"max_active_keys": 2, "max_batch": 3, "schedule": "sweep", "seed": 9}
    in_waves = [way for way in ways(given) if way["waves"]]
    (messages,) = (way for way in ways(given) if not way["waves"])
    assert messages == {**given, "waves": False}
    assert in_waves[0] == {"max_active_keys": 2, "schedule": "sweep", "seed": 9, "waves": True}
    assert {way["schedule"] for way in in_waves} == {"sweep", "fifo", "random"}
    assert {way.get("wave_size") for way in in_waves} == {None, 1, 2}
    assert len({way["seed"] for way in in_waves if way["schedule"] == "random"}) == 1
    assert list(ways({"waves": False, "schedule": "fifo"})) == [{"waves": False, "schedule": "fifo"}]
