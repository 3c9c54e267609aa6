"""Narrow numbers: the smallest dtype, and an order that does not depend on it."""

from __future__ import annotations

import numpy as np
import pytest

from ampnet.narrow import narrow, stable_order


@pytest.mark.parametrize("count", [0, 1, 99, 100, 5000])
@pytest.mark.parametrize("least", [0, -3, -(2**40), 2**40])
@pytest.mark.parametrize("spread", [1, 50, 2**16, 2**16 + 1, 2**33])
def test_an_order_is_the_same_whatever_the_numbers_take(count: int, least: int, spread: int) -> None:
    numbers = least + np.random.default_rng(0).integers(0, spread, count)
    if count > 1:
        numbers[:2] = least + spread - 1, least  # the whole range
    want = sorted(range(count), key=numbers.tolist().__getitem__)
    assert stable_order(numbers).tolist() == want


def test_an_order_of_numbers_of_one_byte() -> None:
    numbers = np.array([3, 1, 3, 2] * 50, dtype=np.uint8)
    assert stable_order(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()


def test_numbers_are_kept_as_narrow_as_they_can_be() -> None:
    assert [narrow(np.array([0, n])).itemsize for n in (255, 256, 2**16, 2**31, -1)] == [1, 2, 4, 8, 4]
