"""Boxes: the work of each worker as intervals of time. Gantt charts and traces are made from them.

    worker 0   [ cell > 12 13 ][ loss > 12 ][ cell < 11 ][u]      [ cell > 14 ] ...     > forward  < backward  u update
               | a box: a batch  |                        | a box: an update, or a synchronisation of a replica

In a run by waves a box is an operation (``collect`` is the weight gradient of a wave), or the layout of a wave.

A run has far too many boxes for one picture. `steady` picks a typical interval of the run:

    boxes   . . [fill] . . . . . . . . . . . . . . . . . . [drain]
                       |  candidates, evenly spread  |             among training boxes, without the first and last part
                                 |chosen|                          the one of median length
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ampnet.events.log import BACKWARD, Backward, Event, Forward, Played, Synced, Updated, Wave
from ampnet.events.waves import Key, key_of
from ampnet.state import Ints

FEW = 12
"""The number of instances that a box lists."""
SHOWN = (60, 36, 140)
"""The number of boxes in a picked interval: minimum, per worker, maximum."""
CANDIDATES = 31
REMEMBERED = 1_000
"""The number of waves whose instances are kept: more are not in progress at once."""
LAYOUT = "layout"
"""The node name of a box that belongs to a wave and to no node."""
KINDS = ("forward", "backward", "collect")
"""The kinds of a wave's operations, by direction."""


@dataclass(frozen=True, slots=True)
class Box:
    """A batch or operation at a node, an update of a node, a synchronisation of a replica, or the layout of a wave."""

    worker: str
    """The worker."""
    node: str
    """The node."""
    kind: str
    """"forward", "backward", "collect", "update", "sync" or "layout"."""
    start: float
    """Seconds since the first event of the run."""
    seconds: float
    """Its duration."""
    train: bool
    """False for inference."""
    instances: tuple[int, ...]
    """The first few instances of the batch, sorted; empty for an update or synchronisation."""
    more: int
    """The number of further instances."""
    messages: int
    """Messages in the batch; for an update, its gradients; for a synchronisation, the updates since the one before."""
    rows: int
    """Payload rows in the batch; 0 for an update or synchronisation."""
    version: int | None
    """The number of changes of the node's weights so far, including this one; None for a node without parameters."""
    staleness: float | None
    """Mean staleness of a backward batch at a node with parameters."""
    wave: int | None = None
    """The number of the wave on this worker; None with message passing."""
    round: int | None = None
    """The round of a wave's operation."""

    @property
    def stop(self) -> float:
        """The time of its end."""
        return self.start + self.seconds

    def concerns(self, first: int, last: int) -> bool:
        """Whether one of these instances is in the batch; if not all are listed, whether one may be."""
        listed = any(first <= i <= last for i in self.instances)
        return listed or (self.more > 0 and last > self.instances[-1])


def few(instances: Ints) -> tuple[list[int], int]:
    """Returns the first few distinct numbers, sorted, and the number of further ones."""
    # A set is faster than sorting as long as it is small; and most batches are.
    different = sorted(set(instances.tolist())) if len(instances) <= 256 else np.unique(instances).tolist()
    return different[:FEW], max(0, len(different) - FEW)


class Travellers:
    """The instances of the latest waves: the first few, and the number of further ones."""

    def __init__(self) -> None:
        self._of: dict[Key, tuple[tuple[int, ...], int]] = {}

    def begin(self, event: Wave) -> tuple[tuple[int, ...], int]:
        """Add a wave that begins. Returns its instances."""
        found = tuple(sorted(event.instances)[:FEW]), max(0, len(event.instances) - FEW)
        self._of.pop(key_of(event), None)  # of a run before
        self._of[key_of(event)] = found
        if len(self._of) > REMEMBERED:
            del self._of[next(iter(self._of))]
        return found

    def of(self, event: Played) -> tuple[tuple[int, ...], int]:
        """Returns the instances of the operations; none if their wave is not kept any more."""
        return self._of.get(key_of(event), ((), 0))


def mean_lag(lags: Sequence[tuple[int, int]]) -> float | None:
    """Returns the mean staleness of (staleness, messages) pairs; None without messages."""
    if len(lags) == 1:
        return float(lags[0][0])
    messages = sum(n for _, n in lags)
    return sum(lag * n for lag, n in lags) / messages if messages else None


def box_of(event: Event, since: float = 0.0) -> Box | None:
    """Returns the box of an event, if it has one. Times are relative to ``since``."""
    match event:
        case Forward():
            listed, more = few(event.received.column("instance"))
            kind, train, staleness = "forward", event.train, None
        case Backward():
            listed, more = few(event.received.column("instance"))
            kind, train, staleness = "backward", True, mean_lag(event.lags)
        case Updated() | Synced():
            kind, count = ("update", event.count) if isinstance(event, Updated) else ("sync", event.updates)
            at = event.time - since
            return Box(event.worker, event.node, kind, at, event.seconds, True, (), 0, count, 0, event.version, None)
        case _:
            return None
    return Box(
        event.worker,
        event.node,
        kind,
        event.time - since,
        event.seconds,
        train,
        tuple(listed),
        more,
        len(event.received),
        event.rows,
        event.version,
        staleness,
    )


