"""Random programs and instances for Hypothesis."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from ampnet.testing.written.grammar import Writer, sizes
from ampnet.testing.written.instances import instance
from ampnet.testing.written.model import Program


@st.composite
def written_programs(draw: st.DrawFn, nested: int = 4, deepest: int = 3) -> Program:
    """Random programs with a maximal number of nested blocks, and a maximal depth."""
    return Writer(lambda low, high: draw(st.integers(low, high)), nested, deepest).program(3)


@st.composite
def written_instances(draw: st.DrawFn, most: int = 4) -> list[tuple[Any, ...]]:
    """Random arguments of `WrittenModel`: 1 to 3 tokens and words, 0 to 4 edges, binary trees of 1 to 4 leaves."""
    several = [sizes(lambda low, high: draw(st.integers(low, high))) for _ in range(draw(st.integers(1, most)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return [instance(rng, one) for one in several]
