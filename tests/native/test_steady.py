"""Steady factors: panels of a weight are copied once in a wave, and again in the next, when it may have changed."""

from __future__ import annotations

import pytest
import torch

from ampnet import native
from ampnet.native import calls

pytestmark = pytest.mark.skipif(not native.state().native, reason="kernels are not compiled here")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(3, 17, 40), (100, 300, 128), (64, 600, 33)])
def test_products_with_kept_panels_are_the_same_to_the_bit(shape: tuple[int, int, int], turned: bool) -> None:
    m, k, n = shape
    weight = torch.randn(n, k) if turned else torch.randn(k, n)
    w = weight.t() if turned else weight
    for wave in range(5):
        calls.begin_wave()
        for _ in range(4):  # from the second wave on, the panels are kept
            x, out, plain = torch.randn(m, k), torch.empty(m, n), torch.empty(m, n)
            assert calls.product(out, x, w, steady=True)
            assert calls.product(plain, x, w)
            assert torch.equal(out, plain), f"wave {wave}"
        weight.add_(torch.randn_like(weight))  # between waves


def test_a_weight_that_changes_within_a_wave_is_not_steady() -> None:
    """What `steady` promises to the kernels, and why a player with waves that take turns does not say it."""
    w, x, out = torch.randn(64, 64), torch.randn(100, 64), torch.empty(100, 64)
    for _ in range(2):
        calls.begin_wave()
        for _ in range(3):
            calls.product(out, x, w, steady=True)
    before = out.clone()
    w.zero_()
    calls.product(out, x, w, steady=True)
    assert torch.equal(out, before), "the panels were kept"
    calls.begin_wave()
    calls.product(out, x, w, steady=True)
    assert not out.any()


def test_many_factors_do_not_disturb_each_other() -> None:
    """More than there are places to note them."""
    weights = [torch.randn(32, 32) for _ in range(300)]
    for _ in range(3):
        calls.begin_wave()
        for _ in range(2):
            for w in weights:
                x, out = torch.randn(70, 32), torch.empty(70, 32)
                assert calls.product(out, x, w, steady=True)
                torch.testing.assert_close(out, x @ w, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 5, 200), (28, 37, 200), (100, 513, 90), (300, 100, 784)])
def test_rows_that_are_not_adjacent_are_copied(shape: tuple[int, int, int]) -> None:
    """The gradient of a weight: rows of the first factor are columns of the gradients."""
    m, k, n = shape
    g, x, total = torch.randn(k, m + 3)[:, :m], torch.randn(k, n), torch.randn(m, n)
    wanted = total + g.t() @ x
    assert calls.product(total, g.t(), x, add=True)
    torch.testing.assert_close(total, wanted, rtol=1e-5, atol=1e-4)
