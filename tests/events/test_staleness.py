"""Staleness, as the nodes report it and as the log has it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet.events.log import Backward, Begin, Event, EventLog, Forward, Rest, Updated, Worked
from ampnet.events.staleness import Staleness, StalenessMeter, rows_of, staleness_of
from ampnet.state import States
from tests.events.runs import SCHEDULES, epoch, record, runtime, update
from tests.events.worked import told


def _forward(states: States, version: int | None, node: str = "linear1", *, train: bool = True) -> Forward:
    return Forward(0.0, 0.1, "w", node, 0, train, states, ((0, states),), (), len(states), version)


def _backward(
    states: States, version: int | None, lags: tuple[tuple[int, int], ...], node: str = "linear1"
) -> Backward:
    return Backward(0.0, 0.1, "w", node, 0, states, (), len(states), version, len(states), lags)


def _updated(version: int, node: str = "linear1") -> Updated:
    return Updated(0.0, 0.1, "w", node, version, 1, "full", "messages", 1)


def timeline() -> list[Event]:
    """
    linear1    forward m1, m2     update     backward m1     update     backward m2
    staleness                                1                          2

    The relu has no parameters, and an inference message no backward.
    """
    m1, m2 = States.of(instance=1, t=0), States.of(instance=2, t=0)
    both = States.merge([m1, m2])
    return [
        Begin(0.0, {}),
        _forward(both, 0),
        _forward(both, None, "relu"),
        _forward(States.of(instance=3, t=0), 0, train=False),
        _backward(both, None, (), "relu"),
        _updated(1),
        _backward(m1, 1, ((1, 1),)),
        _updated(2),
        _backward(m2, 2, ((2, 1),)),
    ]


def test_timeline() -> None:
    meter = StalenessMeter()
    for event in told([*timeline(), Rest(1.0, {})]):
        meter(event)
    expected = Staleness(messages=2, mean=1.5, max=2, histogram={1: 1, 2: 1})
    assert meter.nodes() == {"linear1": expected}
    assert meter.overall() == expected
    assert staleness_of(timeline()) == {"linear1": expected}


def test_the_recount_does_not_look_at_lags_or_versions() -> None:
    events: list[Event] = []
    for event in timeline():
        if isinstance(event, Forward | Backward) and event.version is not None:
            states = event.sent[0][1] if isinstance(event, Forward) else event.received
            event = (
                _forward(states, 77, train=event.train)
                if isinstance(event, Forward)
                else _backward(states, 5, ((9, 1),))
            )
        events.append(event)
    assert staleness_of(events)["linear1"].histogram == {1: 1, 2: 1}


def test_a_backward_without_its_forward_is_left_out() -> None:
    assert staleness_of(timeline()[2:]) == {}
    # A new run starts with nothing in flight: an unanswered forward of the run before is not met again.
    assert staleness_of([*timeline()[:2], Begin(1.0, {}), *timeline()[5:]]) == {}


def test_nothing_measured() -> None:
    overall = StalenessMeter().overall()
    assert (overall.messages, overall.max, overall.histogram) == (0, 0, {})
    assert math.isnan(overall.mean)


def test_a_node_that_was_only_updated_has_no_staleness() -> None:
    """A replica that gave nothing takes part in the updates of its group."""
    meter = StalenessMeter()
    meter(Worked(1.0, "w", "cell#2", 0, (), 3))
    assert meter.nodes() == {}
    meter(Worked(2.0, "w", "cell#2", 2, ((0, 1), (3, 1)), 0))
    meter(Worked(3.0, "w", "cell#2", 1, ((3, 1),), 1))
    assert meter.nodes() == {"cell#2": Staleness(messages=3, mean=2.0, max=3, histogram={0: 1, 3: 2})}


def test_equal_states_are_equal_in_any_order_of_fields() -> None:
    assert rows_of(States.of(instance=[1, 2], t=[3, 4])) == rows_of(States.of(t=[3, 4], instance=[1, 2]))
    assert rows_of(States.of(instance=[1, 2], t=[3, 4])) == (("instance", "t"), [(1, 3), (2, 4)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_reported_is_recounted(schedule: str) -> None:
    log, meter = EventLog(), StalenessMeter()
    made = runtime(update(3), max_active_keys=5, schedule=schedule, listeners=[log, meter])
    made.run([epoch(seed=1), epoch(20, 2, train=False, name="validate"), epoch(seed=3)])
    measured = meter.nodes()
    assert measured == staleness_of(log)
    assert set(measured) == {"embedding", "linear1", "linear2"}
    assert meter.overall().messages == sum(s.messages for s in measured.values())
    assert meter.overall().max == max(s.max for s in measured.values()) > 0


def test_one_instance_in_flight_is_never_stale_where_it_passes_once() -> None:
    found = staleness_of(record([epoch()], update(1), max_active_keys=1))
    assert found["linear2"].max == 0
    # Inside the loop the same instance comes by many times, and its own gradients update the node in between.
    assert found["linear1"].max > 0


def test_it_grows_with_instances_in_flight_and_falls_with_the_update_frequency() -> None:
    def mean(keys: int, frequency: int) -> float:
        return staleness_of(record([epoch()], update(frequency), max_active_keys=keys))["linear1"].mean

    assert mean(1, 4) < mean(4, 4) < mean(12, 4)
    assert mean(4, 16) < mean(4, 4) < mean(4, 1)


@settings(max_examples=12)
@given(st.integers(1, 9), st.integers(1, 30), st.integers(1, 6), st.integers(0, 2**16))
def test_any_run(keys: int, frequency: int, batch: int, seed: int) -> None:
    log, meter = EventLog(), StalenessMeter()
    made = runtime(
        update(frequency), max_active_keys=keys, max_batch=batch, schedule="random", seed=seed, listeners=[log, meter]
    )
    made.run([epoch(16, seed)])
    assert meter.nodes() == staleness_of(log)
