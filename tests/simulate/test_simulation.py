"""Simulation: throughput, staleness, bytes and memory that can be computed by hand.

Of a wave of the pipeline of `tests.simulate.made`, worker 0 has 1 ms forward and 1 ms backward, worker 1 has 3 and 3.

    one in flight    worker 0   [1]. . . . . .[1][2]. . . . . .[2]           8 ms a wave
                     worker 1      [  1 ][  1 ]     [  2 ][  2 ]

    many             worker 0   [1][2][3] . . . [1][4] . . .[2]              6 ms a wave: worker 1 is always busy
                     worker 1      [  1 ][  1 ][  2 ][  2 ][  3 ]...
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ampnet import Update
from ampnet.errors import AmpnetError, DataError
from ampnet.replicas.replicate import replicate
from ampnet.simulate import simulation as simulations
from ampnet.simulate.costs import Affine
from ampnet.simulate.machine import Hosts, Link, Machine
from ampnet.simulate.result import Result
from ampnet.simulate.simulation import WARM_UP
from tests.replicas.small import SGD
from tests.simulate.made import AT_ONCE, EACH, HOSTS, STAGES, apart, costs, machine, pipeline, simulate, simulation

SECONDS = 4.0
WAVE = 0.008
"""Seconds of a wave, on one worker or on two without overlap."""


def near(rate: float) -> Any:
    """A rate, up to one wave at the begin and the end of the measurement."""
    return pytest.approx(rate, abs=2 / (SECONDS * (1 - WARM_UP)))


def test_one_process() -> None:
    found = simulate(costs(STAGES), machine(1), processes=False)
    assert found.throughput == near(1 / WAVE)
    assert found.busy == pytest.approx(1)
    assert (found.controller, found.stale, found.bound) == (0, 0, "computing")


@pytest.mark.parametrize("flight", [1, 2, 3, 8])
def test_a_pipeline_is_as_fast_as_its_slowest_stage_if_that_is_always_busy(flight: int) -> None:
    found = simulate(costs(STAGES), machine(), HOSTS, max_active_keys=flight, wave_size=1)
    waves = 1 / WAVE if flight == 1 else 1 / 0.006
    assert found.throughput == near(waves)
    first, second = found.workers
    assert first.busy == pytest.approx(0.002 * waves, abs=0.01)
    assert second.busy == pytest.approx(0.006 * waves, abs=0.01)
    assert second.crossing + second.idle == pytest.approx(1 - second.busy)
    if flight == 1:
        assert first.crossing == pytest.approx(0.006 * waves, abs=0.01)
        assert found.bound == "waiting for rows of other workers"
    else:
        assert found.bound == "worker 1, the busiest"


@pytest.mark.parametrize("flight", [1, 2, 3, 4])
def test_staleness_of_a_pipeline(flight: int) -> None:
    """An update after every wave: the first layer sees those of the waves ahead of it, the last none."""
    found = simulate(costs({**STAGES, "linear1": 0.0005}), machine(), HOSTS, max_active_keys=flight, wave_size=1)
    first, last = found.staleness["linear1"], found.staleness["linear2"]
    assert (last.mean, last.most) == (0, 0)
    assert first.most <= flight - 1
    assert first.mean == pytest.approx(flight - 1, abs=0.1)
    assert first.updates == near(found.throughput)


def test_updates_take_time_and_instances_of_an_update_are_never_in_two_waves() -> None:
    """Waves of 4 and an update every 6: waves of 4, 2, 4, 2, and an update of 10 ms after each second one."""
    every = Update(SGD, 6, "instances")
    measured = costs(STAGES, updates={"linear1": 0.010})
    found = simulate(measured, machine(), update=every, max_active_keys=4, processes=False)
    assert found.throughput == pytest.approx(6 / (2 * WAVE + 0.010), rel=0.02)
    assert found.staleness["linear1"].updates == pytest.approx(1 / (2 * WAVE + 0.010), rel=0.02)


def test_updates_that_count_messages() -> None:
    found = simulate(costs(STAGES), machine(), update=Update(SGD, 3, "messages"), processes=False)
    assert found.staleness["linear1"].updates == pytest.approx(found.throughput / 3, rel=0.02)
    frozen = simulate(costs(STAGES), machine(), update=None, processes=False)
    assert frozen.staleness["linear1"].updates == 0
    assert frozen.throughput == near(1 / WAVE)


@pytest.mark.parametrize("latency", [0.0, 0.001, 0.002])
def test_latency_is_hidden_by_waves_in_flight_and_else_added_twice_a_wave(latency: float) -> None:
    where = apart(2, Link(latency, 1e30, 0.0))
    one = simulate(costs(STAGES), where, HOSTS, wave_size=1)
    # The note of a wave, the rows, the gradients; the controller is with worker 0, and waits for the last report.
    assert one.throughput == near(1 / (WAVE + 2 * latency))
    many = simulate(costs(STAGES), where, HOSTS, max_active_keys=8, wave_size=1)
    assert many.throughput == near(1 / 0.006)


def test_a_link_bounds_the_throughput_by_the_bytes_of_a_wave() -> None:
    """A row of 1000 bytes there, its gradient back: over 50 kB/s, 50 waves a second in each direction."""
    where = apart(2, Link(0.0, 50e3, 0.0))
    found = simulate(costs(STAGES, width=1000), where, HOSTS, max_active_keys=16, wave_size=1)
    assert found.throughput == near(50)
    assert found.links == pytest.approx({(0, 1): 50e3, (1, 0): 50e3}, rel=0.03)
    assert [one.sent for one in found.workers] == pytest.approx([50e3, 50e3], rel=0.05)
    assert "link 0 > 1" in found.text()


def test_within_a_computer_a_crossing_takes_the_processor_at_both_ends() -> None:
    """A hop of 1 ms, and 100 bytes at 100 kB/s: 2 ms at each end, in each direction. Once the bandwidth within a
    computer was read from the file, and ignored."""
    where = machine(inside=Link(0.0, 1e5, 0.001))
    found = simulate(costs(STAGES, width=100), where, HOSTS, wave_size=1)
    assert found.throughput == near(1 / (WAVE + 4 * 0.002))
    many = simulate(costs(STAGES, width=100), where, HOSTS, max_active_keys=8, wave_size=1)
    assert many.throughput == near(1 / (0.006 + 2 * 0.002))
    assert not many.links


def test_a_worker_that_sleeps_is_woken() -> None:
    """One in flight: both workers wait for longer than they spin, so each turn begins with a wake-up. Worker 0 is
    just done with a wave when the note of the next comes; worker 1 is woken by rows, worker 0 by gradients."""
    where = machine(inside=Link(0.0005, 1e30, 0.0))
    assert simulate(costs(STAGES), where, HOSTS, wave_size=1).throughput == near(1 / (WAVE + 2 * 0.0005))
    alone = simulate(costs(STAGES), where, processes=False)
    assert alone.throughput == near(1 / WAVE)  # nobody sleeps in one process


def test_replicas_scale_until_the_controller_is_busy() -> None:
    """A controller that needs 1 ms for each wave passes 1000 waves a second, whatever the workers do."""
    measured = costs(STAGES, controller=Affine(0.001))
    rates = {}
    for count in (1, 4, 16):
        found = simulate(measured, machine(), replicas=count, max_active_keys=2 * count, seconds=SECONDS)
        rates[count] = found
    assert rates[1].throughput == near(1 / WAVE)
    assert rates[4].throughput == near(4 / WAVE)
    assert rates[16].throughput == near(1000)
    assert rates[16].bound == "the controller"
    assert rates[16].controller == pytest.approx(1, abs=0.01)


def test_workers_that_share_cores_are_busy_and_slower() -> None:
    """Four replicas on two cores: twice as slow as on four, and all of them busy. Once a worker that waited for a core
    counted as idle, and few instances in flight were said to be the bound."""
    two = simulate(costs(STAGES), machine(2), replicas=4, max_active_keys=8)
    assert two.throughput == near(2 / WAVE)
    assert two.busy == pytest.approx(1, abs=0.01)
    assert two.bound == "computing"


def test_a_slice_comes_when_it_is_made_also_on_a_shared_core() -> None:
    """Both workers and the controller on one core, one in flight: nothing overlaps, so sharing costs nothing; with more
    in flight, the core is what all of them have. Once slices came as early as if every worker had a core."""
    assert simulate(costs(STAGES), machine(1), HOSTS, wave_size=1).throughput == near(1 / WAVE)
    many = simulate(costs(STAGES), machine(1), HOSTS, max_active_keys=4, wave_size=1)
    assert many.throughput == near(1 / WAVE)


def test_crowded_computers_are_slower() -> None:
    found = simulate(costs(STAGES, crowd=0.1), machine(3), replicas=2, max_active_keys=4)
    assert found.throughput == near(2 / WAVE / 1.1)
    machine_says = Machine("quiet", (Hosts(3, crowd=0.0),), AT_ONCE, AT_ONCE)
    assert simulate(costs(STAGES, crowd=0.1), machine_says, replicas=2, max_active_keys=4).throughput == near(2 / WAVE)


def test_computers_of_two_speeds() -> None:
    """Instances go to the replica with the fewest in flight, so the fast one gets three times as many."""
    where = Machine("mixed", (Hosts(4, workers=1), Hosts(1, speed=3.0)), AT_ONCE, AT_ONCE)
    found = simulate(costs(STAGES), where, replicas=2, max_active_keys=4, seconds=SECONDS)
    assert found.throughput == near(4 / WAVE)
    assert found.busy == pytest.approx(1, abs=0.01)


def test_products_at_another_rate() -> None:
    """Half of each operation is a product at 1 GFLOP/s: a core with 2 GFLOP/s does that half in half the time."""
    base = costs(STAGES)
    lines = {
        key: replace(line, fixed=line.fixed / 2, flops=1e9 * line.fixed / 2) for key, line in base.alone.lines.items()
    }
    measured = replace(base, alone=replace(base.alone, lines=lines))
    assert simulate(measured, machine(), processes=False).throughput == near(1 / WAVE)
    fast = Machine("fast", (Hosts(4, flops=2e9),))
    assert simulate(measured, fast, processes=False).throughput == near(1 / (0.75 * WAVE))
    slow = Machine("slow", (Hosts(4, speed=0.5),))
    assert simulate(measured, slow, processes=False).throughput == near(0.5 / WAVE)


def test_memory_of_waves_in_flight() -> None:
    """A row of each node, and its gradient, for each instance; the loss has none of its own here."""
    one = simulate(costs(STAGES, width=100), machine(), max_active_keys=4, processes=False, update=None)
    two = simulate(costs(STAGES, width=100), machine(), max_active_keys=8, processes=False, update=None)
    assert one.workers[0].memory > 0
    assert two.workers[0].memory == 2 * one.workers[0].memory
    few, many = (simulate(costs(STAGES, width=100), machine(), HOSTS, max_active_keys=n, wave_size=1) for n in (1, 8))
    assert few.workers[0].memory < many.workers[0].memory <= 8 * few.workers[0].memory


def test_losses_are_replayed_and_counted_once() -> None:
    where = machine(loss_every=0.5, restart=0.1)
    run = simulation(costs(STAGES), where, HOSTS, max_active_keys=4, wave_size=1)
    retired: list[int] = []
    free = run.controller.numbers.free
    run.controller.numbers.free = lambda numbers: (retired.extend(numbers), free(retired[-1:]))[1]  # type: ignore[assignment]
    found = run.run(SECONDS)
    assert found.losses > 2
    assert len(retired) == len(set(retired))
    flying = run.controller.flying
    assert len(flying) <= 4
    assert sorted([*retired, *flying]) == list(range(len(retired) + len(flying)))
    assert 0 < found.throughput < 1 / 0.006 - 5
    assert "workers lost" in found.text()


def test_the_same_seed_gives_the_same_result_and_another_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulations, "JITTER", 0.05)

    def found(seed: int) -> Result:
        return simulate(costs(STAGES), machine(), HOSTS, max_active_keys=3, wave_size=1, seed=seed, seconds=1.0)

    assert found(3) == found(3)
    assert found(3).workers != found(4).workers


def test_the_schedule_random_is_drawn_from_the_seed() -> None:
    """Once it was drawn from the number of the worker alone."""

    def found(seed: int) -> Result:
        options = {"max_active_keys": 8, "wave_size": 1, "schedule": "random"}
        return simulate(costs(STAGES), machine(), HOSTS, seed=seed, seconds=1.0, **options)  # type: ignore[arg-type]

    assert found(3) == found(3)
    assert found(3).staleness != found(4).staleness


@pytest.mark.parametrize("schedule", ["backward-first", "fifo", "sweep", "random"])
@pytest.mark.parametrize("parted", [True, False])
@pytest.mark.parametrize("replicas", [1, 2])
def test_never_more_than_max_active_keys_in_flight(schedule: str, parted: bool, replicas: int) -> None:
    hosts = HOSTS if parted else None
    options = {"max_active_keys": 6, "schedule": schedule, "replicas": replicas}
    run = simulation(costs(STAGES), machine(), hosts, **options)  # type: ignore[arg-type]
    most, pump = 0, run.controller._pump

    def pumped() -> None:
        nonlocal most
        pump()
        most = max(most, len(run.controller.flying))

    run.controller._pump = pumped  # type: ignore[method-assign]
    found = run.run(1.0)
    assert most == 6
    assert found.throughput > 0


def test_copies_of_a_node_in_one_process_get_half_of_the_instances_each() -> None:
    """Once all of them went to the first copy, which made all updates."""
    graph = pipeline()
    copies = replicate(graph, "linear1", 2, route="instance", sync="shared")
    seconds = {**STAGES, **dict.fromkeys(copies, 0.001)}
    every = Update(SGD, 4, "instances")
    run = simulation(costs(seconds), machine(), graph=graph, update=every, max_active_keys=4, processes=False)
    counted: dict[str, int] = {}
    worker = run.workers[0]
    count = worker._count

    def noted(name: str, part: object) -> bool:
        counted[name] = counted.get(name, 0) + part.own[name]  # type: ignore[attr-defined]
        return count(name, part)  # type: ignore[arg-type]

    worker._count = noted  # type: ignore[assignment, method-assign]
    run.run(1.0)
    names = [name for name in graph.parameterised() if name.startswith("linear1")]
    assert len(names) == 2
    assert counted[names[0]] == pytest.approx(counted[names[1]], abs=4)
    assert counted[names[0]] + counted[names[1]] == counted["linear2"]


def test_weights_of_replicas_that_are_not_shared() -> None:
    """Updates of one replica are none of the other's: nothing is stale. With shared weights they are."""
    shared = simulate(costs(STAGES), machine(), replicas=2, max_active_keys=4)
    apart_ = simulate(costs(STAGES), machine(), replicas=2, max_active_keys=4, sync="epoch")
    assert (apart_.stale, apart_.round > 0) == (0, True)
    assert shared.stale > 0.4
    assert shared.round == 0


