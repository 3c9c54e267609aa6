"""Sampling: so many operations of each worker in every second, and all of them where there are fewer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ampnet.events.log import FORWARD, Announcer, Begin, Event, EventLog, Operation, Played, Pump, Updated, Wave
from ampnet.events.sampling import SAMPLED, Sampling, size_of
from tests.events.runs import epoch, runtime, update


class Sampled(EventLog):
    """A listener that wants a part."""

    def __init__(self, most: int, every: float = 1.0) -> None:
        super().__init__()
        self.sampling = Sampling(most, every)


def updated(at: float = 0.0) -> Updated:
    return Updated(at, 0.0, "w", "n", 1, 1, "full", "messages", 1)


def told(sampling: Sampling, times: Sequence[float]) -> list[float]:
    """Of operations at these times, those that are told."""
    found = []
    for now in times:
        if sampling.open(now):
            sampling.spend(updated())
            found.append(now)
    return found


def test_a_fast_run_is_told_in_part_and_a_slow_one_whole() -> None:
    """
    every 0.1 s, 3 told:   0.0 0.1 0.2 .......... 1.0 1.1 1.2 ..........
    every 0.5 s:           0.0 0.5                1.0 1.5
    """
    fast = [round(0.1 * k, 1) for k in range(20)]
    assert told(Sampling(3), fast) == [0.0, 0.1, 0.2, 1.0, 1.1, 1.2]
    slow = [0.5 * k for k in range(8)]
    assert told(Sampling(3), slow) == slow


def test_what_is_too_much_is_taken_off_the_next_periods() -> None:
    operations = [Operation(f"n{i}", 0, 0, FORWARD, 0.0, 0.0, 1, 1, None, 0, False) for i in range(11)]
    played = Played.of("w", 1, True, operations)
    sampling = Sampling(4)
    assert sampling.open(0.0)
    sampling.spend(played)
    assert not sampling.open(0.9)
    closed = [period for period in range(1, 40) if not sampling.open(period + 0.5)]
    assert closed == [1], "4 - 11 + 4 is below nothing, and 4 more are one"
    sampling.spend(played)
    assert sampling.open(1e6), "after a long pause there is no debt"


@pytest.mark.parametrize("given", [(0, 1.0), (5, 0.0), (5, float("nan"))])
def test_a_sample_of_nothing_is_refused(given: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="at least 1 operation in more than 0 seconds"):
        Sampling(*given)


def test_who_wants_all_gets_all() -> None:
    now = [0.0]
    part, whole = Sampled(1), EventLog()
    alone = Announcer([part], lambda: now[0])
    assert alone.samples(Updated)
    assert not alone.samples(Begin)
    assert alone.wants(Updated)
    alone(updated())
    assert not alone.wants(Updated)
    assert alone.wants(Pump), "what is not of single operations is always wanted"
    now[0] = 1.0
    assert alone.wants(Updated)
    both = Announcer([Sampled(1), whole], lambda: now[0])
    assert not both.samples(Updated)
    for _ in range(3):
        assert both.wants(Updated)
        both(updated())
    assert len(whole) == 3


@pytest.mark.parametrize("settings", [{}, {"schedule": "fifo", "wave_size": 2}, {"waves": False}])
def test_a_run_makes_only_the_events_that_are_wanted(settings: dict[str, object]) -> None:
    """One period that lasts for ever: a wave or so more than the limit, and of other events all."""
    part, whole = Sampled(40, 1e9), EventLog()
    given = {"waves": True, "max_active_keys": 8, **settings}
    runtime(update(3), listeners=[part], **given).run([epoch(400)])
    runtime(update(3), listeners=[whole], **given).run([epoch(400)])

    def operations(events: Sequence[Event]) -> int:
        return sum(size_of(event) for event in events if isinstance(event, SAMPLED))

    widest = max(size_of(event) for event in whole.events if isinstance(event, Played)) if given["waves"] else 1
    assert 40 <= operations(part.events) <= 40 + 2 * widest + 16
    assert operations(whole.events) > 10 * operations(part.events)
    others = [[type(e) for e in log if not isinstance(e, SAMPLED)] for log in (part, whole)]
    assert others[0] == others[1]
    assert (sum(isinstance(e, Wave) for e in part) > 0) == given["waves"]
