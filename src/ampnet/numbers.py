"""Numbers: which number an instance gets.

The number is part of every state, and where instances are shared out among replicas it decides which one gets it:
instance i goes to replica i modulo n. So whoever numbers instances also shares them out, and the choice is recorded in
the state by itself, for the way forward and for the way back.

    in flight    replica 1: 0, 2, 4    replica 2: 1            n = 2
    next         3, then 5: odd ones, until both have as many
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class Numbers:
    """0, 1, 2, ... in order, unless replicas are to have equally many instances in flight (``moduli``).

    Then it is the smallest unused number of the replica that has the fewest. Where there are replicas in two numbers,
    n and m, the sum of both counts.
    """

    def __init__(self, moduli: Iterable[int]) -> None:
        self._moduli = sorted(set(moduli)) or [1]
        self._period = math.lcm(*self._moduli)
        self._next = list(range(self._period))
        self._flying = [[0] * n for n in self._moduli]

    def take(self) -> int:
        """A number that was never used."""
        loads, moduli = self._flying, self._moduli
        if len(moduli) == 1:
            load = loads[0]
            best = min(range(self._period), key=lambda c: (load[c], self._next[c])) if self._period > 1 else 0
        else:
            both = list(zip(moduli, loads, strict=True))
            best = min(range(self._period), key=lambda c: (sum(load[c % n] for n, load in both), self._next[c]))
        number = self._next[best]
        self._next[best] += self._period
        for n, load in zip(moduli, loads, strict=True):
            load[number % n] += 1
        return number

    def clear(self) -> None:
        """Nothing is in flight any more."""
        self._flying = [[0] * n for n in self._moduli]

    def free(self, number: int) -> None:
        """An instance of this number is not in flight any more."""
        for n, load in zip(self._moduli, self._flying, strict=True):
            load[number % n] -= 1
