"""Narrow: whole numbers that are kept, in the smallest dtype that holds them, and an order of narrow ones.

States, structures and scores are int64 while they are worked with. Those of a hundred thousand instances are kept, and
most of their numbers are below 256.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampnet.state import Column, Ints

_DTYPES: tuple[type[np.integer[Any]], ...] = (np.uint8, np.uint16, np.int32, np.int64)
"""Any two of them have a common type among them, so arrays of several can be joined."""


def smallest(least: int, most: int) -> type[np.integer[Any]]:
    """Returns the smallest dtype that holds these numbers."""
    for dtype in _DTYPES[:-1]:
        kind = np.iinfo(dtype)
        if kind.min <= least and most <= kind.max:
            return dtype
    return _DTYPES[-1]


def narrow(numbers: Column) -> Column:
    """Returns the numbers in the smallest dtype."""
    if not numbers.size:
        return numbers.astype(_DTYPES[0])
    return numbers.astype(smallest(int(numbers.min()), int(numbers.max())))


_WORTH = 100
"""Fewer numbers are not worth the search for the range they are in."""


def stable_order(numbers: Column) -> Ints:
    """A stable argsort. Numbers of two bytes are counted by NumPy, wider ones are compared."""
    if len(numbers) >= _WORTH and numbers.itemsize > 2:
        least = int(numbers.min())
        if int(numbers.max()) - least < 2**16:
            numbers = numbers - least if least else numbers
            numbers = numbers.astype(np.uint16)
    return np.argsort(numbers, kind="stable")
