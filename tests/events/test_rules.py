"""A good log is tampered with: pairing, leaks, throttle and inference, each broken in every way we could think of."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ampnet.events import Backward, Begin, Forward, Pump, Retire, Return, check
from ampnet.state import States
from tests.events.tamper import at, broken, changed, good, moved, positions, with_extra, without


def test_p1_a_backward_that_never_came() -> None:
    at_relu = at(Backward, "relu")
    event = good()[at_relu]
    assert isinstance(event, Backward)
    found = broken(without(at_relu), "P1", "node 'relu', port 0,", "never got a backward")
    assert len(found) == 1
    assert found[0].position == len(good()) - 2  # at rest
    instance = int(event.received.column("instance")[0])
    assert f"instance={instance}" in found[0].sentence


def test_p1_a_backward_that_came_twice() -> None:
    position = at(Backward, "relu")
    found = broken(with_extra(position + 5, good()[position]), "P1", "node 'relu', port 0,", "answered already")
    assert [v.position for v in found] == [position + 5]


def test_p1_a_backward_before_its_forward() -> None:
    forward = at(Forward, "relu", train=True)
    event = good()[forward]
    assert isinstance(event, Forward)
    state = event.sent[0][1].row(0)
    answer = next(
        i
        for i, e in enumerate(good())
        if isinstance(e, Backward) and e.node == "relu" and state in [e.received.row(j) for j in range(len(e.received))]
    )
    found = broken(moved(answer, forward), "P1", "node 'relu'", "not been sent yet")
    assert len(found) == 1  # and not a second time for the forward


def test_p1_a_backward_under_another_state() -> None:
    position = at(Backward, "cond")
    event = good()[position]
    assert isinstance(event, Backward)
    wrong = event.received.replace(t=event.received.t + 50)
    found = broken(changed(position, received=wrong), "P1", "node 'cond'", f"t={int(wrong.t[0])}")
    assert len(found) == 2  # the foreign one, and the one that is missed


def test_p1_the_order_of_fields_is_no_matter() -> None:
    position = at(Backward, "relu")
    event = good()[position]
    assert isinstance(event, Backward)
    assert check(changed(position, received=event.received.keep("length", "t", "instance"))) == []


def test_p1_the_controller_is_a_node_too() -> None:
    # Not the answer that retires an instance: that one would be missed by more than pairing.
    position = next(i for i in positions(good(), Return) if isinstance(good()[i + 1], Forward | Backward))
    event = good()[position]
    assert isinstance(event, Return)
    broken(without(position), "P1", f"the controller, input {event.port},", "never got a backward")
    broken(with_extra(position, event), "P1", f"the controller, input {event.port},", "answered already")


def test_p5_something_held_at_rest() -> None:
    held = {"linear1.cache": 3, "queue of relu": 1}
    found = broken(changed(len(good()) - 1, held=held), "P5", "'linear1.cache' still holds 3")
    assert len(found) == 2


def test_p5_an_instance_that_never_retired() -> None:
    position = positions(good(), Retire)[-1]
    event = good()[position]
    assert isinstance(event, Retire)
    broken(without(position), "P5", f"instance {event.instances[0]} never retired")


def test_p5_an_instance_that_retired_twice_or_too_early() -> None:
    alone = [i for i, (a, b) in enumerate(pairwise(good())) if isinstance(a, Retire) and not isinstance(b, Retire)]
    position = next(i for i in alone if isinstance(good()[i - 1], Return))
    broken(with_extra(position, good()[position]), "P5", "retired without being in flight")
    broken(moved(position, position - 1), "P5", "after retirement")


def test_p5_a_run_without_an_end() -> None:
    found = broken(list(good()[:-1]), "P5", "never came to rest")
    assert len(found) == 1
    assert check(good()[:-1], complete=False) == []
    broken([*good()[:-1], *good()], "P5", "never came to rest")


def test_p6_too_many_in_flight() -> None:
    begin = good()[0]
    assert isinstance(begin, Begin)
    broken(changed(0, settings={**begin.settings, "max_active_keys": 3}), "P6", "4 instances are in flight", "is 3")


@pytest.mark.parametrize("kind", [Pump, Retire])
def test_p6_a_controller_that_cannot_count(kind: type[Pump] | type[Retire]) -> None:
    position = at(kind)
    event = good()[position]
    assert isinstance(event, Pump | Retire)
    found = broken(changed(position, in_flight=event.in_flight + 1), "P6", f"counts {event.in_flight + 1}")
    assert [v.position for v in found] == [position]


def test_p6_an_idle_pump() -> None:
    events = good()
    position = next(i for i in positions(events, Pump) if i > 100 and isinstance(events[i + 1], Forward | Backward))
    worked = events[position + 1]
    assert isinstance(worked, Forward | Backward)
    found = broken(moved(position, position + 1), "P6", f"node '{worked.node}'", "3 of 4 places")
    assert len(found) == 1


def test_p6_turns_are_taken_by_the_inline_runtime_only() -> None:
    events = good()
    position = next(i for i in positions(events, Pump) if i > 100 and isinstance(events[i + 1], Forward | Backward))
    late = moved(position, position + 1)
    late[0] = Begin(0.0, {"runtime": "processes", "max_active_keys": 4})
    assert check(late) == []


def inference_state() -> States:
    event = good()[at(Forward, "linear1", train=False)]
    assert isinstance(event, Forward)
    return event.received.slice(0, 1)


def test_p10_a_backward_for_an_inference_instance() -> None:
    state = inference_state()
    foreign = Backward(0.0, 0.0, "inline", "linear1", 0, state, (), 1, 0, 1, ((0, 1),))
    position = at(Forward, "linear1", train=False) + 1
    found = broken(with_extra(position, foreign), "P10", "node 'linear1' got a backward", state.describe())
    assert len(found) == 1


def test_p10_a_backward_that_mixes_training_and_inference() -> None:
    position = at(Backward, "relu")
    event = good()[position]
    assert isinstance(event, Backward)
    mixed = States.merge([event.received, inference_state()])
    broken(changed(position, received=mixed), "P10", "node 'relu'", inference_state().describe())


def test_p10_an_answer_to_inference() -> None:
    position = at(Forward, "linear1", train=False)
    event = good()[position]
    assert isinstance(event, Forward)
    state = event.received
    broken(changed(position, answered=((0, state),)), "P10", "node 'linear1' answered inference", state.describe())
    broken(with_extra(position + 1, Return(0.0, 1, state)), "P10", "the controller got an answer", state.describe())


def test_p10_training_on_an_inference_instance() -> None:
    found = check(changed(at(Forward, "linear1", train=False), train=True))
    assert {v.promise for v in found} == {"P1", "P10"}  # what it sent is not answered, of course
    assert "node 'linear1' trained on inference" in next(v.sentence for v in found if v.promise == "P10")
