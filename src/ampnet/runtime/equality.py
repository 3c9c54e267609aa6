"""Equality: after which training streams the replicas of each node have been made equal.

    stream ends ──> FLUSH to all workers ──> tokens run round each group ──> EQUAL from each ──> the next is pumped

Until then the controller holds: what follows a training stream is to see equal replicas.
"""

from __future__ import annotations

from collections.abc import Iterable


class Equality:
    """Of all groups of replicas that are kept equal."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._ended = 0
        self._equal = dict.fromkeys(groups, 0)
        """By group: after how many training streams its replicas were equal last."""

    def end(self) -> bool:
        """A training stream has ended. Returns whether that is to be waited for."""
        self._ended += 1
        return bool(self._equal)

    def equal(self, group: str, ended: int) -> bool:
        """The replicas of a group are equal after so many streams. Returns whether all are, after all that ended."""
        self._equal[group] = ended
        return all(ended >= self._ended for ended in self._equal.values())

    def clear(self) -> None:
        """After an error: no stream has ended, as far as anybody knows."""
        self._ended, self._equal = 0, dict.fromkeys(self._equal, 0)
