"""A minute of training in which a random worker is killed every few seconds (P13, P15); 30 minutes: `bench.kills`."""

from __future__ import annotations

import os

import pytest
from bench.kills import run

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@pytest.mark.timeout(300)
def test_a_minute_of_kills() -> None:
    found = run(minutes=1.0, every=4.0, size=20_000, beside=0)  # raises if an epoch does not count every instance once
    assert found["kills"] >= 5
    assert found["restarts"] >= found["kills"] - len(found["disturbed"])  # the last one may come after the end
    assert all(one["accuracy"] > 0.3 for one in found["disturbed"] if one["epochs"] >= 2)
