"""Expect: against one core, from costs alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampnet.placement.expect import CROWD, FLIGHT, PUMPED, expect
from tests.placement.synthetic import chain

HALVES = {"a": 0, "b": 0, "c": 1, "d": 1}
WAITS = 1 + 1 / (2 * 2 * FLIGHT)
"""How much longer it takes because waves queue up before the busier of two workers."""


def test_halves_are_nearly_twice_as_fast_and_crossings_cost() -> None:
    free, dear = chain(0.1, 0.1, 0.1, 0.1), chain(0.1, 0.1, 0.1, 0.1, size=1e8)
    assert expect(free, HALVES).speedup == pytest.approx(2 / (1 + CROWD) / WAITS, rel=0.01)
    assert 1 < expect(dear, HALVES).speedup < expect(free, HALVES).speedup


def test_the_busiest_worker_bounds_it_and_its_largest_node_is_named() -> None:
    found = expect(chain(0.1, 0.6, 0.1, 0.1), HALVES)
    assert (found.bound, found.worker, found.node) == ("worker", 0, "b")
    assert found.share == pytest.approx(6 / 7, rel=0.01)
    assert found.busy == pytest.approx((1 / WAITS, 2 / 7 / WAITS), rel=0.01)
    assert found.words() == "bounded by worker 0: node 'b' has 86 % of its time"
    assert found.speedup < expect(chain(0.3, 0.2, 0.2, 0.2), HALVES).speedup


def test_cores_the_controller_and_waves_in_flight_bound_it_too() -> None:
    costs = chain(0.1, 0.1, 0.1, 0.1)
    one = expect(costs, HALVES, cores=1)
    assert (one.bound, one.words()) == ("cores", "bounded by the cores")
    assert one.speedup < 1
    assert expect(costs, HALVES, in_flight=1).bound == "in flight"
    assert expect(costs, HALVES, in_flight=1).speedup < 1.01
    many = replace(costs, instances=1.0 / PUMPED)  # a second of pumping
    assert expect(many, HALVES).bound == "controller"
    assert expect(costs, HALVES, making=10.0).bound == "controller"


def test_replicas_share_out_waves() -> None:
    costs = chain(0.1, 0.1, 0.1, 0.1)
    whole = dict.fromkeys(costs.seconds, 0)
    speeds = [expect(costs, whole, replicas=n, cores=16).speedup for n in (1, 2, 4, 8)]
    assert speeds == sorted(speeds)
    assert speeds[1] > expect(chain(0.1, 0.1, 0.1, 0.1, size=1e7), HALVES).speedup  # nothing crosses
    parted = expect(costs, HALVES, replicas=2, cores=16)
    assert 0.8 * speeds[2] < parted.speedup <= speeds[2]
    assert expect(costs, whole, replicas=8, cores=4).speedup <= 4
