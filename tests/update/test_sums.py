"""Sums: what was applied is written over by whoever adds next, and whoever reads sees zeros until then."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet.nodes import Linear
from ampnet.update.sums import Sums


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, width, dtype=torch.float64, generator=made) for width in (3, 5))  # type: ignore[return-value]


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=20))
def test_the_sums_are_those_since_the_last_update(given_: list[tuple[int, bool]]) -> None:
    sums, want = Sums([torch.zeros(3, 5, dtype=torch.float64)]), torch.zeros(3, 5, dtype=torch.float64)
    for seed, (count, applied) in enumerate(given_):
        if applied:
            sums.forget()
            want.zero_()
        g, x = rows(count, seed)
        sums.add_whole(g, x)
        want += g.t() @ x
    sums.settle()
    torch.testing.assert_close(sums[0], want)


@pytest.mark.parametrize("how", ["reset", "rebind", "adopt"])
def test_an_updater_keeps_nothing_of_what_it_drops(how: str) -> None:
    node = Linear(nn.Linear(5, 3, dtype=torch.float64))
    g, x = rows(4, 0)
    updater = node.updater
    updater.adding.add_whole(g, x)
    torch.testing.assert_close(updater.sums[0], g.t() @ x)
    updater.adopt(None) if how == "adopt" else getattr(updater, how)()
    assert not any(total.any() for total in updater.sums)


def test_whoever_reads_after_an_update_sees_zeros() -> None:
    sums = Sums([torch.ones(3, 5)])
    sums.forget()
    sums.settle()
    assert not sums[0].any()
