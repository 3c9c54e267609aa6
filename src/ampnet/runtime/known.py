"""Known: the instances that workers have from the start, because they were there when the workers were forked.

Such an instance is named by its place in a list, not sent. Workers have it as it was when they were forked, so it is
known only as long as no payload has been written to since then: torch counts writes in place (not those through memory
shared with NumPy). States and structures are immutable.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ampnet.instance import Instance


class Known:
    """A list of instances, and the place of each in it."""

    def __init__(self) -> None:
        self.instances: list[Instance] = []
        self._places: dict[int, int] = {}
        self._stamps: list[tuple[int, ...] | None] = []

    def __len__(self) -> int:
        """How many of them are still as they were."""
        return len(self._places)

    def add(self, instances: Iterable[Instance]) -> None:
        """Before workers are forked: they will have these."""
        for instance in instances:
            if id(instance) not in self._places:
                self._places[id(instance)] = len(self.instances)
                self.instances.append(instance)

    def seal(self) -> None:
        """Workers are about to be forked."""
        self._stamps = [_stamp(instance) for instance in self.instances]
        for instance, stamp in zip(self.instances, self._stamps, strict=True):
            if stamp is None or not _is_plain(instance):
                del self._places[id(instance)]

    def place(self, instance: Instance) -> int:
        """The place of an instance in the list; -1 where workers do not have it as it is now."""
        place = self._places.get(id(instance), -1)
        if place >= 0 and self._stamps[place] != _stamp(instance):
            del self._places[id(instance)]
            return -1
        return place


def _stamp(instance: Instance) -> tuple[int, ...] | None:
    """How often each payload was written to; None where torch does not count that (in inference mode)."""
    try:
        return tuple([given.payload._version for given in instance.feeds.values() if given.payload is not None])
    except RuntimeError:
        return None


def _is_plain(instance: Instance) -> bool:
    """Whether a forked process can read all payloads."""
    payloads = [given.payload for given in instance.feeds.values() if given.payload is not None]
    return all(payload.device.type == "cpu" and payload.layout is torch.strided for payload in payloads)
