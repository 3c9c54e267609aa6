"""Updates (P8) and staleness (P7) in waves: a good log is tampered with, and what is wrong is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ampnet.events import Event, Played, StalenessMeter, Updated, check, staleness_of
from ampnet.events.log import BACKWARD, COLLECT, FORWARD, Worked
from tests.events.waved import (
    Unit,
    WaveScript,
    changed_operation,
    first_of,
    interleaved,
    only,
    sequential,
    without_operation,
)


def updates(events: Sequence[Event], node: str, reason: str = "full") -> list[int]:
    return [i for i, e in enumerate(events) if isinstance(e, Updated) and (e.node, e.reason) == (node, reason)]


def with_update(events: Sequence[Event], position: int, **values: object) -> list[Event]:
    out = list(events)
    out[position] = replace(out[position], **values)  # type: ignore[arg-type]
    return out


# P8, messages


def test_a_full_update_holds_at_least_the_frequency_and_all_that_came_in() -> None:
    """Nine rows a wave at readout: the third wave fills a counter of 24."""
    log = sequential(waves=6)
    first, *_ = updates(log, "readout")
    event = log[first]
    assert isinstance(event, Updated)
    assert (event.count, event.frequency) == (27, 24)
    said = "node 'readout', update 1 (full) counts 26 messages; 27 came in since the one before"
    only(with_update(log, first, count=26), "P8", said)
    only(with_update(log, first, frequency=28), "P8", "a full one holds at least min_update_frequency=28")
    only(with_update(log, first, reason="late"), "P8", "only a replica may")


def test_an_update_that_did_not_happen() -> None:
    log = sequential(waves=12)
    second = updates(log, "readout")[1]
    found = check([*log[:second], *log[second + 1 :]])
    assert {v.promise for v in found} == {"P7", "P8"}, "the versions know of it"
    overdue = next(v for v in found if v.promise == "P8")
    assert overdue.sentence.startswith(
        "node 'readout' is played in wave 7 of worker 'worker0' (port 0, round 0) without an update after wave 6 of "
        "worker 'worker0': 27 gradients came in; min_update_frequency is 24"
    )
    assert isinstance(log[overdue.position + 1], Played)


def test_an_update_that_comes_too_late() -> None:
    """It is made after the node was played in the next wave."""
    run = WaveScript(frequency=9)
    run.begin()
    for i in range(3):
        run.pump(i)
    first, second, third = (run.wave(i) for i in range(3))
    run.play(first)
    run.play(second, 5)
    run.play(third)
    run.play(second)
    log = run.end()
    assert check(log) == []
    which = updates(log, "cell")[1]
    later = next(i for i in range(which, len(log)) if isinstance(log[i], Played) and "cell" in log[i].nodes)  # type: ignore[attr-defined]
    moved = [*log[:which], *log[which + 1 : later + 1], log[which], *log[later + 1 :]]
    assert "without an update after wave 3" in first_of(check(moved), "P8")


def test_a_node_with_two_ports_waits_for_both() -> None:
    """Its counter is full after the first port is collected; an update there is too early."""
    run = WaveScript(frequency=3)
    run.begin()
    run.pump(0)
    run.pump(1)
    run.play(run.wave(0))
    run.play(run.wave(1))
    log = run.end()
    assert check(log) == []
    first, second = updates(log, "cell")
    run = WaveScript(frequency=3)
    run.begin()
    run.pump(0)
    key = run.wave(0)
    steps = next(
        i for i, op in enumerate(run.waves[key].steps) if (op.node, op.port, op.direction) == ("cell", 1, COLLECT)
    )
    run.play(key, steps + 1)
    run.update("cell", "worker0")
    run.play(key)
    early = run.end()
    said = "node 'cell' made a full update before its last collect of wave 1 of worker 'worker0'"
    assert said in first_of(check(early), "P8")
    assert first < second


def test_a_flush_holds_less_than_the_frequency() -> None:
    log = sequential(waves=4)
    (flush,) = updates(log, "readout", "flush")
    event = log[flush]
    assert isinstance(event, Updated)
    assert event.count == 9
    only(with_update(log, flush, frequency=9), "P8", "a flush holds at least 1 and fewer than min_update_frequency=9")
    only([*log[:flush], *log[flush + 1 :]], "P8", "node 'readout' has 9 gradients left over after the epoch")


def test_a_collect_that_is_not_counted() -> None:
    log = without_operation(sequential(waves=6), "readout", COLLECT, skip=1)
    found = check(log)
    assert {v.promise for v in found} == {"P1", "P8"}
    assert "update 1 (full) counts 27 messages; 18 came in since the one before" in first_of(found, "P8")


def test_skipped_messages_do_not_count() -> None:
    """A collect may hold fewer messages than its backwards; the update holds what was collected."""
    log = changed_operation(sequential(waves=6), "readout", COLLECT, {"messages": 7}, skip=0)
    first, *_ = updates(log, "readout")
    assert check(with_update(log, first, count=25)) == []


# P8, instances


def test_instances_are_counted_by_wave() -> None:
    """Three a wave, and four are waited for: every update holds six."""
    log = sequential("instances", waves=6, frequency=4)
    full = updates(log, "readout")
    assert [log[i].count for i in full] == [6, 6, 6]  # type: ignore[attr-defined]
    only(with_update(log, full[1], count=7), "P8", "update 2 (full) counts 7 instances; 6 were counted since the one")
    only(with_update(log, full[1], count=3), "P8", "a full one holds at least min_update_frequency=4")
    assert check(with_update(log, full[1], count=5)) == [], "an instance may have been skipped"


def test_a_node_without_a_gradient_counts_the_wave_too() -> None:
    """``rare`` has one in every third wave: it is full with the second, in which it has none."""
    log = sequential("instances", waves=6, frequency=4)
    rare = updates(log, "rare")
    assert [log[i].count for i in rare] == [6, 6]  # type: ignore[attr-defined]
    before = next(log[i] for i in range(rare[0] - 1, 0, -1) if isinstance(log[i], Played))
    assert before.wave == 2  # type: ignore[attr-defined]
    assert "rare" not in before.nodes  # type: ignore[attr-defined]
    only(with_update(log, rare[0], count=9), "P8", "6 were counted")


def test_an_overdue_update_that_counts_instances() -> None:
    """The next update counts all of them, so none was skipped, and it should have come before."""
    log = sequential("instances", waves=9, frequency=4)
    second, third, *_ = updates(log, "readout")[1:]
    late = [*log[:second], *log[second + 1 :]]
    where = late.index(log[third])
    late[where] = replace(log[third], count=12, version=2)  # type: ignore[call-arg]
    found = [v for v in check(late) if v.promise == "P8"]
    assert "without an update after wave 4 of worker 'worker0': 6 instances came in" in found[0].sentence
    late[where] = replace(log[third], count=9, version=2)  # type: ignore[call-arg]
    assert not [v for v in check(late) if "without an update" in v.sentence], "some may have been skipped"


def test_an_update_without_a_gradient() -> None:
    log = sequential("instances", waves=6, frequency=4)
    first, second = updates(log, "readout")[:2]
    event = log[first]
    assert isinstance(event, Updated)
    log.insert(first + 1, replace(event, version=2, reason="flush", count=1))
    assert "no gradient came in since the one before" in first_of(check(log), "P8")
    assert second > first


@pytest.mark.parametrize("unit", ["messages", "instances"])
def test_replicas_update_late_and_are_synchronised(unit: Unit) -> None:
    """Each counts its own instances. One that waited for the others updates after the synchronisation."""
    run = WaveScript(unit, 4, copies=2)
    run.begin()
    for i in range(4):
        numbers = (4 * i, 4 * i + 2) if i % 2 == 0 else (4 * i + 1, 4 * i + 3)
        run.pump(*numbers)
        run.frequency = 1000 if i < 2 else 4  # no update in the first two: both wait
        run.play(run.wave(*numbers, worker=i % 2))
        if i == 1:
            run.frequency = 4
            run.round(1)
            for node in ("cell", "readout"):
                for copy in (1, 2):
                    if unit == "messages":
                        run.update(f"{node}#{copy}", f"worker{copy - 1}", "late")
    log = run.end()
    assert [v for v in check(log) if v.promise != "P9"] == []


# P7


@pytest.mark.parametrize("copies", [1, 2])
def test_staleness_is_counted_from_operations(copies: int) -> None:
    log = interleaved("messages", 5, 16, copies)
    counted, meter = staleness_of(log), StalenessMeter()
    for event in log:
        if isinstance(event, Worked):
            meter(event)
    assert counted == meter.nodes()
    assert max(found.max for found in counted.values()) >= 1, "waves were interleaved"
    assert staleness_of(sequential())["cell"].max == 0


def test_p7_a_false_staleness() -> None:
    log = list(interleaved("messages", 5, 16))
    said = "node 'cell' reports staleness {7: 9} for port 0, round 0, wave"
    only(changed_operation(log, "cell", BACKWARD, {"lag": 7}, round=0, port=0, messages=9, skip=0), "P7", said)


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD, COLLECT])
def test_p7_a_false_version(direction: int) -> None:
    log = list(interleaved("messages", 5, 16))
    found = check(changed_operation(log, "cell", direction, {"version": 40}))
    assert {v.promise for v in found} == {"P7"}
    assert "node 'cell' says version 40 at port" in found[0].sentence


def test_p7_shared_weights_of_other_processes_are_updated_in_an_unknown_order() -> None:
    run = WaveScript("messages", 4, copies=2)
    run.sync = "shared"
    run.begin()
    run.pump(0, 2)
    run.play(run.wave(0, 2))
    log = run.end()
    assert not [v for v in check(changed_operation(log, "cell#1", BACKWARD, {"lag": 3}, skip=0)) if v.promise == "P7"]
    found = check(changed_operation(log, "cell#1", BACKWARD, {"lag": -1}, skip=0))
    assert "P7" in {v.promise for v in found}