def boxes_of_wave(event: Played, since: float, instances: tuple[int, ...], more: int) -> list[Box]:
    """Returns the boxes of operations, in order. ``instances``: the first few of the wave; there are ``more``."""
    return [
        Box(
            event.worker,
            op.node,
            KINDS[op.direction],
            op.start - since,
            op.seconds,
            event.train,
            instances,
            more,
            op.messages,
            op.rows,
            op.version,
            float(op.lag) if op.direction == BACKWARD and op.version is not None else None,
            event.wave,
            op.round,
        )
        for op in event.operations()
    ]


def box_of_layout(event: Wave, since: float, instances: tuple[int, ...], more: int) -> Box:
    """Returns the box of a wave's layout."""
    at, count = event.time - since, len(event.instances)
    return Box(
        event.worker, LAYOUT, LAYOUT, at, event.seconds, event.train, instances, more, count, 0, None, None, event.wave
    )


def boxes_of(events: Iterable[Event]) -> list[Box]:
    """Returns the boxes of a log, sorted by start. Times are relative to the first event."""
    boxes: list[Box] = []
    since, travellers = None, Travellers()
    for event in events:
        since = event.time if since is None else since
        if isinstance(event, Played):
            boxes += boxes_of_wave(event, since, *travellers.of(event))
        elif isinstance(event, Wave):
            instances = travellers.begin(event)
            boxes += [box_of_layout(event, since, *instances)] if event.seconds > 0 else []
        else:
            box = box_of(event, since)
            boxes += [] if box is None else [box]
    return in_order(boxes)


def in_order(boxes: Iterable[Box]) -> list[Box]:
    """Sort boxes by their starts in nanoseconds: events of several workers, and files, are in another order."""
    return sorted(boxes, key=lambda box: (round(box.start * 1e9), box.worker, box.seconds, box.node))


@dataclass(frozen=True, slots=True)
class Window:
    """An interval of a run, in seconds since its first event."""

    start: float
    """Its start."""
    stop: float
    """Its end."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.stop - self.start

    def cut(self, boxes: Iterable[Box]) -> list[Box]:
        """Returns the boxes that overlap it."""
        return [b for b in boxes if b.start < self.stop and b.stop > self.start]

    def busy(self, boxes: Iterable[Box]) -> dict[str, float]:
        """Returns the busy share of each worker in the window. Boxes may extend beyond the window's ends."""
        seconds: dict[str, float] = {}
        for box in boxes:
            inside = min(box.stop, self.stop) - max(box.start, self.start)
            seconds[box.worker] = seconds.get(box.worker, 0.0) + max(0.0, inside)
        return {worker: s / self.seconds if self.seconds > 0 else float("nan") for worker, s in seconds.items()}


def whole(boxes: Sequence[Box]) -> Window:
    """Returns the window from the first box to the last."""
    return Window(boxes[0].start, max(b.stop for b in boxes)) if boxes else Window(0.0, 0.0)


def steady(boxes: Sequence[Box], shown: int | None = None) -> Window:
    """Returns an interval of about ``shown`` boxes (sorted by start) that is typical of the training.

    Without training it is one of the inference; for a short run it is the whole run.
    """
    if shown is None:
        least, each, most = SHOWN
        shown = min(most, max(least, each * len({b.worker for b in boxes})))
    if len(boxes) <= shown * 3 // 2:
        return whole(boxes)
    trained = [i for i, box in enumerate(boxes) if box.train]
    places = trained if len(trained) > shown else range(len(boxes))
    low, high = places[len(places) // 4], places[(len(places) - 1) * 3 // 4]
    high = max(low, min(high, len(boxes) - shown))
    firsts = sorted({low + (high - low) * k // (CANDIDATES - 1) for k in range(CANDIDATES)})
    stretches = [boxes[i : i + shown] for i in firsts]
    # Prefer intervals of training, and among these such with an update.
    for wanted in (_mostly_training, _has_update):
        stretches = [some for some in stretches if wanted(some)] or stretches
    stretches.sort(key=lambda some: whole(some).seconds)
    usual = stretches[len(stretches) // 4 : len(stretches) // 2 + 1]
    # A single delayed batch would take up the whole picture.
    chosen = min(usual, key=lambda some: max(b.seconds for b in some))
    return Window(chosen[0].start, chosen[-1].stop)


def _mostly_training(boxes: Sequence[Box]) -> bool:
    return 2 * sum(b.train for b in boxes) > len(boxes)


def _has_update(boxes: Sequence[Box]) -> bool:
    return any(b.kind == "update" for b in boxes)


def of_instances(boxes: Sequence[Box], first: int, last: int) -> Window:
    """Returns the window from the first to the last batch with one of these instances; empty without any."""
    found = [b for b in boxes if b.kind != "update" and any(first <= i <= last for i in b.instances)]
    return whole(found)


def around(boxes: Sequence[Box], window: Window, most: int) -> list[Box]:
    """Returns the boxes of a window and equally many on either side, ``most`` in all (sorted by start)."""
    starts = [b.start for b in boxes]
    # A long box may begin far before the window; `cut` finds those.
    first, last = bisect_left(starts, window.start), bisect_right(starts, window.stop)
    spare = max(0, most - (last - first)) // 2
    near = boxes[max(0, first - spare) : last + spare]
    early = [b for b in boxes[: max(0, first - spare)] if b.stop > window.start]
    return [*early, *near]
