"""Plan: the fastest way on a machine, within its memory and a staleness."""

from __future__ import annotations

import pytest

from ampnet import GraphError
from ampnet.placement.memory import PROCESS
from ampnet.simulate.machine import Hosts, Machine
from ampnet.simulate.plan import Plan, Planner, text
from tests.simulate.made import AT_ONCE, study


def plan(where: Machine, **options: float) -> Plan:
    return Planner(study(), where, **options).run()  # type: ignore[arg-type]


def test_a_plan_has_the_fastest_way_and_its_placement() -> None:
    box = Machine("box", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE)
    found = plan(box)
    assert found.best.throughput == pytest.approx(250, rel=0.05)
    assert found.best.words() == "--workers 2 --max-active-keys 2 --wave-size 1"
    assert found.hosts["linear1"] == found.hosts["loss"] != found.hosts["linear2"]  # 4 ms each
    assert found.speedup == pytest.approx(2, rel=0.05)
    assert "instead: " in text(found, "instances", 1.0)


def test_what_does_not_fit_is_left_out() -> None:
    """Two computers with room for one process each, or for none."""
    box = Machine("box", (Hosts(4, workers=2, memory=1.5 * PROCESS),), AT_ONCE, AT_ONCE)
    found = plan(box)
    assert found.best.workers == 1
    assert found.left_out
    assert "GB for a worker" in found.left_out[0]
    with pytest.raises(GraphError, match="nothing fits on machine 'tiny'"):
        plan(Machine("tiny", (Hosts(4, workers=2, memory=PROCESS / 2),)))


def test_what_is_too_stale_is_left_out() -> None:
    box = Machine("box", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE)
    found = plan(box, staleness=0.1)
    assert found.best.result.stale <= 0.1


def test_losses_are_not_searched() -> None:
    """A restart of 5 s in a simulation of half a second would decide everything."""
    box = Machine("box", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE, loss_every=1.0)
    assert plan(box).best.result.losses == 0
