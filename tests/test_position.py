"""Positions: pauses of the controller, streams that continue, and the states of tallies and numbers."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from torch.optim import SGD

from ampnet import CheckpointError, DataError, Inline, Stream, Update
from ampnet.events.check import assert_kept
from ampnet.events.log import EventLog, Pump
from ampnet.numbers import Numbers
from ampnet.position import Position
from ampnet.tally import Tally
from tests.fitting.models import graph, points

UPDATE = Update(partial(SGD, lr=0.01), 4, "instances")


def made(**settings: Any) -> Inline:
    return Inline(graph(), update=UPDATE, **{"max_active_keys": 6, "wave_size": 2, **settings})


@pytest.mark.parametrize("how", [{}, {"schedule": "sweep"}, {"waves": False, "wave_size": None}])
def test_a_pause_comes_after_exactly_so_many(how: dict[str, Any]) -> None:
    """
    pumped       0 .. 9 │ 10 .. 19 │ 20 .. 24        nothing is in flight at the marks, and no promise is broken (P6)
    """
    log, seen = EventLog(), []
    with made(listeners=[log], **how) as runtime:

        def call() -> None:
            seen.append(runtime.controller.positions())
            assert not runtime.held()
            runtime.controller.pause_after(10, call)

        runtime.controller.pause_after(10, call)
        stats = runtime.train(runtime.graph.instances(points(25)))
        assert runtime.controller.until_pause == 5  # the next run goes on counting
        runtime.controller.no_pause()
    assert [at["train"].pumped for at in seen] == [10, 20]
    assert [at["train"].retired for at in seen] == [10, 20]
    assert stats.instances == 25
    assert_kept(log)


def test_in_flight_there_is_no_pause() -> None:
    seen: list[Position] = []
    with made(schedule="sweep") as runtime:
        runtime.controller.pause_after(9, lambda: seen.append(runtime.controller.positions()["train"]), drain=False)
        stats = runtime.train(runtime.graph.instances(points(25)))
    assert stats.instances == 25
    (position,) = seen
    assert position.in_flight
    assert position.retired + len(position.in_flight) == position.pumped
    assert Position.of(json.loads(json.dumps(position.plain()))) == position


@pytest.mark.parametrize("drain", [True, False])
def test_a_stream_continues(drain: bool) -> None:
    """Each instance counts once: the statistics are those of one run, without updates."""
    seen: list[Position] = []
    frozen: dict[str, Any] = {"max_active_keys": 6, "wave_size": 2, "schedule": "sweep"}
    with Inline(graph(), **frozen) as runtime:
        instances = list(runtime.graph.instances(points(25)))
        runtime.controller.pause_after(9, lambda: seen.append(runtime.controller.positions()["train"]), drain=drain)
        whole = runtime.train(instances)
    log = EventLog()
    with Inline(graph(), listeners=[log], **frozen) as runtime:
        (rest,) = runtime.run([Stream(iter(instances), position=seen[0])])
    assert (rest.instances, rest.records, rest.loss) == (25, 25, pytest.approx(whole.loss, rel=1e-6))
    assert sum(len(event.instances) for event in log if isinstance(event, Pump)) == 25 - seen[0].retired
    with Inline(graph(), **frozen) as runtime, pytest.raises(DataError, match="ended after 5 instances, and 9 of it"):
        runtime.run([Stream(instances[:5], position=seen[0])])


def test_stopped_before_everything_is_pumped_again() -> None:
    position = Position(9, (3, 5, 8), 6, 0.5, Tally().state())
    with made(max_active_keys=1) as runtime:
        instances = list(runtime.graph.instances(points(25)))
        stats = runtime.run(
            [Stream(instances, position=position)], on_turn=lambda progress: runtime.stop(), turn_seconds=0.0
        )
    assert not stats[0].complete
    assert 7 <= stats[0].instances < 25


def test_a_tally_is_exact() -> None:
    tally = Tally({"loss": "mood"}, skipped=3)
    state = {"skipped": 3, "sums": {"mood": {"loss": 0.1 + 0.2, "rows": 7, "metrics": {"f1": float("inf")},
             "metric_rows": {"f1": 7}}}}  # fmt: skip
    tally.restore(json.loads(json.dumps(state)))
    assert tally.state() == state
    assert tally.loss == (0.1 + 0.2) / 7
    tally.predictions[0] = []
    with pytest.raises(CheckpointError, match="keeps its predictions"):
        tally.state()


def test_numbers_continue() -> None:
    for moduli, block in (((), 1), ((2,), 1), ((2, 3), 1), ((4,), 3)):
        one = Numbers(moduli, block)
        taken = [one.take() for _ in range(11)]
        state = json.loads(json.dumps(one.state()))
        one.clear()  # as at a drained point
        other = Numbers(moduli, block)
        other.restore(state)
        one.restore(state)
        assert [one.take() for _ in range(20)] == [other.take() for _ in range(20)]
        changed = Numbers([5])
        changed.restore(state)
        assert not {*taken} & {changed.take() for _ in range(20)}
    fresh = Numbers([2])
    fresh.restore(Numbers([]).state())
    assert fresh.take() == 0
