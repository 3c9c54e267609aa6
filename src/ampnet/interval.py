"""Interval: how often something is done: "30 s", "5 m", "1 epoch", "500 instances" or 500 (instances)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Unit = Literal["seconds", "epochs", "instances"]
UNITS: dict[str, tuple[Unit, float]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), ("seconds", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600.0)),
    **dict.fromkeys(("epoch", "epochs"), ("epochs", 1.0)),
    **dict.fromkeys(("", "instance", "instances"), ("instances", 1.0)),
}
"""The unit of an interval by its name, and the factor."""
_EXAMPLES = "'30 s', '5 m', '1 epoch' or '500 instances'"


@dataclass(frozen=True, slots=True)
class Interval:
    """The time between two checkpoints."""

    count: float
    unit: Unit

    @classmethod
    def of(cls, given: str | int) -> Interval:
        """Reads "30 s", "5 m", "1 epoch", "500 instances" or 500. Raises ValueError."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(given).strip().lower())
        if found is None or found[2] not in UNITS:
            raise ValueError(f"{given!r} is not an interval; write it like {_EXAMPLES}")
        kind, factor = UNITS[found[2]]
        count = float(found[1]) * factor
        if count > 2**53:
            raise ValueError(f"the interval of {len(found[1])} digits is too long; write it like {_EXAMPLES}")
        if kind != "seconds" and (count != int(count) or count < 1):
            raise ValueError(f"{given!r}: give a whole number of {kind}, 1 or more, like {_EXAMPLES}")
        if count <= 0:
            raise ValueError(f"{given!r}: give a time above 0, like {_EXAMPLES}")
        return cls(count, kind)
