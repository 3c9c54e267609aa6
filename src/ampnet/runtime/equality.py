"""Equality: tracks after which training streams the replicas of each node have been synchronised.

    stream ends ──> FLUSH to all workers ──> tokens run round each group ──> EQUAL from each ──> the next is pumped

Until then the controller pumps nothing: the stream after a training stream must see equal replicas.
"""

from __future__ import annotations

from collections.abc import Iterable


class Equality:
    """Tracks all groups of replicas that are kept equal."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._ended = 0
        self._equal = dict.fromkeys(groups, 0)
        """By group: the number of training streams after which its replicas were last equal."""

    def end(self) -> bool:
        """Count the end of a training stream. Returns whether the controller must wait for equal replicas."""
        self._ended += 1
        return bool(self._equal)

    def equal(self, group: str, ended: int) -> bool:
        """Record that a group is equal after ``ended`` streams. Returns whether all groups are, after all streams."""
        self._equal[group] = ended
        return all(ended >= self._ended for ended in self._equal.values())

    @property
    def waiting(self) -> bool:
        """Whether a group is not equal yet after a stream that has ended."""
        return any(ended < self._ended for ended in self._equal.values())

    def clear(self) -> None:
        """Reset after an error: no stream counts as ended."""
        self._ended, self._equal = 0, dict.fromkeys(self._equal, 0)
