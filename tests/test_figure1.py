"""examples/figure1: the three ways to train differ as they must, and the picture has three panels."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
FIGURE = Path(__file__).parents[1] / "examples" / "figure1" / "figure1.py"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("example_figure1", FIGURE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_figure1"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("wait", [0.0, 1e-3])
def test_the_three_ways(wait: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imread

    picture = tmp_path / "figure1.png"
    synchronous, infrequent, amp = example().main(picture, count=48, workers=2, width=16, bucket=4, wait=wait)
    assert (synchronous.updates, infrequent.updates, amp.updates) == (12, 2, 48)
    assert synchronous.staleness == infrequent.staleness == 0.0
    assert amp.staleness > 0
    assert all(0 < share <= 1 for one in (synchronous, infrequent, amp) for share in one.busy)
    height, width = imread(picture).shape[:2]
    assert height > 0.4 * width
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert [row[:3] for row in rows] == ["(a)", "(b)", "(c)"]
