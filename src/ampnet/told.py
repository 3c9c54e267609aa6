"""Told: which messages of the instances in flight have been counted in statistics, so that none is counted twice.

    before a loss    report of loss "mood": instances 7 7 8           counted; 7 and 8 are still in flight
    [workers are started again, or a checkpoint is resumed: 7 and 8 are computed again]
    afterwards       report of loss "mood": instances 8 7 9 7         only that of 9 is counted

Recording a report appends one entry to a list; reports of retired instances are removed from time to time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

_LEAST = 4096
"""Up to this number of messages, reports of retired instances are kept."""


class Told:
    """See the head of this file."""

    def __init__(self) -> None:
        self._reports: list[tuple[str, list[int]]] = []
        self._size, self._limit = 0, _LEAST
        self._before: dict[tuple[int, str], int] = {}
        """(instance, loss): messages that were counted before the instance was pumped for the last time."""

    def add(self, loss: str, numbers: list[int], in_flight: Mapping[int, object]) -> None:
        """Record a report: for each message, the number of its instance."""
        self._reports.append((loss, numbers))
        self._size += len(numbers)
        if self._size > self._limit:
            gone = in_flight.keys().isdisjoint
            self._reports = [(loss, some) for loss, some in self._reports if not gone(some)]
            self._size = sum(len(some) for _, some in self._reports)
            self._limit = max(_LEAST, 2 * self._size)

    def new(self, loss: str, numbers: list[int]) -> list[int] | None:
        """Returns the places of messages that were not counted before; None: all of them. For each report, once."""
        before = self._before
        if not before:
            return None
        out: list[int] = []
        for place, number in enumerate(numbers):
            left = before.get((number, loss), 0)
            if not left:
                out.append(place)
            elif left == 1:
                del before[number, loss]
            else:
                before[number, loss] = left - 1
        return None if len(out) == len(numbers) else out

    def count_before(self, number: int, counts: Mapping[str, int]) -> None:
        """An instance is pumped again: these messages of it, by loss, have been counted."""
        self._before |= {(number, loss): count for loss, count in counts.items() if count}

    def counted(self, in_flight: Container[int]) -> dict[int, Counter[str]]:
        """Returns, for each instance in flight, the number of its messages that were counted, by loss."""
        out: dict[int, Counter[str]] = {}
        for loss, numbers in self._reports:
            for number in numbers:
                if number in in_flight:
                    out.setdefault(number, Counter())[loss] += 1
        for (number, loss), count in self._before.items():
            if number in in_flight:
                out.setdefault(number, Counter())[loss] += count
        return out

    def again(self, in_flight: Container[int]) -> None:
        """All instances in flight are computed again."""
        counted = self.counted(in_flight)
        self.clear()
        for number, counts in counted.items():
            self.count_before(number, counts)

    def clear(self) -> None:
        """Forget everything: nothing is in flight."""
        self._reports, self._before, self._size = [], {}, 0
