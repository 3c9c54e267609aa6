"""``python -m bench.delay``: the closed forms behind its table, and its picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.delay import LAGS, REMEDIES, largest_rate, main

from tests.update.remedies.quadratic import bound


@pytest.mark.parametrize("lag", [1, 3, 8])
def test_stashed_weights_have_the_known_bound(lag: int) -> None:
    rates = np.linspace(0.5, 1.5, 401) * bound(lag)
    assert largest_rate("stash", lag, rates) == pytest.approx(bound(lag), rel=0.005)
    assert largest_rate("rate over lag, stash", lag, rates * lag) == pytest.approx(lag * bound(lag), rel=0.005)


def test_the_backward_of_other_weights_is_what_hurts_most() -> None:
    for lag in (2, 8):
        assert largest_rate("current", lag) < largest_rate("estimate", lag) < largest_rate("stash", lag)


def test_a_table_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--picture", str(tmp_path / "delay.png")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:24].strip() for line in lines[1:]] == list(REMEDIES)
    assert [len(line.split()[-len(LAGS) :]) for line in lines] == [len(LAGS)] * len(lines)
    assert (tmp_path / "delay.png").stat().st_size > 10_000
