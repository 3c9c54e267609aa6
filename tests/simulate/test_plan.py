"""Plan: the fastest way on a machine, within its memory and a staleness."""

from __future__ import annotations

import pytest

from ampnet import DataError, GraphError
from ampnet.placement.memory import PROCESS, memory_of
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
    assert "for a worker, more than its computer has" in found.left_out[0]
    with pytest.raises(GraphError, match="nothing fits on machine 'tiny': .*; one process: needs "):
        plan(Machine("tiny", (Hosts(4, workers=2, memory=PROCESS / 2),)))


def test_a_limit_that_one_process_exceeds() -> None:
    """Once it ended the search, although the model fits on two workers."""
    given = study()
    sizes = memory_of(given.graph, dict.fromkeys(given.graph.parameterised(), given.update))
    limit = PROCESS + (max(sizes.values()) + sum(sizes.values())) // 2
    box = Machine("box", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE)
    found = Planner(given, box, memory_per_worker=limit).run()
    assert (found.best.workers, found.best.replicas) == (2, 1)
    assert any(reason.startswith("one process: ") for reason in found.left_out)


def test_slow_machines_are_simulated_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once simulations of a machine with slow products ended before a wave did."""
    found = plan(Machine("slow", (Hosts(8, workers=2, speed=1e-4),), AT_ONCE, AT_ONCE))
    assert found.best.throughput == pytest.approx(250e-4, rel=0.2)
    monkeypatch.setattr("ampnet.simulate.plan.LONGER", 0)
    with pytest.raises(DataError, match="'stone' computed fewer than 20 waves: 'speed' or 'flops'"):
        plan(Machine("stone", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE))


def test_workers_without_nodes_keep_their_places() -> None:
    """Of three workers on three computers the second has no nodes: the others are not neighbours."""
    boxes = Machine("boxes", (Hosts(1, count=3),), AT_ONCE, AT_ONCE)
    hosts = {name: 2 if name == "linear2" else 0 for name in study().graph.nodes}
    found = study().simulate(boxes, workers=3, affinity=hosts, seconds=2)
    assert [one.computer for one in found.workers] == [0, 2]
    assert {end for ends in found.links for end in ends} == {0, 2}
    assert found.setting.placed == found.to_json()["hosts"] == hosts


def test_what_is_too_stale_is_left_out() -> None:
    box = Machine("box", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE)
    found = plan(box, staleness=0.1)
    assert found.best.result.stale <= 0.1


def test_losses_are_not_searched() -> None:
    """A restart of 5 s in a simulation of half a second would decide everything."""
    box = Machine("box", (Hosts(8, workers=2),), AT_ONCE, AT_ONCE, loss_every=1.0)
    assert plan(box).best.result.losses == 0
