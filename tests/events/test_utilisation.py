"""Where the time went, by hand-made events with known times and by a real run."""

from __future__ import annotations

import math

import pytest

from ampnet.events.log import Backward, Begin, EventLog, Forward, Rest, Synced, Updated
from ampnet.events.utilisation import NodeUse, UpdateUse, UtilisationMeter, WorkerUse, bucket
from ampnet.state import States
from tests.events.runs import epoch, runtime, update


def _forward(
    time: float, seconds: float, messages: int, rows: int, worker: str = "w0", node: str = "linear1"
) -> Forward:
    states = States.of(instance=range(messages)) if messages else States(("instance",), [[]])
    return Forward(time, seconds, worker, node, 0, True, states, ((0, states),), (), rows, 0)


def _backward(time: float, seconds: float, messages: int, rows: int, worker: str = "w0") -> Backward:
    states = States.of(instance=range(messages))
    return Backward(time, seconds, worker, "linear1", 0, states, (), rows, 0, messages, ((0, messages),))


def test_timeline() -> None:
    """
    seconds   0         1            3              7       8           10
    w0        begin     [ forward 1 ][ forward 4   ][ back ][u]          rest
    w1                  [ relu      ]
    """
    meter = UtilisationMeter()
    for event in (
        Begin(0.0, {}),
        _forward(1.0, 2.0, 1, 3),
        _forward(1.0, 2.0, 2, 2, "w1", "relu"),
        _forward(3.0, 4.0, 5, 15),
        _backward(7.0, 1.0, 6, 18),
        Updated(8.0, 0.5, "w0", "linear1", 1, 4, "full", "messages", 4),
        Updated(8.5, 0.5, "w0", "linear1", 2, 2, "flush", "messages", 4),
        Rest(10.0, {}),
    ):
        meter(event)
    assert meter.wall == 10.0
    assert meter.nodes() == {
        ("linear1", "forward"): NodeUse(2, 6, 18, 6.0, 3.0, 9.0, 0.6, {1: 1, 4: 1}),
        ("relu", "forward"): NodeUse(1, 2, 2, 2.0, 2.0, 2.0, 0.2, {2: 1}),
        ("linear1", "backward"): NodeUse(1, 6, 18, 1.0, 6.0, 18.0, 0.1, {4: 1}),
    }
    assert meter.updates() == {"linear1": UpdateUse(2, 6, 1, 1.0, 0.1)}
    assert meter.workers() == {"w0": WorkerUse(3, 12, 2, 8.0, 0.8), "w1": WorkerUse(1, 2, 0, 2.0, 0.2)}


def test_the_time_between_runs_is_left_out() -> None:
    meter = UtilisationMeter()
    meter(Begin(0.0, {}))
    meter(_forward(0.0, 1.0, 1, 1))
    meter(Rest(2.0, {}))
    meter(Begin(100.0, {}))
    meter(_forward(100.0, 3.0, 1, 1))
    assert meter.wall == 5.0  # the second run is under way: up to the end of its latest event
    assert meter.workers()["w0"].share == 4.0 / 5.0
    meter(Begin(200.0, {}))  # and was cut short
    meter(Rest(201.0, {}))
    assert meter.wall == 6.0


def test_before_anything_happened() -> None:
    meter = UtilisationMeter()
    assert (meter.wall, meter.nodes(), meter.updates(), meter.workers()) == (0.0, {}, {}, {})
    meter(_forward(5.0, 0.0, 0, 0))  # a listener that joined late, and an empty batch
    use = meter.nodes()["linear1", "forward"]
    assert use.histogram == {0: 1}
    assert math.isnan(use.share)


@pytest.mark.parametrize(("size", "lower"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (1000, 512)])
def test_buckets_are_powers_of_two(size: int, lower: int) -> None:
    assert bucket(size) == lower


def test_a_real_run_adds_up() -> None:
    log, meter = EventLog(), UtilisationMeter()
    made = runtime(update(10), max_active_keys=4, listeners=[log])
    made.run([epoch(seed=1), epoch(20, 2, train=False, name="validate")])
    for event in log:
        meter(event)
    nodes, worker, counts = meter.nodes(), meter.workers()["inline"], made.counts()
    assert (worker.invocations, worker.messages) == (counts.invocations, counts.messages)
    assert sum(n.invocations for n in nodes.values()) == counts.invocations
    assert sum(n.messages for n in nodes.values()) == counts.messages
    assert all(sum(n.histogram.values()) == n.invocations for n in nodes.values())
    assert {node for node, _ in nodes} == set(made.graph.nodes)
    updates = meter.updates()
    assert sum(u.updates for u in updates.values()) == worker.updates == sum(isinstance(e, Updated) for e in log)
    assert updates["linear1"].gradients == nodes["linear1", "backward"].messages
    spent = sum(n.seconds for n in nodes.values()) + sum(u.seconds for u in updates.values())
    assert worker.seconds == pytest.approx(spent)
    assert worker.share == pytest.approx(sum(n.share for n in nodes.values()) + sum(u.share for u in updates.values()))
    assert 0 < worker.share < 1
    assert meter.wall == pytest.approx(log.events[-1].time - log.events[0].time)


def test_more_instances_in_flight_make_fuller_batches() -> None:
    def mean(keys: int) -> float:
        meter = UtilisationMeter()
        runtime(update(100), max_active_keys=keys, listeners=[meter]).run([epoch()])
        return meter.nodes()["linear1", "forward"].mean_messages

    assert mean(1) == 1.0 < mean(4) < mean(12)


def test_synchronisations_keep_a_worker_busy() -> None:
    meter = UtilisationMeter()
    meter(Begin(0.0, {}))
    meter(Synced(1.0, 3.0, "w0", "cell#1", "cell", 1, 2, True, 1, 0.1, 7))
    assert meter.wall == 4.0
    assert meter.workers() == {"w0": WorkerUse(0, 0, 0, 3.0, 0.75)}
