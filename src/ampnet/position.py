"""Position: how far a stream has come, so that another run can continue it and count each instance once.

    instances     0  1  2  3  4  5  6  7  8 ...        pumped 6: positions 0 to 5
                  r  r  f  r  f  r                     r  retired: in the tally    f  in flight: to be pumped again

A stream that continues here iterates its instances from the start again. Retired positions are skipped: neither pumped
nor counted. Those that were in flight come first, because they are first in the data; the statistics go on from the
tally. So the data must be the same, in the same order.

An instance in flight may have reported some of its losses already (on worker processes a loss is reported before other
workers are done with the instance). ``told`` holds how many messages, so that they are not tallied again.

At a drained point nothing is in flight, and the position is one number and the tally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a stream. See the head of this file."""

    pumped: int
    """The number of instances pumped."""
    in_flight: tuple[int, ...]
    """The positions of those in flight, from 0."""
    records: int
    """The examples in those that retired."""
    seconds: float
    """Since the first pump."""
    tally: Mapping[str, Any]
    """The state of its `Tally`."""
    told: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    """By position in flight: the messages already tallied, by Loss node."""

    @property
    def retired(self) -> int:
        """The number of instances retired."""
        return self.pumped - len(self.in_flight)

    def plain(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return asdict(self) | {"told": [[position, dict(counts)] for position, counts in self.told.items()]}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the position that `plain` made. Raises ValueError for one that no stream can have."""
        pumped, places = data["pumped"], data["in_flight"]
        if type(pumped) is not int or len({*places}) < len(places) or not all(0 <= at < pumped for at in places):
            raise ValueError(f"a position with {pumped!r} instances pumped and {len(places)} in flight")
        told = {int(position): dict(counts) for position, counts in data["told"]}
        return cls(**{**data, "in_flight": tuple(data["in_flight"]), "told": told})
