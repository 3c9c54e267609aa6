"""Pumped: instances of one stream that were pumped together, for one team, and what each of them waits for.

    pumped together      4  5  6  7          in flight: number ──> Pumped, one object for all of them
    played               4  5                both are complete, and leave it
    in flight                  6  7

Where each instance is played by one worker, and nothing else is due, it is in flight until it is played: nothing is
recorded for single instances, and whole lists of numbers are handled by single calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from ampnet.errors import PairingError
from ampnet.instance import Instance
from ampnet.opened import Opened

_RECORDS = attrgetter("records")


class Pumped:
    """See the head of this file."""

    __slots__ = ("_positions", "due", "instances", "playing", "stream")

    def __init__(
        self,
        stream: Opened,
        instances: dict[int, Instance],
        positions: Mapping[int, int],
        due: dict[int, int],
        playing: Sequence[int],
    ) -> None:
        """``due``: outstanding answers (training, with message passing) or results (inference) of each instance; empty
        if none are. ``playing``: the number of workers that will play each instance; empty if messages are passed."""
        self.stream, self.instances, self._positions, self.due = stream, instances, positions, due
        self.playing: dict[int, int] | None = None
        """The number of workers that have not played all of an instance yet; None: one for each instance in flight."""
        self.play_again(playing)

    def play_again(self, playing: Sequence[int]) -> None:
        """The instances in flight will be played by this number of workers each."""
        counts = playing or [0] * len(self.instances)
        alone = not self.due and min(counts) == 1 == max(counts)
        self.playing = None if alone else dict(zip(self.instances, counts, strict=True))

    def position(self, number: int) -> int:
        """Returns the position of an instance in its stream."""
        return self._positions[number]

    def positions(self, numbers: Sequence[int]) -> Iterator[int]:
        """Returns the positions of instances in their stream."""
        return map(self._positions.__getitem__, numbers)

    def played(self, numbers: list[int]) -> list[int]:
        """Called when a worker has played its part of these instances. Returns those that are complete."""
        playing, due = self.playing, self.due
        if playing is None:
            return numbers
        over: list[int] = []
        for number in numbers:
            if not playing[number]:
                raise played_too_often(number)
            playing[number] -= 1
            if not playing[number] and not due.get(number):
                over.append(number)
        return over

    def settle(self, number: int, count: int) -> bool:
        """Called when answers or results of an instance came. Returns whether it is complete."""
        left = self.due.get(number, 0) - count
        if left < 0:
            raise PairingError(f"instance {number} was answered more often than it was pumped")
        self.due[number] = left
        return not left and not (self.playing is None or self.playing[number])

    def take(self, numbers: Sequence[int]) -> int:
        """Drop instances that are complete. Returns the number of their examples."""
        return sum(map(_RECORDS, map(self.instances.pop, numbers)))


def played_too_often(number: int) -> PairingError:
    """Returns the error for an instance that a worker has played, and did not have to."""
    return PairingError(f"instance {number} was played, but no worker had to play it any more")
