"""The meter of replicas: load, staleness and drift; what is kept of a long run; what settings say."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from math import isnan

import pytest

from ampnet.errors import DataError
from ampnet.events import Backward, Begin, Forward, Synced, Updated, Worked, check, staleness_of
from ampnet.events.log import Announcer, Event
from ampnet.events.replicas import KEPT, GroupUse, ReplicaMeter, groups_of
from tests.events.replicated import Script, group, replicated


def measured(events: list[Event]) -> ReplicaMeter:
    meter = ReplicaMeter()
    announce = Announcer([meter])
    for event in events:
        announce(event)
    return meter


def test_load_staleness_and_drift_of_each() -> None:
    script = Script()
    script.begin()
    for instance in (0, 2, 4, 5):
        script.forward(instance)
    script.backward(0)
    script.backward(2)
    script.update("cell#1", 2)
    script.round(0.25)
    script.backward(4)
    script.backward(5)
    script.round(0.5)
    found = measured(script.end()).groups()
    assert list(found) == ["cell"]
    assert (found["cell"].sync, found["cell"].route, found["cell"].rounds) == ("updates", "instance", 2)
    first, second = found["cell"].replicas
    assert (first.node, first.messages, first.share, first.updates) == ("cell#1", 3, 0.75, 1)
    assert (first.staleness_mean, first.staleness_max) == (2 / 3, 2)
    assert (first.drift_last, first.drift_mean, first.drift_max) == (0.5, 0.375, 0.5)
    assert first.drifts == ((1, 0.25), (2, 0.5))
    assert first.seconds == pytest.approx(1e-3)
    assert (second.node, second.messages, second.share, second.updates) == ("cell#2", 1, 0.25, 0)
    assert (second.staleness_mean, second.staleness_max, second.drift_max) == (1.0, 1, 1.0)
    assert (found["cell"].drift_mean, found["cell"].drift_max) == (0.5625, 1.0)


def test_before_anything_happened() -> None:
    script = Script()
    script.begin()
    assert measured([]).groups() == {}
    use = measured(script.events).groups()["cell"]
    assert use.rounds == 0
    for one in use.replicas:
        assert (one.messages, one.updates, one.staleness_max, one.drifts) == (0, 0, 0, ())
        values = (one.share, one.staleness_mean, one.drift_last, one.drift_mean, one.drift_max)
        assert all(map(isnan, values))
    assert isnan(use.drift_mean)
    assert isnan(use.drift_max)


@pytest.mark.parametrize("sync", ["shared", "gradients"])
def test_where_nothing_drifts_there_is_no_drift(sync: str) -> None:
    use = measured(replicated(sync=sync)).groups()["cell"]
    assert use.rounds == 4
    assert isnan(use.drift_mean)
    assert all(one.drifts == () for one in use.replicas)


def test_other_nodes_are_no_replicas() -> None:
    meter = measured(replicated())
    before = meter.groups()
    meter(Worked(0.0, "w", "linear1", 2, ((0, 2),), 1))
    meter(Synced(0.0, 0.1, "w", "linear1#1", "linear1", 1, 2, True, 0, 0.1, 7))
    assert meter.groups() == before


def test_a_long_run_keeps_some_rounds() -> None:
    script = Script()
    script.begin()
    for _ in range(5000):
        script.round(0.5)
    use = measured(script.events).groups()["cell"]
    rounds = [number for number, _ in use.replicas[1].drifts]
    assert use.rounds == 5000
    assert KEPT // 2 - 1 <= len(rounds) < KEPT
    assert len({b - a for a, b in pairwise(rounds)}) == 1, "evenly chosen"
    assert rounds[-1] > 4900
    assert use.replicas[1].drift_mean == pytest.approx(1.0)


def test_runs_add_up() -> None:
    script = Script()
    for _ in range(2):
        script.begin()
        script.wave(0)
        script.rounds = 0
        script.round()
        script.end()
    use = measured(script.events).groups()["cell"]
    assert (use.rounds, use.replicas[0].messages) == (2, 4)
    assert [number for number, _ in use.replicas[0].drifts] == [1, 2]


@pytest.mark.parametrize("sync", ["updates", "shared"])
def test_it_survives_json(sync: str) -> None:
    def none(value: object) -> object:
        return None if value != value else value

    use = measured(replicated(sync=sync)).groups()["cell"]
    plain = json.loads(json.dumps(asdict(use)), parse_constant=lambda _: None)
    again = GroupUse.from_json(plain)
    pairs = zip(again.replicas, use.replicas, strict=True)
    assert all([none(v) for v in asdict(a).values()] == [none(v) for v in asdict(b).values()] for a, b in pairs)
    assert (again.group, again.rounds) == ("cell", 4)
    assert isnan(again.drift_mean) == (sync == "shared")


def test_settings_of_old_runs_have_no_replicas() -> None:
    assert groups_of({}) == groups_of({"replicas": []}) == groups_of({"replicas": None}) == []
    (found,) = groups_of({"replicas": [group("rnn", 3)]})
    assert (found.node, found.members, found.by_instance) == ("rnn", ("rnn#1", "rnn#2", "rnn#3"), True)


@pytest.mark.parametrize("broken", [7, [7], [{"node": "cell"}], [{"node": "cell", "members": 2, "by_instance": True}]])
def test_settings_that_are_none_are_said(broken: object) -> None:
    with pytest.raises(DataError, match="replicas that are none"):
        groups_of({"replicas": broken})
    for read in (check, staleness_of):
        with pytest.raises(DataError, match="replicas that are none"):
            read([Begin(0.0, {"replicas": broken})])


def test_the_meter_costs_no_event_of_a_batch_or_an_update() -> None:
    announce = Announcer([ReplicaMeter()])
    assert announce.wants(Worked)
    assert not any(map(announce.wants, (Forward, Backward, Updated)))
