"""A layer of GRUs over packed sequences computes what torch's does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ampnet.nodes.lengths import Lengths
from ampnet.nodes.recurrent import gru


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("counts", [[3, 1, 5, 2, 5], [1], [4, 4]])
def test_outputs_and_gradients_are_torchs(counts: list[int], layers: int, ways: int, bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.GRU(3, 4, layers, bias, bidirectional=ways == 2, dtype=torch.float64)
    packing = Lengths(np.array(counts)).packing
    x = torch.randn(sum(counts), 3, dtype=torch.float64, requires_grad=True)
    first = torch.randn(layers * ways, len(counts), 4, dtype=torch.float64, requires_grad=True)
    weights = list(module._flat_weights)
    got = gru(x, packing, first, weights, layers, ways)
    want = torch.gru(x, packing.sizes, first, weights, bias, layers, 0.0, True, ways == 2)
    factors = [torch.randn_like(t) for t in want]
    found = [
        torch.autograd.grad(sum((t * f).sum() for t, f in zip(made, factors, strict=True)), [x, first, *weights])
        for made in (got, want)
    ]
    for a, b in zip((*got, *found[0]), (*want, *found[1]), strict=True):
        torch.testing.assert_close(a, b)


def test_only_a_part_may_need_gradients() -> None:
    """The last states alone, of rows that need no gradient."""
    module, packing = nn.GRU(3, 4), Lengths(np.array([2, 3])).packing
    x, first = torch.randn(5, 3), torch.zeros(1, 2, 4)
    weights = list(module._flat_weights)
    _, last = gru(x, packing, first, weights, 1, 1)
    _, want = torch.gru(x, packing.sizes, first, weights, True, 1, 0.0, True, False)
    for a, b in zip(*(torch.autograd.grad(t.square().sum(), weights) for t in (last, want)), strict=True):
        torch.testing.assert_close(a, b)
