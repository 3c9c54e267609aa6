"""Good logs of waves pass, however their operations are interleaved; each kind of tampering is found and named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ampnet.events import Event, Played, Pump, Rest, Retire, Wave, check
from ampnet.events.log import BACKWARD, COLLECT, FORWARD, Begin
from tests.events.waved import (
    Unit,
    WaveScript,
    changed_operation,
    edited,
    find,
    first_of,
    interleaved,
    only,
    sequential,
    twice,
    without_operation,
)

LOG = sequential()


@pytest.mark.parametrize("unit", ["messages", "instances"])
@pytest.mark.parametrize("copies", [1, 2, 3])
def test_good_logs_pass(unit: Unit, copies: int) -> None:
    for seed in range(12):
        assert check(interleaved(unit, seed, 12, copies)) == []
    assert any(len(e.nodes) > 3 and not e.train for e in interleaved(unit, 0) if isinstance(e, Played))


def test_several_runs_and_runs_cut_short() -> None:
    assert check([*LOG, *sequential("instances", frequency=4)]) == []
    half = LOG[: find(LOG, "mix", FORWARD, skip=1)[0] + 1]
    assert check([*half, *LOG], complete=False) == []
    found = check([*half, *LOG])
    assert {v.promise for v in found} >= {"P1", "P5"}


# P1


def test_p1_a_forward_without_its_backward() -> None:
    log = without_operation(LOG, "mix", BACKWARD, skip=1)
    only(log, "P1", "node 'mix', port 0, round 0, in wave 2 of worker 'worker0' never got a backward")
    log = without_operation(LOG, "cell", BACKWARD, round=1, skip=1)
    assert "is collected before its last backward: round 1 is not answered" in first_of(check(log), "P1")


def test_p1_a_backward_without_its_forward() -> None:
    log = without_operation(LOG, "mix", FORWARD, skip=1)
    only(log, "P1", "node 'mix', port 0, round 0, gets a backward and was not played forward in wave 2")


def test_p1_a_backward_before_its_forward() -> None:
    _, _, op = find(LOG, "mix", BACKWARD, skip=1)
    i, j, _ = find(LOG, "mix", FORWARD, skip=1)
    log = edited(without_operation(LOG, "mix", BACKWARD, skip=1), i, lambda ops: [*ops[:j], op, *ops[j:]])
    found = check(log)
    assert "gets a backward and was not played forward" in first_of(found, "P1")
    assert {v.promise for v in found} == {"P1"}


def test_p1_twice() -> None:
    only(twice(LOG, "mix", FORWARD), "P1", "node 'mix', port 0, round 0, is played forward twice")
    only(twice(LOG, "mix", BACKWARD), "P1", "node 'mix'", "gets a backward and had it already")
    log = twice(LOG, "readout", COLLECT)
    assert "node 'readout', port 0, is collected twice" in first_of(check(log), "P1")


def test_p1_other_rows() -> None:
    log = changed_operation(LOG, "mix", BACKWARD, {"rows": 4})
    only(log, "P1", "node 'mix', port 0, round 0, gets a backward of 4 rows; its forward had 9")


def test_p1_a_backward_that_nobody_wanted() -> None:
    log = changed_operation(LOG, "mix", FORWARD, {"wanted": False})
    only(log, "P1", "node 'mix'", "gets a backward and wants none")
    log = changed_operation(LOG, "words", FORWARD, {"wanted": True})
    only(log, "P1", "node 'words', port 0, round 0, in wave 4 of worker 'worker0' never got a backward")


def test_p1_a_port_that_is_not_collected_or_without_a_reason() -> None:
    log = without_operation(LOG, "cell", COLLECT, port=1)
    assert "node 'cell', port 1, was never collected in wave 4" in first_of(check(log), "P1")
    _, _, op = find(LOG, "cell", COLLECT)
    i, _, _ = find(LOG, "words", FORWARD, skip=1)
    log = edited(LOG, i, lambda ops: [*ops, op._replace(node="mix", version=None, messages=0)])
    only(log, "P1", "node 'mix', port 0, is collected without a backward in wave 2")


def test_p1_a_port_that_goes_on_after_it_was_collected() -> None:
    _, _, op = find(LOG, "readout", FORWARD, skip=0)
    i, j, _ = find(LOG, "readout", COLLECT, skip=0)
    log = edited(LOG, i, lambda ops: [*ops[: j + 1], op._replace(round=5)])
    assert "node 'readout', port 0, round 5, is played forward after the port was collected" in first_of(
        check(log), "P1"
    )


def test_p1_more_messages_than_came() -> None:
    _, _, op = find(LOG, "readout", COLLECT)
    log = changed_operation(LOG, "readout", COLLECT, {"messages": op.messages + 1})
    assert f"is collected with {op.messages + 1} messages; its backwards brought {op.messages}" in first_of(
        check(log), "P1"
    )


# P5 and P6


def at(events: list[Event], kind: type[Event], which: int = 1) -> int:
    return [i for i, event in enumerate(events) if isinstance(event, kind)][which]


def test_p5_a_wave_that_did_not_begin() -> None:
    for which in range(4):
        i = at(LOG, Wave, which)
        log = [*LOG[:i], *LOG[i + 1 :]]
        assert "wave" in first_of(check(log), "P5")
    i = at(LOG, Wave, 3)
    assert "wave 4 of worker 'worker0' is played and has not begun" in first_of(check([*LOG[:i], *LOG[i + 1 :]]), "P5")


def test_p5_a_number_that_comes_again() -> None:
    i = at(LOG, Wave, 2)
    log = [*LOG[: i + 1], LOG[i], *LOG[i + 1 :]]
    assert "wave 3 of worker 'worker0' begins after wave 3; the numbers of waves rise" in first_of(check(log), "P5")


def test_p5_instances_that_are_not_in_flight() -> None:
    i = at(LOG, Wave, 2)
    wave = LOG[i]
    assert isinstance(wave, Wave)
    log = [*LOG[:i], replace(wave, instances=(6, 7, 99)), *LOG[i + 1 :]]
    only(log, "P5", "wave 3 of worker 'worker0' holds instance 99, not in flight")
    log = [*LOG[:i], replace(wave, instances=(0, 7, 8)), *LOG[i + 1 :]]
    only(log, "P5", "holds instance 0, not in flight")


def test_p5_an_instance_in_two_waves() -> None:
    run = WaveScript()
    run.begin()
    run.pump(0, 1, 2)
    first, second = run.wave(0, 1), run.wave(1, 2)
    run.play(first)
    run.play(second)
    found = check(run.end())
    assert "wave 2 of worker 'worker0' holds instance 1, which is in wave 1" in first_of(found, "P5")


def test_p5_a_run_that_ends_in_the_middle_of_a_wave() -> None:
    i = at(LOG, Rest, 0)
    run = WaveScript()
    run.begin()
    run.pump(0, 1)
    key = run.wave(0, 1)
    run.play(key, 8)
    found = check([*run.events, replace(LOG[i], time=run.now)])
    assert "node 'cell', port 0, round 0, and 6 more, in wave 1" in first_of(found, "P1")
    assert "instances 0, 1 never retired" in first_of(found, "P5")


def test_p6_too_many_in_flight() -> None:
    i = at(LOG, Pump, 1)
    assert isinstance(LOG[0], Begin)
    log = [Begin(LOG[0].time, {**LOG[0].settings, "max_active_keys": 2}), *LOG[1:]]
    assert "3 instances are in flight, max_active_keys is 2" in first_of(check(log), "P6")
    assert not [v for v in check(LOG) if v.promise == "P6"], "waves may wait while a place is free"
    assert isinstance(LOG[i], Pump)


# P10


def inferred() -> tuple[list[Event], int]:
    """A run with a wave for inference beside one in training; the position of the first piece of the former."""
    run = WaveScript()
    run.begin()
    run.pump(0, 1)
    run.pump(2, 3, train=False)
    first, second = run.wave(0, 1), run.wave(2, 3, train=False)
    run.play(first, 5)
    run.play(second, 5)
    run.play(first)
    run.play(second)
    events = run.end()
    assert check(events) == []
    return events, next(i for i, e in enumerate(events) if isinstance(e, Played) and not e.train)


def test_p10_a_backward_for_inference() -> None:
    events, i = inferred()
    for direction, said in ((BACKWARD, "got a backward"), (COLLECT, "was collected")):
        _, _, op = find(events, "cell", direction, skip=0)
        log = edited(events, i, lambda ops, op=op: [*ops, op])  # type: ignore[misc]
        only(log, "P10", f"node 'cell' {said} in wave 2 of worker 'worker0', which is inference")
    log = changed_operation(events, "mix", FORWARD, {"wanted": True}, wanted=False, skip=0)
    only(log, "P10", "node 'mix' wants a backward in wave 2")


def test_p10_inference_that_is_trained_on() -> None:
    events, i = inferred()
    first = at(events, Wave, 0)
    wave, pieces = events[first + 1], events[i]
    assert isinstance(wave, Wave)
    assert isinstance(pieces, Played)
    log = [*events[: first + 1], replace(wave, train=True), *events[first + 2 :]]
    found = check(log)
    assert "wave 2 of worker 'worker0' trains on inference: instances 2, 3" in first_of(found, "P10")
    only(
        [*events[:i], replace(pieces, train=True), *events[i + 1 :]],
        "P10",
        "began for inference and is played for training",
    )


# P9


def test_p9_a_wave_at_the_wrong_replica() -> None:
    log = list(interleaved("messages", 1, 8, 2))
    i = at(log, Wave, 2)
    wave, pumped = log[i], at(log, Pump, 2)
    pump = log[pumped]
    assert isinstance(wave, Wave)
    assert isinstance(pump, Pump)
    other = tuple(n + 1 for n in wave.instances)
    log[i], log[pumped] = replace(wave, instances=other), replace(pump, instances=other)
    j = next(k for k, e in enumerate(log) if isinstance(e, Retire) and e.instances == wave.instances)
    log[j] = replace(log[j], instances=other)  # type: ignore[call-arg]
    copy = int(wave.worker.removeprefix("worker"))
    only(
        log,
        "P9",
        f"#{copy + 1}' is played in wave {wave.wave} of worker '{wave.worker}', which holds instance {other[0]}",
        f"it belongs to 'cell#{2 - copy}'",
    )
