"""Known: the instances that workers have from the start, because they existed when the workers were forked.

Such an instance is named by its index in a list, not sent. Workers have it as of the fork, so it is known only as long
as no payload has been written to since then: torch counts writes in place (not those through memory shared with NumPy).
States and structures are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ampnet.instance import Instance


class Known:
    """A list of instances, and the index of each in it."""

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self._places: dict[int, int] = {}
        self._stamps: list[list[tuple[Tensor, int]] | None] = []
        """Of each instance: its payloads, and how often they had been written to."""

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
        self._stamps = [_stamp(instance) for instance in self.instances]
        for instance, stamp in zip(self.instances, self._stamps, strict=True):
            if stamp is None or not _is_plain(instance):
                self._places.pop(id(instance), None)

    def place(self, instance: Instance) -> int:
        """Returns the index of an instance in the list; -1 if workers do not have its current version."""
        place = self._places.get(id(instance), -1)
        for payload, version in (self._stamps[place] or ()) if place >= 0 else ():
            if payload._version != version:
                del self._places[id(instance)]
                return -1
        return place


def _stamp(instance: Instance) -> list[tuple[Tensor, int]] | None:
    """Returns each payload with its write count; None if torch does not count writes (in inference mode)."""
    payloads = [given.payload for given in instance.feeds.values() if given.payload is not None]
    try:
        return [(payload, payload._version) for payload in payloads]
    except RuntimeError:
        return None


def _is_plain(instance: Instance) -> bool:
    """Whether a forked process can read all payloads."""
    payloads = [given.payload for given in instance.feeds.values() if given.payload is not None]
    return all(payload.device.type == "cpu" and payload.layout is torch.strided for payload in payloads)
