"""A good log is tampered with: the update rule. That of replicas: test_replica_updates.py."""

from __future__ import annotations

import pytest

from ampnet.events import Backward, Epoch, Event, Updated, check
from ampnet.state import States
from tests.events.tamper import Unit, at, broken, changed, good, positions, without


@pytest.mark.parametrize("unit", ["messages", "instances"])
@pytest.mark.parametrize("reason", ["full", "flush"])
def test_p8_a_false_count(unit: Unit, reason: str) -> None:
    position = at(Updated, "linear1", unit=unit, reason=reason)
    event = good(unit)[position]
    assert isinstance(event, Updated)
    wrong = event.count + 1
    found = broken(changed(position, unit=unit, count=wrong), "P8", "node 'linear1'", f"counts {wrong} {unit}")
    assert [v.position for v in found] == [position]


@pytest.mark.parametrize("unit", ["messages", "instances"])
def test_p8_another_frequency(unit: Unit) -> None:
    position = at(Updated, "embedding", unit=unit, reason="full")
    broken(changed(position, unit=unit, frequency=20), "P8", "node 'embedding'", "min_update_frequency=20")


def test_p8_a_flush_that_is_full() -> None:
    broken(changed(at(Updated, "linear1", reason="full"), reason="flush"), "P8", "node 'linear1'", "a flush holds")


def test_p8_a_version_that_jumps() -> None:
    position = at(Updated, "linear2")
    event = good()[position]
    assert isinstance(event, Updated)
    found = broken(changed(position, version=event.version + 3), "P8", "node 'linear2'", f"number {event.version}")
    assert len(found) == 1


def test_p8_a_gradient_too_many() -> None:
    position = at(Backward, "linear2")
    event = good()[position]
    assert isinstance(event, Backward)
    broken(changed(position, gradients=event.gradients + 20), "P8", "node 'linear2'")


@pytest.mark.parametrize("unit", ["messages", "instances"])
def test_p8_an_update_that_did_not_happen(unit: Unit) -> None:
    found = check(without(at(Updated, "linear1", unit=unit, reason="full"), unit))
    assert {v.promise for v in found} == {"P7", "P8"}  # the staleness that was reported knows of it
    overdue = [v for v in found if "without an update" in v.sentence]
    assert len(overdue) == 1
    assert "node 'linear1'" in overdue[0].sentence


@pytest.mark.parametrize("unit", ["messages", "instances"])
def test_p8_leftovers_after_the_last_epoch(unit: Unit) -> None:
    last = positions(good(unit), Updated, lambda e: e.node == "linear1")[-1]
    event = good(unit)[last]
    assert isinstance(event, Updated)
    assert event.reason == "flush"
    found = broken(without(last, unit), "P8", "node 'linear1'", "left over after the epoch")
    assert len(found) == 1


def test_p8_leftovers_before_the_first_update() -> None:
    """A node that has not updated may be frozen; when it updates later on, it was not."""
    states = [States.of(instance=i) for i in range(4)]
    backward = [Backward(0.0, 0.0, "w", "linear1", 0, s, (), 1, 0, 1, ((0, 1),)) for s in states]
    over = Epoch(0.0, "train", True, 0.5, {})
    events: list[Event] = [backward[0], over, backward[1], over]
    assert not [v for v in check(events) if v.promise == "P8"]
    events += [backward[2], Updated(0.0, 0.0, "w", "linear1", 1, 3, "full", "messages", 3)]
    found = [v for v in check(events) if v.promise == "P8"]
    assert [v.position for v in found] == [1, 3]
    assert "node 'linear1' has 1 gradients left over after the epoch of stream 'train'" in found[0].sentence
