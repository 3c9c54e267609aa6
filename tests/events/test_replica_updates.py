"""The update rule for replicas, which may have to wait with an update: logs written by hand, good and bad."""

from __future__ import annotations

import pytest

from ampnet.events import Event, check
from tests.events.replicated import Script


def begun(**how: object) -> Script:
    script = Script(**how)  # type: ignore[arg-type]
    script.begin()
    return script


def trained(script: Script, *instances: int) -> None:
    """Forward and backward, all of them; the node is not told that they retired."""
    script.pump(*instances)
    for i in instances:
        script.forward(i)
    for i in instances:
        script.backward(i)
        script.answer(i)


def said(events: list[Event]) -> list[str]:
    found = check(events)
    assert {v.promise for v in found} <= {"P8"}, found
    return [v.sentence for v in found]


def test_a_replica_that_waits_is_not_overdue_and_updates_late() -> None:
    script = begun()
    trained(script, 0, 2)
    script.update("cell#1", 2)
    script.retire(0, 2)
    trained(script, 4, 6, 8)  # it waits
    script.retire(4, 6, 8)
    script.round()
    script.update("cell#1", 3, "late")
    assert said(script.end()) == []


@pytest.mark.parametrize(
    ("count", "frequency", "words"),
    [
        (2, 2, "update 1 (late) counts 2 messages; 3 came in since the one before"),
        (3, 4, "update 1 (late) counts 3 messages; a late one holds at least min_update_frequency=4"),
    ],
)
def test_a_false_late_update(count: int, frequency: int, words: str) -> None:
    script = begun()
    trained(script, 0, 2, 4)
    script.update("cell#1", count, "late", frequency)
    script.retire(0, 2, 4)
    assert said(script.end()) == [f"node 'cell#1', {words}"]


def test_gradients_that_came_after_those_given_stay() -> None:
    """The first had given two, and then got another; the second had given none."""
    script = begun(sync="gradients")
    trained(script, 0, 2, 4)
    script.update("cell#1", 2, "together")
    script.update("cell#2", 0, "together")
    script.round()
    script.retire(0, 2, 4)
    trained(script, 6)
    script.update("cell#1", 2, "together")
    script.update("cell#2", 0, "together")
    script.round()
    script.retire(6)
    assert said(script.end()) == []


def test_a_false_update_together() -> None:
    script = begun(sync="gradients")
    trained(script, 0, 2)
    script.update("cell#1", 3, "together")
    script.retire(0, 2)
    assert said(script.end()) == [
        "node 'cell#1', update 1 (together) counts 3 messages; 2 came in since the one before"
    ]


def test_what_was_not_given_is_left_over_at_the_end() -> None:
    script = begun(sync="gradients")
    trained(script, 0, 2)
    script.update("cell#1", 1, "together")
    script.retire(0, 2)
    assert said(script.end()) == ["node 'cell#1' has 1 gradients left over after the epoch of stream 'train'"]


@pytest.mark.parametrize("reason", ["late", "together"])
@pytest.mark.parametrize("unit", ["messages", "instances"])
def test_only_replicas_wait(unit: str, reason: str) -> None:
    script = begun(unit=unit)
    script.begin(replicas=[])
    script.events = script.events[1:]
    trained(script, 0, 2)
    script.update("cell#1", 2, reason)
    script.retire(0, 2)
    assert said(script.end()) == [f"node 'cell#1', update 1 ({reason}) counts 2 {unit}; only a replica may"]


def test_a_synchronisation_raises_the_version_where_weights_moved() -> None:
    for sync, step in (("updates", 1), ("shared", 0)):
        script = begun(sync=sync)
        trained(script, 0, 2)
        script.update("cell#1", 2)
        script.versions["cell#1"] += 1  # a step that is none
        script.round()
        trained(script, 4, 6)
        script.update("cell#1", 2)
        script.retire(0, 2, 4, 6)
        found = check(script.end())
        wrong = f"node 'cell#1' says version {2 + step} after its synchronisation; it is {1 + step}"
        assert [v.sentence for v in found if v.promise == "P8"] == [wrong]


@pytest.mark.parametrize(("runtime", "wrong"), [("inline", "1 retired since the one before"),
                                                ("processes", "with those before it, 2; 1 were pumped")])  # fmt: skip
