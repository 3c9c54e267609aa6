"""examples/figure1: the three ways to train differ as they must, and the picture has three panels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.scripts import script

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


@pytest.mark.parametrize("wait", [0.0, 1e-3])
def test_the_three_ways(wait: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imread

    picture = tmp_path / "figure1.png"
    synchronous, infrequent, amp = script("figure1").main(picture, count=48, workers=2, width=16, bucket=4, wait=wait)
    assert (synchronous.updates, infrequent.updates, amp.updates) == (12, 2, 48)
    assert synchronous.staleness == infrequent.staleness == 0.0
    assert amp.staleness > 0
    assert all(0 < share <= 1 for one in (synchronous, infrequent, amp) for share in one.busy)
    height, width = imread(picture).shape[:2]
    assert height > 0.4 * width
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert [row[:3] for row in rows] == ["(a)", "(b)", "(c)"]