def test_what_costs_nothing_or_takes_no_time_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampnet.simulate.engine.MOST", 1000)
    with pytest.raises(DataError, match="a wave has to cost more than nothing"):
        simulate(costs(dict.fromkeys(STAGES, 0.0)), machine(), processes=False)
    for seconds in (0, -1, math.inf, math.nan):
        with pytest.raises(DataError, match="a simulation takes more than"):
            simulate(costs(STAGES), machine(), seconds=seconds)


def test_a_simulation_that_stops_is_an_error() -> None:
    run = simulation(costs(STAGES), machine(), HOSTS, max_active_keys=2)
    run.send = lambda *given: None  # type: ignore[method-assign]
    with pytest.raises(AmpnetError, match="no worker can play anything"):
        run.run(1.0)


@pytest.mark.parametrize(
    ("name", "value"), [("max_active_keys", 0), ("wave_size", 0), ("replicas", 0), ("schedule", "lifo")]
)
def test_settings_are_checked(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="schedule" if name == "schedule" else name):
        simulation(costs(STAGES), machine(), **{"update": EACH, "max_active_keys": 1, name: value})  # type: ignore[arg-type]


def test_workers_of_a_team_have_nodes() -> None:
    with pytest.raises(ValueError, match=r"nodes are on the workers \[0, 2\], and 2 are simulated"):
        simulation(costs(STAGES), machine(), {**HOSTS, "linear2": 2, "loss": 2}, max_active_keys=1)
