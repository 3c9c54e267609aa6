"""P9: replicas are equal after a synchronisation, and no message visits two of them. Good logs, and each fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from ampnet.events import Begin, Event, Forward, Rest, Synced, Violation, check
from ampnet.state import States
from tests.events.replicated import Script, replicated


def only_p9(events: Iterable[Event], *, complete: bool = True) -> list[Violation]:
    found = check(events, complete=complete)
    assert {v.promise for v in found} <= {"P9"}, found
    return found


def synced(events: list[Event]) -> list[int]:
    return [i for i, e in enumerate(events) if isinstance(e, Synced)]


def changed(events: list[Event], position: int, **values: Any) -> list[Event]:
    events = list(events)
    events[position] = replace(events[position], **values)  # type: ignore[arg-type]
    return events


@pytest.mark.parametrize("by_instance", [True, False])
@pytest.mark.parametrize("unit", ["messages", "instances"])
@pytest.mark.parametrize("sync", ["updates", "shared"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_good_logs_are_good(count: int, sync: str, unit: str, by_instance: bool) -> None:
    events = replicated(6, count, by_instance=by_instance, unit=unit, sync=sync)
    assert check(events) == []
    assert len(synced(events)) == 4 * count


def test_a_log_without_replicas_says_nothing_of_them() -> None:
    script = Script()
    script.add(Begin, {})
    script.add(Rest, {})
    assert check(script.events) == []


def test_other_weights_after_a_synchronisation() -> None:
    events = replicated()
    position = synced(events)[3]
    (found,) = only_p9(changed(events, position, digest=7))
    assert found.position == position
    assert found.sentence == (
        "synchronisation 2 of group 'cell' leaves node 'cell#2' with other weights than 'cell#1': digest 7, not 1002"
    )


def test_a_member_that_took_no_part_in_the_last_round() -> None:
    events = replicated()
    del events[synced(events)[-1]]
    (found,) = only_p9(events)
    assert found.sentence == "synchronisation 4 of group 'cell' was never finished: 'cell#2' took no part"
    assert isinstance(events[found.position], Rest)


def test_a_member_that_took_no_part_in_between_is_reported_once() -> None:
    events = replicated(sync="shared")
    for position in synced(events)[2], synced(events)[3]:  # first and second member in the second round
        node = events[position].node  # type: ignore[attr-defined]
        (found,) = only_p9([*events[:position], *events[position + 1 :]])
        assert found.sentence == f"node '{node}' calls its synchronisation 3 of group 'cell'; it is number 2"


def test_a_member_that_took_part_twice() -> None:
    events = replicated(sync="shared")
    position = synced(events)[3]
    (found,) = only_p9([*events[: position + 1], events[position], *events[position + 1 :]])
    assert found.sentence == "node 'cell#2' calls its synchronisation 2 of group 'cell'; it is number 3"
    assert found.position == position + 1


def test_rounds_begin_with_the_first() -> None:
    script = Script()
    script.begin()
    script.rounds = 1
    script.round()
    found = only_p9(script.end())
    assert [v.sentence for v in found] == [
        f"node '{node}' calls its synchronisation 2 of group 'cell'; it is number 1" for node in script.members
    ]


@pytest.mark.parametrize("anew", [True, False])
def test_rounds_go_on_over_runs_or_begin_anew(anew: bool) -> None:
    script = Script()
    for _ in range(2):
        script.begin()
        script.round()
        script.round()
        script.end()
        script.rounds = 0 if anew else script.rounds
    assert check(script.events) == []


def test_members_that_disagree_on_where_to_begin() -> None:
    script = Script()
    script.begin()
    script.round()
    script.end()
    script.begin()
    script.synced("cell#1", number=1)
    script.synced("cell#2", number=2)
    found = only_p9(script.end())
    assert [v.sentence for v in found] == [
        "synchronisation 2 of group 'cell' was never finished: 'cell#1' took no part",
    ]


def test_a_stranger_in_a_group() -> None:
    events = replicated()
    position = synced(events)[-1]
    found = only_p9(changed(events, position, group="other"))
    assert found[0].sentence == "node 'cell#2' was synchronised; it is no replica of a group 'other'"
    assert "'cell#2' took no part" in found[1].sentence


def test_a_run_cut_short_owes_no_round() -> None:
    """One member had got further than the other; the next run goes on from wherever it likes."""
    script = Script()
    script.begin()
    script.round()
    script.synced("cell#1", number=2)
    cut = list(script.events)
    assert only_p9(cut, complete=False) == []
    assert [v.promise for v in check(cut)] == ["P5", "P9"]
    script.begin()
    script.rounds = 2
    script.round()
    assert only_p9(script.events, complete=False) == []
    script.add(Rest, {})
    assert only_p9(script.events, complete=False) == []
    script.begin()
    script.rounds = 6
    script.round()
    assert len(only_p9(script.events, complete=False)) == 2, "after a run that came to rest they count on"


def test_a_round_that_is_open_at_rest_is_a_violation_of_a_run_that_ended() -> None:
    script = Script()
    script.begin()
    script.rounds = 1
    script.synced("cell#2")
    assert len(only_p9(script.end(), complete=False)) == 1


# -- messages


def test_an_instance_at_the_replica_of_another() -> None:
    script = Script()
    script.begin()
    script.pump(6, 7)
    script.forward(6)
    script.forward(7, "cell#1")
    script.backward(6)
    script.backward(7, "cell#1")
    script.answer(6)
    script.answer(7)
    script.update("cell#1", 2)
    script.retire(6, 7)
    (found,) = only_p9(script.end())
    assert found.position == 3
    assert found.sentence == "node 'cell#1' got (instance=7, t=0); in group 'cell' it belongs to 'cell#2'"


def test_inference_at_the_replica_of_another() -> None:
    script = Script()
    script.begin()
    script.pump(6, 7, train=False)
    script.forward(6, train=False)
    script.forward(7, "cell#1", train=False)
    script.retire(6, 7, train=False)
    (found,) = only_p9(script.end())
    assert "node 'cell#1' got (instance=7, t=0)" in found.sentence


def test_a_message_at_two_replicas() -> None:
    """Where messages are shared out by more than their instance, they are remembered while they are out."""
    script = Script(by_instance=False)
    script.begin()
    script.pump(6)
    script.forward(6)
    script.forward(6, "cell#2")
    script.backward(6)
    script.backward(6, "cell#2")
    script.answer(6)
    for node in script.members:
        script.update(node, 1, "flush")
    script.retire(6)
    (found,) = only_p9(script.end())
    assert found.position == 3
    assert found.sentence == (
        "node 'cell#2' got (instance=6, t=0), which 'cell#1' of the same group 'cell' has and has not answered"
    )


def test_a_message_that_was_answered_is_forgotten() -> None:
    script = Script(by_instance=False)
    script.begin()
    script.pump(6)
    for node in script.members:
        script.forward(6, node)
        script.backward(6, node)
        script.update(node, 1, "flush")
    script.answer(6)
    script.retire(6)
    assert check(script.end()) == []


def test_a_state_at_two_ports_of_one_replica() -> None:
    """A node with two inputs gets a state twice, and answers it twice; until then nobody else may have it."""
    states = States.of(instance=[6], t=0)
    sent = ((0, states),)
    begin = Script(by_instance=False)
    begin.begin()
    first, second = (Forward(101.0, 0.1, "w", "cell#1", port, True, states, (), (), 1, 0) for port in (0, 1))
    answered = replace(second, sent=(), answered=sent)
    stranger = replace(first, node="cell#2", worker="v", port=2)
    for events, bad in (([first, answered], 1), ([first, second], 1), ([replace(first, answered=sent)], 0)):
        found = [v for v in check([*begin.events, *events, stranger], complete=False) if v.promise == "P9"]
        assert len(found) == bad


def test_a_backward_at_the_other_replica_is_for_pairing_to_say() -> None:
    for by_instance in (True, False):
        script = Script(by_instance=by_instance)
        script.begin()
        script.pump(6)
        script.forward(6)
        script.backward(6, "cell#2")
        script.answer(6)
        script.update("cell#2", 1, "flush")
        script.retire(6)
        found = check(script.end())
        assert {v.promise for v in found} == {"P1"}
