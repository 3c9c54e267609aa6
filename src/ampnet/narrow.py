"""Narrow: whole numbers that are kept, in the smallest dtype that holds them.

States, structures and scores are int64 while they are worked with. Those of a hundred thousand instances are kept, and
most of their numbers are below 256.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampnet.state import Column

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
