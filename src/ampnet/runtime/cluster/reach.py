"""Reach: which workers can no longer be reached by others, though their processes are well.

    who looks        looked    has no connection to     since
    controller       now       worker 1                 3 s        frames wait, and are sent when it is made again
    worker 0         now       -
    worker 1         now       controller               4 s        after ``silence`` seconds worker 1 counts as lost

A party that computes for long looks at nothing: it accepts no connections meanwhile, and what it last knew of its own
is out of date. So seconds count only while both ends of a connection look. (Ray, which watches processes and machines,
has connections of its own.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from ampnet.runtime.transport.tcp import BEAT, DEAD

Pair = tuple[int, int]
"""A party, and another one to which it has no connection."""


class Timings(TypedDict):
    """Settings of a `TcpEndpoint`, in seconds."""

    beat: float
    dead: float
    probe: float


def timings(silence: float) -> Timings:
    """Returns the settings of endpoints: a dead connection is noticed, and made again, well before ``silence`` seconds
    have passed."""
    dead = min(DEAD, silence / 6)
    beat = min(BEAT, dead / 5)
    return {"beat": beat, "dead": dead, "probe": beat}


class Reach:
    """See the head of this file. Parties are numbered: the workers, then the controller."""

    def __init__(self, controller: int) -> None:
        self._controller = controller
        self._since: dict[Pair, float] = {}

    def looked(self, party: int, unconnected: Iterable[int], now: float) -> None:
        """A party has looked at its connections: it has none to these."""
        before = self._since
        self._since = {pair: since for pair, since in before.items() if pair[0] != party}
        self._since |= {(party, other): before.get((party, other), now) for other in unconnected}

    def busy(self, party: int, now: float) -> None:
        """A party has not looked since the last time: what is missing to or from it counts from now on."""
        self._since.update({pair: now for pair in self._since if party in pair})

    def lost(self, now: float, silence: float) -> Pair | None:
        """Returns a worker that counts as lost, and a party that it is cut off from; None: there is none."""
        pairs = [pair for pair, since in self._since.items() if now - since > silence]
        if not pairs:
            return None
        ends = Counter(end for pair in pairs for end in pair if end != self._controller)
        worker = max(ends, key=lambda end: (ends[end], end))
        return worker, next(other for pair in pairs if worker in pair for other in pair if other != worker)
