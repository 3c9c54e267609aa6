"""Sums of what nodes did: the same as their batches and updates one by one, in every runtime; and cheap."""

from __future__ import annotations

import os
from typing import Any

import pytest

from ampnet import Inline, Processes, Stream, Sync, Update, replicate
from ampnet.events.check import check
from ampnet.events.log import Announcer, Backward, Begin, Epoch, Event, EventLog, Forward, Rest, Updated, Worked
from ampnet.events.replicas import ReplicaMeter
from ampnet.events.staleness import StalenessMeter, staleness_of
from ampnet.models import by_hand
from ampnet.replicas.sync import KINDS
from tests.events.runs import HIDDEN, SCHEDULES, epoch, runtime, update
from tests.events.worked import in_sum, one_by_one, told

linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def streams() -> list[Stream]:
    """Two epochs of more instances than a worker waits for, and inference, which no sum is about."""
    return [epoch(300, 1, name="train 1"), epoch(40, 2, train=False, name="valid 1"), epoch(300, 3, name="train 2")]


def agree(log: EventLog, nodes: set[str]) -> None:
    """In the whole log, and when the run is over: nothing is told after its end."""
    found = in_sum(log)
    assert found == one_by_one(log)
    assert set(found) == nodes
    assert all(did.messages == did.lags.total() > 0 for did in found.values())
    assert not any(isinstance(e, Worked) and not (e.messages or e.updates) for e in log)
    assert isinstance(log.events[-1], Rest)
    assert sum(isinstance(e, Rest) for e in log) == sum(isinstance(e, Begin) for e in log)
    assert check(log.events) == []


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("policy", [update(3), update(2, "instances"), None], ids=["messages", "instances", "frozen"])
def test_inline(schedule: str, policy: Update | None) -> None:
    log = EventLog()
    with runtime(policy, listeners=[log], max_active_keys=5, schedule=schedule) as run:
        run.run(streams())
        run.run(streams(), together=True)
        nodes = set(run.graph.parameterised())
    agree(log, nodes)
    assert (sum(did.updates for did in in_sum(log).values()) > 0) == (policy is not None)


def test_an_epoch_that_is_over_has_been_told() -> None:
    """So a meter that is read after each epoch misses nothing."""
    log = EventLog()
    runtime(update(3), listeners=[log], max_active_keys=5).run(streams(), barrier=True)
    ends = [i for i, e in enumerate(log) if isinstance(e, Epoch)]
    assert len(ends) == 3
    for end in ends:
        assert in_sum(log.events[:end]) == one_by_one(log.events[:end])
    assert sum(isinstance(e, Worked) for e in log.events[: ends[0]]) > 3, "and now and then within it"


@linux
@pytest.mark.parametrize("policy", [update(3), update(2, "instances")], ids=["messages", "instances"])
def test_processes(policy: Update) -> None:
    log, meter = EventLog(), StalenessMeter()
    affinity = {"linear1": 0, "*": 1}
    with Processes(
        by_hand.build(HIDDEN), workers=2, affinity=affinity, update=policy, max_active_keys=5, listeners=[log, meter]
    ) as run:
        run.run(streams())
        run.run(streams())
        assert set(run.hosts.values()) == {0, 1}
        nodes = set(run.graph.parameterised())
    agree(log, nodes)
    assert len({did.worker for did in in_sum(log).values()}) == 2
    assert meter.nodes() == staleness_of(log)


def replicas(made: type[Inline] | type[Processes], sync: Any, listeners: list[Any], **how: Any) -> set[str]:
    """Train two copies of the whole model, twice. Returns the names of the nodes with parameters."""
    graph = by_hand.build(HIDDEN)
    replicate(graph, None, 2, sync=Sync(sync, every=2))
    with made(graph, update=update(3), max_active_keys=6, listeners=listeners, **how) as run:
        run.run(streams())
        run.run(streams()[:1])
    return set(graph.parameterised())


@pytest.mark.parametrize("sync", KINDS)
def test_replicas_inline(sync: str) -> None:
    log = EventLog()
    agree(log, replicas(Inline, sync, [log]))


@linux
@pytest.mark.parametrize("sync", ["shared", "gradients", "ring"])
def test_replicas_in_processes(sync: str) -> None:
    log = EventLog()
    agree(log, replicas(Processes, sync, [log], workers=2))


@linux
def test_a_meter_alone_misses_nothing() -> None:
    """Workers with whole instances to themselves say little where little is wanted."""
    log, staleness, load = EventLog(), StalenessMeter(), ReplicaMeter()
    replicas(Inline, "shared", [log])
    nodes = replicas(Processes, "shared", [staleness, load], workers=2)
    wanted = {node: did.messages for node, did in one_by_one(log).items()}
    assert {node: found.messages for node, found in staleness.nodes().items()} == wanted
    assert {one.node: one.messages for group in load.groups().values() for one in group.replicas} == wanted
    assert set(wanted) == nodes


def test_a_meter_costs_no_event_of_a_batch_or_an_update() -> None:
    announce = Announcer([StalenessMeter()])
    assert announce.wants(Backward) is False
    assert [kind for kind in (Forward, Backward, Updated, Begin, Rest) if announce.wants(kind)] == []
    assert announce.wants(Worked)


def test_sums_are_the_same_whoever_else_listens() -> None:
    alone, beside = StalenessMeter(), StalenessMeter()
    how: dict[str, Any] = {"max_active_keys": 5, "waves": False}  # a log wants messages
    runtime(update(3), listeners=[alone], **how).run(streams())
    runtime(update(3), listeners=[EventLog(), beside], **how).run(streams())
    assert alone.nodes() == beside.nodes() != {}


def test_sums_put_into_a_log_are_those_a_worker_tells() -> None:
    log = EventLog()
    runtime(update(3), listeners=[log], max_active_keys=5).run(streams())
    bare: list[Event] = [e for e in log if not isinstance(e, Worked)]
    assert in_sum(told(bare)) == in_sum(log)
    assert told(told(bare)) == told(bare)
