"""Promise P17, bounded memory: a soak of 20 seconds. The long form: ``python -m bench.soak --minutes 10``."""

from __future__ import annotations

import os

import pytest
from bench.soak import Sample, grown, soak

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@pytest.mark.slow
def test_nothing_grows_after_warm_up() -> None:
    samples, records = soak(20.0, 2, 0.5)
    assert records > 0
    assert grown(samples) == []


def test_growth_is_noticed() -> None:
    flat = [Sample(100.0, 10.0, 20, 0, 3)] * 12
    assert grown(flat) == []
    assert grown([Sample(100.0 + 3 * i, 10.0, 20, 0, 3) for i in range(12)]) == ["private grew from 116.5 to 128.5"]
    assert grown([Sample(100.0, 10.0, 20 + i // 6, 0, 3) for i in range(12)]) == ["descriptors grew from 20.5 to 21.0"]
    assert "too few" in grown(flat[:3])[0]
