"""Steps of optimizers natively, beside torch's own optimizers."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import Adagrad, Adam, AdamW

from ampnet import native
from ampnet.native import calls
from ampnet.update.steps import stepper

pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")
OPTIMIZERS = {
    "adam": partial(Adam, lr=0.01),
    "adam, decay": partial(Adam, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    "adamw": partial(AdamW, lr=0.01, weight_decay=0.1),
    "adagrad": partial(Adagrad, lr=0.1),
    "adagrad, decay": partial(Adagrad, lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    mine = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((7, 5), (33,), (1,))]
    theirs = [nn.Parameter(p.detach().clone()) for p in mine]
    ours, oracle = OPTIMIZERS[name](mine), OPTIMIZERS[name](theirs)
    quick = stepper(ours)
    assert quick is not None
    before = calls.count
    for step in range(5):
        gradients = [torch.randn_like(p) for p in mine]
        for parameter, g in zip(theirs, gradients, strict=True):
            parameter.grad = g / 3
        oracle.step()
        sums = [g.clone() for g in gradients]
        quick.step(sums, 3)
        for p, q, g, total in zip(mine, theirs, gradients, sums, strict=True):
            tolerance = 1e-12 if dtype is torch.float64 else 2e-6
            torch.testing.assert_close(p.detach(), q.detach(), rtol=tolerance, atol=tolerance)
            assert torch.equal(total, g / 3), "the sums hold what was applied"
            assert float(ours.state[p]["step"]) == step + 1
    assert calls.count == before + 5, "a step is one call"


def test_a_gradient_that_is_not_finite_is_not_lost() -> None:
    weight = nn.Parameter(torch.ones(3))
    quick = stepper(Adam([weight]))
    assert quick is not None
    quick.step([torch.tensor([0.0, float("nan"), 1.0])], 1)
    assert weight.isnan().tolist() == [False, True, False]
