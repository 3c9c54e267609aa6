"""Waves in progress, for readers of a log.

    Wave (worker0, 17: instances 204..207)     Played (worker0, 17) ... Played (worker0, 17)     Retire 204..207
    |  it begins                               |  its operations, in several events              |  it is dropped

A wave has a number on its worker. Several are in progress at once, and their events are interleaved. Readers look up
the instances of an operation's wave here.
"""

from __future__ import annotations

from collections.abc import Iterable

from ampnet.events.log import Played, Wave

Key = tuple[str, int]
"""(worker, number of the wave there)."""


def key_of(event: Wave | Played) -> Key:
    """Returns the key of an event's wave."""
    return event.worker, event.wave


def words_of_wave(key: Key) -> str:
    """Returns a wave as text."""
    return f"wave {key[1]} of worker '{key[0]}'"


class WavesUnderWay:
    """The waves that have begun and have an instance that has not retired."""

    def __init__(self) -> None:
        self.waves: dict[Key, Wave] = {}
        self._left: dict[Key, int] = {}
        self._of: dict[int, list[Key]] = {}

    def begin(self, event: Wave) -> None:
        """Add a wave that begins. A known wave is unchanged."""
        key = key_of(event)
        if key in self.waves:
            return
        self.waves[key] = event
        self._left[key] = len(event.instances)
        for number in event.instances:
            self._of.setdefault(number, []).append(key)

    def of(self, instance: int) -> list[Key]:
        """Returns the waves of an instance: one on each worker that has a part of it."""
        return self._of.get(instance, [])

    def retire(self, instances: Iterable[int]) -> list[Wave]:
        """Remove retired instances. Returns the waves without remaining instances, which are dropped."""
        gone = []
        for number in instances:
            for key in self._of.pop(number, ()):
                self._left[key] -= 1
                if not self._left[key]:
                    del self._left[key]
                    gone.append(self.waves.pop(key))
        return gone

    def clear(self) -> None:
        """Drop all waves, at the start or end of a run."""
        self.waves.clear()
        self._left.clear()
        self._of.clear()
