"""Sampling: a listener that looks at a part of the events, so that looking costs next to nothing however fast a run is.

    seconds      0              1              2              3          every worker begins anew at each full second
    fast run     |####          |####          |####          |####      500 operations of each, then none are told
    slow run     |##############|##############|##############|###       fewer than 500 a second: all of them
                  ^ made, sent and added up
                       ^ no event is made: the run pays for a look at the clock

The limit counts operations, not time. So the cost is bounded where operations are short, and nothing is missed where
they are long. A wave that is played as a whole is told as a whole: what it has too many is taken off the next seconds.

Which second it is depends on the clock alone. Worker processes share it, so they are all looked at in the same stretch
of time, without a word between them.
"""

from __future__ import annotations

from ampnet.events.log import Backward, Event, Forward, Played, Synced, Updated, Wave

SAMPLED: tuple[type[Event], ...] = (Forward, Backward, Wave, Played, Updated, Synced)
"""The events of single operations. All others are few, and a sampling listener gets all of them."""
MOST, EVERY = 500, 1.0
"""Operations of a worker, and the seconds in which that many are told."""


class Sampling:
    """What a listener with an attribute ``sampling`` is told of the operations of one worker. Each process has its own
    count."""

    def __init__(self, most: int = MOST, every: float = EVERY) -> None:
        if most < 1 or not every > 0:
            raise ValueError(f"a sample is at least 1 operation in more than 0 seconds, got {most} in {every}")
        self.most, self.every = most, every
        self.kinds = SAMPLED
        self._left, self._end = most, float("-inf")
        """Operations that may still be told, and when the period ends."""

    def open(self, now: float) -> bool:
        """Whether operations are told at this time."""
        if now >= self._end:
            passed = 1 + int((now - self._end) // self.every) if self._end > float("-inf") else 1
            self._left = min(self.most, self._left + passed * self.most)
            self._end = (self.period(now) + 1) * self.every
        return self._left > 0

    @property
    def spent(self) -> bool:
        """Whether no more are told in the period that was asked about last."""
        return self._left <= 0

    def spend(self, event: Event) -> None:
        """An event was told."""
        self._left -= size_of(event)

    def period(self, now: float) -> int:
        """The number of the stretch of ``every`` seconds that this time is in."""
        return int(now // self.every)


def size_of(event: Event) -> int:
    """How many operations an event tells of."""
    return len(event.nodes) if isinstance(event, Played) else 1
