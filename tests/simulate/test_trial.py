"""Trial: what is measured of a model, frozen or trained."""

from __future__ import annotations

import math

import pytest

from ampnet.simulate.trial import Measurement
from tests.replicas.small import rows
from tests.simulate.made import EACH, pipeline


@pytest.mark.parametrize("frozen", [True, False])
def test_a_trial_measures_everything(frozen: bool) -> None:
    graph = pipeline()
    measured = Measurement(graph, rows(*[1] * 40), (2, 8), {"update": None if frozen else EACH}, 0.01).run()
    assert set(measured.updates) == (set() if frozen else {"linear1", "linear2"})
    for operations in (measured.alone, measured.turns):
        for name in ("linear1", "linear2", "loss"):
            line = operations.line(name, 0, 0)
            assert line is not None
            assert 0 <= line.seconds(1, operations.rate) < 1
    assert measured.widths["linear1", 0] == 24  # three numbers of float64
    assert 0 < measured.hop < 1
    assert math.isfinite(measured.crowd)
