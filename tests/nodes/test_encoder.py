"""A transformer layer on rows computes what torch's does on each sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from ampnet.nodes.encoder import encoder_layer, has_rows
from ampnet.nodes.lengths import Lengths


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("worth", [0, 100])
def test_outputs_and_gradients_are_torchs(worth: int, norm_first: bool, causal: bool) -> None:
    torch.manual_seed(0)
    counts = [3, 1, 5, 2, 5]
    module = nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, "gelu", batch_first=True, norm_first=norm_first, dtype=torch.float64
    )
    assert has_rows(module)
    x = torch.randn(sum(counts), 8, dtype=torch.float64, requires_grad=True)
    got = encoder_layer(module, x, Lengths(np.array(counts)), worth, causal)
    masks = [torch.ones(n, n, dtype=torch.bool).triu(1) if causal else None for n in counts]
    want = torch.cat([module(s[None], src_mask=m)[0] for s, m in zip(x.split(counts), masks, strict=True)])
    torch.testing.assert_close(got, want)
    factors = torch.randn_like(want)
    for a, b in zip(
        *(torch.autograd.grad((y * factors).sum(), [x, *module.parameters()]) for y in (got, want)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_layers_that_do_more_are_left_to_torch() -> None:
    class Own(nn.TransformerEncoderLayer):
        pass

    hooked = nn.TransformerEncoderLayer(8, 2)
    hooked.self_attn.register_forward_hook(lambda module, given, made: None)
    assert not has_rows(Own(8, 2))
    assert not has_rows(hooked)
    assert not has_rows(nn.Linear(2, 2))
