"""The tools that hold a compiled model against the eager one notice when they differ."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet.lang import Model, Seq, compile, each, loss
from ampnet.testing import assert_compiled, assert_judged, compiled_gradients, model_gradients


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
        ({"factor": 1.001, "weight": 0.0}, "mean loss of instance 0: differs by"),
        ({"weight": 2.0}, "mean loss of instance 0: differs by"),
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
