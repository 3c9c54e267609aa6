"""Standing: the state of a run in a few numbers: the share of the stream that is done, the speed, the time left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ampnet.eta import time_left
from ampnet.events.record import Point, StreamRecord

LATELY = 3.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True, slots=True)
class RunSize:
    """The planned size of a run."""

    epochs: int | None = None
    """The maximal number of epochs; None: unknown."""
    records: dict[str, int] = field(default_factory=dict)
    """The number of examples, by the first word of a stream's name ("train", "valid")."""

    def share(self, point: Point) -> float | None:
        """Returns the share of the point's stream that is done; None if unknown."""
        total = self.records.get(point.stream.partition(" ")[0], 0)
        return min(1.0, point.records / total) if total else None

    def left(self, streams: Sequence[StreamRecord], point: Point | None, elapsed: float) -> float | None:
        """Returns the seconds to the end of the last epoch; None where they are not known. See `ampnet.eta`."""
        if self.epochs is None or point is None:
            return None
        rates: dict[str, float] = {}
        for stream in streams:
            kind = stream.name.partition(" ")[0]
            if kind in self.records and stream.ended > stream.began:
                rates[kind] = self.records[kind] / (stream.ended - stream.began)
        if point.records and point.seconds > 0:
            rates[point.stream.partition(" ")[0]] = point.records / point.seconds
        left = time_left(self.epochs, self.records, rates, point.stream, point.records)
        return max(0.0, left[1] - (elapsed - point.time)) if left is not None and left[1] > 0 else None


def speed(points: Sequence[Point]) -> float | None:
    """Returns the recent examples per second of the current stream."""
    same = [p for p in points[-200:] if points[-1].stream == p.stream and p.time >= points[-1].time - LATELY]
    if len(same) >= 2 and same[-1].time > same[0].time:
        return (same[-1].records - same[0].records) / (same[-1].time - same[0].time)
    if same and same[-1].seconds > 0:
        return same[-1].records / same[-1].seconds
    return None
