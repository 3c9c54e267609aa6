"""A graph trains the parameters that its model had when it was compiled. A model with others is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import GraphError, Inline, Model, Update, compile, native
from ampnet.lang import loss

SAMPLE = torch.ones(3), torch.tensor(1)


class Two(Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, label: Tensor) -> Any:
        scores = self.last(torch.tanh(self.first(x)))
        loss(scores, label)
        return scores


def runtime_of(model: Two) -> Inline:
    return Inline(compile(model, *SAMPLE), update=Update(partial(torch.optim.SGD, lr=0.1), 1))


def test_a_parameter_that_was_replaced_is_named() -> None:
    """Once, training went on with the old parameters, and the model stayed as it was."""
    model = Two()
    with runtime_of(model) as runtime:
        runtime.train([SAMPLE])
        model.load_state_dict(Two().state_dict(), assign=True)
        with pytest.raises(GraphError, match=r"parameter 'first.weight' of Two \(4 of 4 in all\) was replaced"):
            runtime.train([SAMPLE])


def test_a_layer_that_was_exchanged_is_named_in_predictions_too() -> None:
    model = Two()
    with runtime_of(model) as runtime:
        runtime.predict([SAMPLE])
        model.last = nn.Linear(4, 2)
        with pytest.raises(GraphError, match=r"parameter 'last.weight' of Two \(2 of 4 in all\) was replaced"):
            runtime.predict([SAMPLE])


def test_values_that_are_loaded_are_what_is_trained() -> None:
    model, other = Two(), Two()
    with runtime_of(model) as runtime:
        model.load_state_dict(other.state_dict())
        model.double().float()  # torch keeps the objects
        with native.disabled():  # to the bit where torch computes both
            assert torch.equal(runtime.predict([SAMPLE])[0], other(*SAMPLE))
        torch.testing.assert_close(runtime.predict([SAMPLE])[0], other(*SAMPLE).detach(), rtol=1e-6, atol=1e-7)
        before = model.first.weight.clone()
        runtime.train([SAMPLE])
    assert not torch.equal(model.first.weight, before)
