"""Study: one measurement, simulations of many ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampnet import GraphError
from tests.replicas.small import rows
from tests.simulate.made import STAGES, costs, machine, study


def test_ways_to_run_it() -> None:
    made, where = study(), machine()
    one = made.simulate(where, seconds=2.0)
    assert one.throughput == pytest.approx(125, rel=0.02)
    assert made.simulate(where, replicas=4, seconds=2.0).throughput == pytest.approx(500, rel=0.02)
    hosts = {"linear1": 0, "linear2": 1, "loss": 1}
    parted = made.simulate(where, workers=2, affinity=hosts, max_active_keys=4, wave_size=1, seconds=2.0)
    assert parted.throughput == pytest.approx(1000 / 6, rel=0.02)
    both = made.simulate(where, workers=4, replicas=2, affinity=hosts, max_active_keys=8, wave_size=1, seconds=2.0)
    assert both.throughput == pytest.approx(2000 / 6, rel=0.02)
    tiled = made.simulate(where, workers=2, tile={"linear2": 2}, seconds=2.0)
    copied = made.simulate(where, workers=2, replicate={"linear2": 2}, seconds=2.0)
    assert tiled.throughput > 0
    assert copied.throughput > 0
    unused = made.simulate(where, workers=3, affinity={"linear1": 2, "linear2": 0, "loss": 0}, seconds=2.0)
    assert len(unused.workers) == 2
    assert "3 workers (1 without nodes)" in unused.text()
    for options in ({"workers": 3, "replicas": 2}, {"replicas": 2, "tile": {"linear2": 2}}):
        with pytest.raises(GraphError):
            made.simulate(where, **options)  # type: ignore[arg-type]


def test_a_second_simulation_has_the_same_result() -> None:
    """Once it began with the wave at which the first one had ended."""
    made = replace(study(), instances=rows(1, 2, 3, 5), costs=costs(STAGES, row=0.001))
    found = [made.simulate(machine(), replicas=2, max_active_keys=6, seconds=0.3, seed=1) for _ in range(3)]
    made.simulate(machine(), max_active_keys=3, seconds=0.1)
    assert (
        found[0] == found[1] == found[2] == made.simulate(machine(), replicas=2, max_active_keys=6, seconds=0.3, seed=1)
    )
