"""Sampling: a listener gets a sample of the events, so that its cost stays small however fast a run is.

    seconds      0              1              2              3          every worker's sample restarts each second
    fast run     |####          |####          |####          |####      500 operations of each, then none
    slow run     |##############|##############|##############|###       fewer than 500 a second: all of them
                  ^ made, sent and added up
                       ^ no event is made: the run pays for reading the clock

The limit counts operations, not time. So the cost is bounded if operations are short, and nothing is missed if they are
long. A wave that is played as a whole is one event: operations beyond the limit are subtracted from the next seconds.

The current second depends on the clock alone. Worker processes share it, so they are all sampled in the same interval,
without communication.
"""

from __future__ import annotations

from ampnet.events.log import Backward, Event, Forward, Played, Synced, Updated, Wave

SAMPLED: tuple[type[Event], ...] = (Forward, Backward, Wave, Played, Updated, Synced)
"""The types of events that are sampled: those of operations. A sampling listener gets all others, which are few."""
MOST, EVERY = 500, 1.0
"""The maximal number of sampled operations of a worker, and the period in seconds."""


class Sampling:
    """The sample of one worker's operations, for a listener with an attribute ``sampling``. Each process has its own
    count."""

    def __init__(self, most: int = MOST, every: float = EVERY) -> None:
        if most < 1 or not every > 0:
            raise ValueError(f"a sample is at least 1 operation in more than 0 seconds, got {most} in {every}")
        self.most, self.every = most, every
        self.kinds = SAMPLED
        self._left, self._end = most, float("-inf")
        """The number of operations left in the sample, and the end of the period."""

    def open(self, now: float) -> bool:
        """Whether operations are sampled at this time."""
        if now >= self._end:
            passed = 1 + int((now - self._end) // self.every) if self._end > float("-inf") else 1
            self._left = min(self.most, self._left + passed * self.most)
            self._end = (self.period(now) + 1) * self.every
        return self._left > 0

    @property
    def spent(self) -> bool:
        """Whether the sample of the last queried period is complete."""
        return self._left <= 0

    def spend(self, event: Event) -> None:
        """Count an event towards the sample."""
        self._left -= size_of(event)

    def period(self, now: float) -> int:
        """Returns the number of the period that this time is in."""
        return int(now // self.every)


def size_of(event: Event) -> int:
    """Returns the number of operations of an event."""
    return len(event.nodes) if isinstance(event, Played) else 1
