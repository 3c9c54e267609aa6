"""Answers: the answers of all workers to an ASK note, one each (`ampnet.runtime.host`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampnet.errors import StallError
from ampnet.reference.worker import Counts


class Answers(dict[int, Mapping[str, Any]]):
    """The answers by worker number."""

    def held(self) -> dict[str, int]:
        """Returns the sizes of all queues and caches that are not empty, by worker."""
        return {f"worker{i}: {what}": n for i, answer in self.items() for what, n in answer["held"].items()}

    def versions(self) -> dict[str, int]:
        """Returns the number of updates of each node."""
        return {name: version for answer in self.values() for name, version in answer["versions"].items()}

    def rates(self) -> dict[str, float]:
        """Returns the learning rate of each node."""
        return {name: rate for answer in self.values() for name, rate in answer["rates"].items()}

    def total(self, count: str) -> int:
        """Returns the sum of a count over all workers."""
        return sum(answer[count] for answer in self.values())

    def counts(self) -> Counts:
        """Returns the numbers of operations and messages so far."""
        return Counts(self.total("operations"), self.total("messages"))

    def same_as(self, before: Answers) -> bool:
        """Whether nothing has moved: no worker did anything since the earlier answers, and nothing is in transit."""
        counts = ("steps", "sent", "received")
        same = all(i in before and all(before[i][n] == answer[n] for n in counts) for i, answer in self.items())
        return same and self.total("sent") == self.total("received")

    def stall(self, in_flight: list[int]) -> StallError:
        """Returns a `StallError` that lists what each worker waits for."""
        waits = [line for answer in self.values() for line in answer["waits"]]
        return StallError(in_flight, [*waits, *(f"{what} holds {count}" for what, count in self.held().items())])
