"""examples/asynchrony_grid: every pair of settings is measured, and the picture shows what was reached."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.scripts import script

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def test_a_small_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from matplotlib.image import imread

    out = tmp_path / "grid.png"
    small = ["--replicas=2", "--keys=2,4", "--frequencies=1,2", "--train-size=1000", "--valid-size=200", "--hidden=16"]
    points = script("asynchrony_grid").main([*small, "--epochs=2", "--target=0.05", f"--out={out}"])
    assert [(p.max_active_keys, p.min_update_frequency) for p in points] == [(2, 1), (4, 1), (2, 2), (4, 2)]
    assert all(p.speed > 0 and p.seconds > 0 and p.sequences in (1000, 2000) for p in points)
    assert all(p.reached == (p.best >= 0.05) for p in points)
    assert imread(out).shape[1] > 1000
    written = json.loads(out.with_suffix(".json").read_text())
    assert [p["max_active_keys"] for p in written["points"]] == [2, 4, 2, 4]
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_what_is_not_reached_is_named_and_not_drawn(tmp_path: Path) -> None:
    grid = script("asynchrony_grid")
    points = [grid.Point(2, 1, True, 0.97, 1000, 1.0, 900.0), grid.Point(4, 1, False, 0.5, 4000, 2.0, 1800.0)]
    for some in (points, points[1:]):
        out = tmp_path / f"{len(some)}.png"
        grid.draw(some, out, 0.96, 2)
        assert out.stat().st_size > 10_000


def test_keys_that_are_no_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script("asynchrony_grid").main(["--keys", "2,x"])
    assert "give whole numbers parted by commas" in capsys.readouterr().err
