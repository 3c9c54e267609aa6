"""Capacity: how many rows a block of a padded layout has room for.

A captured graph repeats the same calls on the same memory, so it serves every wave whose blocks (the rows of one site
and round) have the sizes it was captured with. Waves seldom have equal sizes; **padded** to common capacities they do:

    rows of (h, round 1)      wave 1: 361      wave 2: 348      wave 3: 377       capacity 416, for all of them

    exact      as long as every wave has the same sizes, a capacity is that size: nothing is padded
    padded     from the first difference on: the largest size seen, with room above it, so that it seldom grows

Sizes of many instances scatter like a sum of random numbers, so the room is two square roots of the size, rounded up to
a grid of steps of 6 to 12 percent. Each growth makes new captured graphs necessary, and old ones useless.
"""

from __future__ import annotations

import math


def rounded(size: int) -> int:
    """The capacity for a size: with room above it, on the grid."""
    wanted = size + math.ceil(2 * math.sqrt(size))
    step = 1 << max(0, wanted.bit_length() - 4)
    return -(-wanted // step) * step


class Capacities:
    """The capacities of the blocks of one kind of wave. `look` at all sizes of a wave, then ask for `room`."""

    def __init__(self) -> None:
        self.generation = 0
        """Grows whenever a capacity or a way of reading changes: what was padded before is out of date."""
        self.exact = True
        """Whether all waves so far had the same sizes."""
        self._most: dict[object, int] = {}
        self._room: dict[object, int] = {}
        self._indexed: set[object] = set()

    def look(self, sizes: dict[object, int]) -> None:
        """Make room for these sizes."""
        for key, size in sizes.items():
            most = self._most.get(key)
            if most is None or size > most:
                self._most[key] = size
            if most is not None and size != most and self.exact:
                self.exact = False
                self._room.clear()
                self.generation += 1
        for key in sizes:
            most = self._most[key]
            wanted = most if self.exact else most + 1  # a row of padding at least: padded links need a target
            if self._room.get(key, -1) < wanted:
                self._room[key] = wanted if self.exact else rounded(wanted)
                self.generation += 1

    def room(self, key: object) -> int:
        """The capacity of a block that was looked at."""
        return self._room[key]

    def seen(self, key: object) -> bool:
        """Whether any wave had rows there."""
        return key in self._most

    def must_index(self, key: object) -> bool:
        """Whether a slot is read by index in every wave, because one wave had to."""
        return key in self._indexed

    def index(self, key: object) -> None:
        """From now on this slot is read by index."""
        if key not in self._indexed:
            self._indexed.add(key)
            self.generation += 1
