"""Known: the instances that workers have from the start, because they existed when the workers were forked.

Such an instance is named by its index in a list, not sent. Workers have it as of the fork, so it is known only as long
as no payload has been written to since then: torch counts writes in place (not those through memory shared with NumPy).
States and structures are immutable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain, repeat
from operator import attrgetter, eq

import torch
from torch import Tensor

from ampnet.instance import Instance


class Known:
    """A list of instances, and the index of each in it."""

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self._places: dict[int, int] = {}
        self._payloads: list[list[Tensor]] = []
        """Of each instance: its payloads."""
        self._written: list[list[int]] = []
        """Of each of them: how often it had been written to."""

    def __len__(self) -> int:
        """The number of instances that are unchanged since the fork."""
        return len(self._places)

    def has(self, instance: Instance) -> bool:
        """Whether an instance was added and is unchanged."""
        return id(instance) in self._places

    def add(self, instances: Iterable[Instance]) -> None:
        """Add instances, before workers are forked."""
        for instance in instances:
            if id(instance) not in self._places:
                self._places[id(instance)] = len(self.instances)
                self.instances.append(instance)

    def seal(self) -> None:
        """Record the versions of all payloads, just before workers are forked."""
        self._payloads, self._written = [], []
        for instance in self.instances:
            payloads = [given.payload for given in instance.feeds.values() if given.payload is not None]
            written = _writes(payloads)
            if written is None or not all(map(_is_plain, payloads)):
                self._places.pop(id(instance), None)
            self._payloads.append(payloads)
            self._written.append(written or [])

    def places(self, instances: Collection[Instance]) -> list[int]:
        """Returns the index of each instance in the list; -1 if workers do not have its current version."""
        if not self._places:
            return [-1] * len(instances)
        found = list(map(self._places.get, map(id, instances), repeat(-1)))
        if not self._written or self._same(found):
            return found
        return [self._place(one) for one in instances]

    def _same(self, places: list[int]) -> bool:
        """Whether no payload of these instances was written to."""
        if min(places, default=0) < 0:
            return False
        now = map(_WRITES, chain.from_iterable(map(self._payloads.__getitem__, places)))
        return all(map(eq, now, chain.from_iterable(map(self._written.__getitem__, places))))

    def _place(self, instance: Instance) -> int:
        place = self._places.get(id(instance), -1)
        if place >= 0 and not self._same([place]):
            del self._places[id(instance)]
            return -1
        return place


_WRITES = attrgetter("_version")


def _writes(payloads: Iterable[Tensor]) -> list[int] | None:
    """Returns how often each was written to; None if torch does not count writes (in inference mode)."""
    try:
        return list(map(_WRITES, payloads))
    except RuntimeError:
        return None


def _is_plain(payload: Tensor) -> bool:
    """Whether a forked process can read it."""
    return payload.device.type == "cpu" and payload.layout is torch.strided
