"""Standing: where a run is, in a few numbers: epoch, speed, time that has passed and that is left.

done     train 1  valid 1  train 2 ..|                          left: the streams that have not ended, each as long
epochs   [        1       ][        2       ][        3       ]       as those of its kind took, on average
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ampnet.events.record import Point, StreamRecord

LATELY = 3.0
"""Seconds over which the speed is measured."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a run beforehand."""

    epochs: int | None = None
    """Epochs at most; None: not known."""
    records: dict[str, int] = field(default_factory=dict)
    """By the first word of a stream's name ("train", "valid"): the examples in it."""

    def share(self, point: Point) -> float | None:
        """The part of the point's stream that is done; None if nobody knows."""
        total = self.records.get(point.stream.partition(" ")[0], 0)
        return min(1.0, point.records / total) if total else None

    def left(self, streams: Sequence[StreamRecord], point: Point | None, elapsed: float) -> float | None:
        """Seconds to the end of the last epoch, or None where that cannot be told yet."""
        if self.epochs is None or point is None:
            return None
        part, left = self.share(point), 0.0
        over = any(s.name == point.stream and s.ended >= point.time for s in streams)
        for kind in self.records:
            ended = [s.ended - s.began for s in streams if s.name.partition(" ")[0] == kind]
            under_way = point.stream.partition(" ")[0] == kind and not over
            took = sum(ended) / len(ended) if ended else None
            if took is None:
                if not under_way or not part:
                    continue
                took = point.seconds / part
            left += took * max(0.0, self.epochs - len(ended) - (part or 0.0) * under_way)
        passed = elapsed - point.time
        return max(0.0, left - passed) if left else None


def speed(points: Sequence[Point]) -> float | None:
    """Examples a second of the stream under way, lately."""
    same = [p for p in points[-200:] if points[-1].stream == p.stream and p.time >= points[-1].time - LATELY]
    if len(same) >= 2 and same[-1].time > same[0].time:
        return (same[-1].records - same[0].records) / (same[-1].time - same[0].time)
    if same and same[-1].seconds > 0:
        return same[-1].records / same[-1].seconds
    return None


def clock_time(seconds: float) -> str:
    """``1:05``, ``2:03:40``."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
