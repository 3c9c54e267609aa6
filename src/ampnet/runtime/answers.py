"""Answers: what workers said when all of them were asked, one answer each (`ampnet.runtime.host`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampnet.errors import StallError
from ampnet.reference.worker import Counts


class Answers(dict[int, Mapping[str, Any]]):
    """By the number of the worker."""

    def held(self) -> dict[str, int]:
        """Every queue and cache that is not empty, by worker."""
        return {f"worker{i}: {what}": n for i, answer in self.items() for what, n in answer["held"].items()}

    def versions(self) -> dict[str, int]:
        """By node: how often it has updated itself."""
        return {name: version for answer in self.values() for name, version in answer["versions"].items()}

    def rates(self) -> dict[str, float]:
        """By node: its learning rate."""
        return {name: rate for answer in self.values() for name, rate in answer["rates"].items()}

    def total(self, count: str) -> int:
        """The sum of a count over all workers."""
        return sum(answer[count] for answer in self.values())

    def counts(self) -> Counts:
        """Operations and messages so far."""
        return Counts(self.total("operations"), self.total("messages"))

    def same_as(self, before: Answers) -> bool:
        """Whether nothing moves: no worker did anything since it was asked before, and nothing is on its way."""
        counts = ("steps", "sent", "received")
        same = all(i in before and all(before[i][n] == answer[n] for n in counts) for i, answer in self.items())
        return same and self.total("sent") == self.total("received")

    def stall(self, in_flight: list[int]) -> StallError:
        """Nothing moves: who waits for what."""
        waits = [line for answer in self.values() for line in answer["waits"]]
        return StallError(in_flight, [*waits, *(f"{what} holds {count}" for what, count in self.held().items())])
