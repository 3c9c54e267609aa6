"""Waves under way, for readers of a log.

    Wave (worker0, 17: instances 204..207)     Played (worker0, 17) ... Played (worker0, 17)     Retire 204..207
    |  it begins                               |  its operations, in some pieces                 |  it is forgotten

A wave has a number on its worker. Several are under way at once, and their pieces are interleaved. A reader that wants
to know whose rows an operation is about looks the wave up here.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampnet.events.log import Played, Wave

Key = tuple[str, int]
"""(worker, number of the wave there)."""


def key_of(event: Wave | Played) -> Key:
    """Which wave an event is about."""
    return event.worker, event.wave


def words_of_wave(key: Key) -> str:
    """A wave, in words."""
    return f"wave {key[1]} of worker '{key[0]}'"


class WavesUnderWay:
    """The waves that have begun and of which an instance has not retired."""

    def __init__(self) -> None:
        self.waves: dict[Key, Wave] = {}
        self._left: dict[Key, int] = {}
        self._of: dict[int, list[Key]] = {}

    def begin(self, event: Wave) -> None:
        """A wave begins. One that has begun already goes on as it was."""
        key = key_of(event)
        if key in self.waves:
            return
        self.waves[key] = event
        self._left[key] = len(event.instances)
        for number in event.instances:
            self._of.setdefault(number, []).append(key)

    def of(self, instance: int) -> list[Key]:
        """The waves that an instance travels in: one on each worker that has a part of it."""
        return self._of.get(instance, [])

    def retire(self, instances: Iterable[int]) -> list[Wave]:
        """Instances retire. Returns the waves that have none left; they are forgotten."""
        gone = []
        for number in instances:
            for key in self._of.pop(number, ()):
                self._left[key] -= 1
                if not self._left[key]:
                    del self._left[key]
                    gone.append(self.waves.pop(key))
        return gone

    def clear(self) -> None:
        """A run begins or ends."""
        self.waves.clear()
        self._left.clear()
        self._of.clear()
