"""Sums: products of small batches wait, and whoever reads the sums sees them all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet.nodes import Linear
from ampnet.update.sums import ENOUGH, Sums


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, width, dtype=torch.float64, generator=made) for width in (3, 5))  # type: ignore[return-value]


def zeros() -> Sums:
    return Sums([torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)])


@given(st.lists(st.integers(0, 2 * ENOUGH), max_size=80))
def test_the_sums_are_those_of_products_made_at_once(counts: list[int]) -> None:
    sums, want_w, want_b = zeros(), *zeros()
    for seed, count in enumerate(counts):
        g, x = rows(count, seed)
        sums.add_product(g, x, 0, 1)
        want_w += g.t() @ x
        want_b += g.sum(0)
        assert sums.waiting() < 2 * ENOUGH
    sums.settle()
    assert sums.waiting() == 0
    torch.testing.assert_close(sums[0], want_w)
    torch.testing.assert_close(sums[1], want_b)


def test_small_batches_wait_for_one_another_and_large_ones_do_not() -> None:
    sums = zeros()
    sums.add_product(*rows(8, 0))
    assert sums.waiting() == 8 and not sums[0].any()
    sums.add_product(*rows(ENOUGH, 1))
    assert sums.waiting() == 8 and sums[0].any()
    for seed in range(31):
        sums.add_product(*rows(1, seed))  # so many batches that they are not kept any longer, however small
    assert sums.waiting() == 0


def test_zero_drops_what_waits() -> None:
    sums = zeros()
    sums.add_product(*rows(8, 0), 0, 1)
    sums.zero()
    sums.settle()
    assert not sums[0].any() and not sums[1].any()


@pytest.mark.parametrize("how", ["sums", "reset", "rebind", "adopt"])
def test_an_updater_never_shows_or_keeps_half_of_it(how: str) -> None:
    node = Linear(nn.Linear(5, 3, dtype=torch.float64))
    g, x = rows(4, 0)
    updater = node.updater
    updater.adding.add_product(g, x, 0, 1)
    assert updater.adding.waiting() == 4
    if how == "sums":
        torch.testing.assert_close(updater.sums[0], g.t() @ x)
        torch.testing.assert_close(updater.sums[1], g.sum(0))
        return
    updater.adopt(None) if how == "adopt" else getattr(updater, how)()
    assert updater.adding.waiting() == 0
    assert not any(total.any() for total in updater.sums)