def test_a_replica_counts_its_own_instances(runtime: str, wrong: str) -> None:
    for by_instance, count in ((True, 1), (False, 2), (True, 2)):
        script = begun(unit="instances", by_instance=by_instance)
        script.events.clear()
        script.begin(runtime=runtime)
        trained(script, 0, 1)
        if runtime == "processes":
            script.retire(0, 1)
        script.update("cell#1", count, frequency=1)
        script.update("cell#2", 2 - by_instance, frequency=1)
        if runtime == "inline":
            script.retire(0, 1)
        good = by_instance == (count == 1)
        assert said(script.end()) == ([] if good else [f"node 'cell#1', update 1 (full) counts 2 instances; {wrong}"])


@pytest.mark.parametrize("reason", ["late", "together"])
@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_instances_of_an_update_that_waited(reason: str, runtime: str) -> None:
    """No more than have retired; what is left over counts for the next, even if no further gradient comes."""
    for counts, bad in (((2, 1), 0), ((3, 0), 0), ((4, 0), 1), ((2, 2), 1)):
        script = begun(unit="instances")
        script.events.clear()
        script.begin(runtime=runtime)
        trained(script, 0, 2, 4)
        script.retire(0, 2, 4)
        script.update("cell#1", counts[0], reason)
        script.round()
        if reason == "together" and counts[1]:
            script.update("cell#1", counts[1], reason)
            script.round()
        expected = bad if reason == "together" or counts[0] > 3 else 0
        found = said(script.end())
        assert len(found) == expected, (counts, found)
        words = "retired" if runtime == "inline" else "were pumped"
        assert all(f"({reason}) counts" in sentence and words in sentence for sentence in found)


def test_processes_count_no_more_instances_than_have_retired() -> None:
    for by_instance in (True, False):
        script = begun(unit="instances", by_instance=by_instance)
        script.events.clear()
        script.begin(runtime="processes")
        trained(script, 0, 2)
        script.retire(0, left=1)
        script.update("cell#1", 2)
        script.retire(2)
        wrong = "node 'cell#1', update 1 (full) counts 2 instances; with those before it, 2; 1 have retired"
        assert said(script.end()) == ([] if by_instance else [wrong])


def test_a_worker_may_know_of_the_end_of_its_own_instances_before_the_controller() -> None:
    script = begun(unit="instances")
    script.events.clear()
    script.begin(runtime="processes")
    trained(script, 0, 2)
    script.update("cell#1", 2)
    script.retire(0, 2)
    assert said(script.end()) == []


@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_gradients_given_before_their_instance_retires_count_as_one(runtime: str) -> None:
    """The instances of those that stay may retire before the next gradient comes."""
    script = begun(unit="instances", sync="gradients", by_instance=False)
    script.events.clear()
    script.begin(runtime=runtime)
    trained(script, 0, 1, 2)
    for node in script.members:
        script.update(node, 1, "together")
    script.round()
    script.retire(0, 1, 2)
    trained(script, 3)
    script.retire(3)
    for node in script.members:
        script.update(node, 4, "together")
    script.round()
    assert said(script.end()) == []


def test_an_update_that_waited_may_come_before_the_retirement_is_told() -> None:
    script = begun(unit="instances")
    trained(script, 0, 2, 4)
    script.update("cell#1", 3, "late")
    script.round()
    script.retire(0, 2, 4)
    trained(script, 6, 8)
    script.update("cell#1", 2)
    script.retire(6, 8)
    trained(script, 10)
    script.retire(10)
    script.update("cell#1", 1, "flush")
    assert said(script.end()) == []


def test_after_an_update_that_waited_a_full_one_is_full() -> None:
    script = begun(unit="instances")
    trained(script, 0, 2, 4)
    script.update("cell#1", 2, "together")
    script.retire(0, 2, 4)
    script.update("cell#1", 1)
    assert said(script.end()) == [
        "node 'cell#1', update 2 (full) counts 1 instances; a full one holds at least min_update_frequency=2"
    ]


def test_retirements_at_once_with_a_synchronisation_between() -> None:
    """Both retirements say how many are in flight after the second."""
    script = begun()
    trained(script, 0, 2)
    script.update("cell#1", 2)
    script.retire(0)
    script.round()
    script.retire(2)
    assert said(script.end()) == []
