"""Numbers: assigns numbers to instances.

The number is part of every state, and selects the replica: instance i goes to replica i modulo n. So numbering
instances also distributes them, and the state records the choice, for the forward and the backward pass.

    in flight    replica 1: 0, 2, 4    replica 2: 1            n = 2
    next         3, then 5: odd ones, until both have as many
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Numbers:
    """Assigns 0, 1, 2, ... in order, unless replicas must have equally many instances in flight (``moduli``).

    Then it assigns the smallest unused number of the replica with the fewest. With two numbers of replicas, n and m,
    the sum of both counts decides. ``block``: the number of consecutive instances that go to the same replica.
    """

    def __init__(self, moduli: Iterable[int], block: int = 1) -> None:
        self._block, self._left, self._best = block, 0, 0
        self._moduli = _distinct(moduli)
        self._period = math.lcm(*self._moduli)
        self._next = list(range(self._period))
        self._flying = [[0] * n for n in self._moduli]

    def is_like(self, moduli: Iterable[int], block: int) -> bool:
        """Whether it was made with these settings."""
        return (self._moduli, self._block) == (_distinct(moduli), block)

    def balances(self, copies: int) -> bool:
        """Whether this number of replicas, and no other, has equally many instances in flight."""
        return self._moduli == [copies]

    def take(self) -> int:
        """Returns an unused number."""
        return self.some(1)[0]

    def some(self, count: int) -> list[int]:
        """Returns unused numbers."""
        out: list[int] = []
        period = self._period
        while len(out) < count:
            if not self._left:
                self._best, self._left = self._fewest(), self._block
            left = count - len(out)
            best, many = self._best, left if period == self._block == 1 else min(left, self._left)
            first = self._next[best]
            self._next[best] = stop = first + many * period
            self._left = max(0, self._left - many)
            out += range(first, stop, period)
            if period > 1:  # else there is nothing to share out
                for n, load in zip(self._moduli, self._flying, strict=True):
                    load[best % n] += many
        return out

    def _fewest(self) -> int:
        """Returns the remainder of the next number modulo the period."""
        if self._period == 1:
            return 0
        if len(self._moduli) == 1:
            loads = self._flying[0]
            fewest = min(loads)
            if loads.count(fewest) == 1:
                return loads.index(fewest)
            return min([c for c, load in enumerate(loads) if load == fewest], key=self._next.__getitem__)
        both = list(zip(self._moduli, self._flying, strict=True))
        return min(range(self._period), key=lambda c: (sum(load[c % n] for n, load in both), self._next[c]))

    def state(self) -> dict[str, Any]:
        """Returns the next numbers, as plain data. Instances in flight are not part of it."""
        then = {"moduli": self._moduli, "block": self._block}
        return {**then, "next": list(self._next), "left": self._left, "best": self._best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, with nothing in flight. With other numbers of replicas than those of the state, only
        numbers above all assigned ones are assigned, and nothing else is restored."""
        self.clear()
        if state["moduli"] == self._moduli and state["block"] == self._block:
            self._next, self._left, self._best = list(state["next"]), state["left"], state["best"]
        else:
            first = max(state["next"]) - len(state["next"]) + 1
            self._next = [first + (c - first) % self._period for c in range(self._period)]

    def clear(self) -> None:
        """Reset the counts: nothing is in flight any more."""
        self._flying = [[0] * n for n in self._moduli]
        self._left = 0

    def free(self, numbers: Sequence[int]) -> None:
        """Called when the instances of these numbers are not in flight any more."""
        if self._period == 1:
            return
        for n, load in zip(self._moduli, self._flying, strict=True):
            for remainder, count in Counter([number % n for number in numbers]).items():
                load[remainder] -= count


def _distinct(moduli: Iterable[int]) -> list[int]:
    return sorted({*moduli} - {1}) or [1]
