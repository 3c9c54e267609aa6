"""LiveData: the data of the live page. It adds up the sampled events, and keeps the boxes of the last period.

    period       |####          |####          |####          |##
                                 [ kept: boxes ] [ coming in ]         the chart shows the last complete period
    a worker was watched here:   [  ]                                  its busy share is that of the watched time

A period is a second (``every``). If all operations of a worker in a period were sampled, it was watched for the whole
period; otherwise from its first to its last sampled operation. Staleness, losses and progress are of the whole run. The
end of a run cuts its last period short: the one before it stays in the chart if it has more.

Events come from the training thread, queries from those of the server; a lock protects the data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ampnet.controller import Progress
from ampnet.events.boxes import Box, Travellers, Window, box_of, box_of_layout, boxes_of_wave, in_order
from ampnet.events.log import Begin, Epoch, Event, Played, Rest, Wave, Worked, ended
from ampnet.events.record import RunRecord, StreamRecord, Sums, point_of
from ampnet.events.sampling import SAMPLED, Sampling
from ampnet.events.totals import Totals

KINDS = (Begin, *SAMPLED, Worked, Epoch, Rest)
"""The events that it wants. Not pumps and retirements, which are many: progress covers them."""
DRAWN = 180
"""The number of boxes in the chart."""
POINTS = 1_200
"""The number of progress points kept; of more, every second one is dropped."""


@dataclass(slots=True)
class _Period:
    """The sampled events of one period."""

    number: int
    boxes: list[Box | tuple[Played, tuple[int, ...], int]] = field(default_factory=list)
    """Operations of waves are converted to boxes on request."""
    first: dict[str, float] = field(default_factory=dict)
    """By worker: the start of its first operation."""
    last: dict[str, float] = field(default_factory=dict)
    """By worker: the end of its last one."""
    cut: list[float] = field(default_factory=list)
    """The time when a worker's sample ended."""
    begin: float | None = None
    """The time when it began, or its run; known at its end."""


class LiveData:
    """See the head of this file."""

    def __init__(self, most: int, every: float, clock: Callable[[], float]) -> None:
        self.sampling = Sampling(most, every)
        self._clock = clock
        self._lock = threading.Lock()
        self._sums = Sums()
        self._travellers = Travellers()
        self._streams: list[StreamRecord] = []
        self._turns: list[tuple[float, Progress]] = []
        self._coming, self._kept = _Period(-1), _Period(-1)
        self._limits: dict[str, Sampling] = {}
        """By worker: a copy of its sampling, which ends at the same operation."""
        self._watched: dict[str, float] = {}
        """By worker: seconds."""
        self._until: dict[str, float] = {}
        """By worker: the end of its last watched interval."""
        self._began = self._ended = self._rested = 0.0
        """Times of the last run: its start, the end of its last stream, and its end."""
        self.running = False
        """Whether a run is in progress."""

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, SAMPLED) and not self._take(event):
                return
            if isinstance(event, Epoch):
                self._sums.opened(event.stream, self._ended)  # too short for a progress call
                self._ended = event.time
            over = self._sums(event)
            if over is not None:
                self._streams.append(over)
            elif isinstance(event, Begin):
                self.running, self._began, self._ended = True, event.time, event.time
                self._until.clear()
            elif isinstance(event, Rest):
                self._next(self._coming.number + 1, event.time)
                self.running, self._rested = False, event.time

    def turn(self, progress: Progress) -> None:
        """Record the progress of the run."""
        with self._lock:
            now = self._clock()
            self._turns.append((now, progress))
            self._sums.opened(progress.stream, now - progress.seconds)
            if len(self._turns) > POINTS:
                del self._turns[1 : len(self._turns) // 2 : 2]  # thin out the older half

    def _take(self, event: Event) -> bool:
        """Keep an event of an operation. Returns False if the worker's sample was full: another listener wanted it."""
        period = self.sampling.period(event.time)
        if period > self._coming.number:
            self._next(period)
        coming, worker = self._coming, str(getattr(event, "worker", ""))
        limit = self._limits.setdefault(worker, Sampling(self.sampling.most, self.sampling.every))
        if not limit.open(event.time):
            return False
        limit.spend(event)
        coming.first.setdefault(worker, event.time)
        coming.last[worker] = max(coming.last.get(worker, 0.0), ended(event))
        since = event.time if self._sums.since is None else self._sums.since
        if isinstance(event, Played):
            coming.boxes.append((event, *self._travellers.of(event)))
        elif isinstance(event, Wave):
            instances = self._travellers.begin(event)
            coming.boxes += [box_of_layout(event, since, *instances)] if event.seconds > 0 else []
        else:
            box = box_of(event, since)
            coming.boxes += [box] if box is not None else []
        return True

    def _next(self, number: int, end: float | None = None) -> None:
        """Begin the next period."""
        over, every = self._coming, self.sampling.every
        over.begin = max(over.number * every, self._began)
        for worker, limit in self._limits.items():
            begin, until = over.begin, self._until.get(worker, 0.0)
            stop = (over.number + 1) * every if end is None else end
            last = over.last.get(worker, begin)
            if limit.spent and worker in over.first:
                over.cut.append(last)
                begin, stop = max(begin, until) if until >= begin else over.first[worker], last
            elif limit.spent:
                continue
            else:
                begin, stop = max(begin, until), max(stop, last)
            self._watched[worker] = self._watched.get(worker, 0.0) + max(0.0, stop - begin)
            self._until[worker] = stop
        newer = over.number - self._kept.number > 1 or len(over.boxes) >= len(self._kept.boxes)
        if over.boxes and (end is None or newer):
            self._kept = over
        self._coming = _Period(number)

    def record(self) -> RunRecord:
        """Returns the run so far. Boxes are of the last period, totals of nodes of the sampled operations."""
        with self._lock:
            sums = self._sums
            since = sums.since or 0.0
            totals = self._scaled(sums.totals())
            kept = self._kept if self._kept.boxes else self._coming
            boxes = list(kept.boxes)
            turns, streams, settings = list(self._turns), list(self._streams), sums.settings
            window = self._window(kept, since)
        points = [point_of(progress, now - since) for now, progress in turns] if sums.since is not None else []
        return RunRecord(settings, _latest(boxes, since, window), streams, points, totals)

    def elapsed(self) -> float:
        """Seconds since the first event."""
        with self._lock:
            since = self._sums.since
            last = self._clock() if self.running else self._rested
        return max(0.0, last - since) if since is not None else 0.0

    def _window(self, period: _Period, since: float) -> Window:
        """Returns the part of a period in which every worker was watched, as times of boxes."""
        every = self.sampling.every
        begin = max(period.number * every, self._began) if period.begin is None else period.begin
        return Window(begin - since, min([(period.number + 1) * every, *period.cut]) - since)

    def _scaled(self, totals: Totals) -> Totals:
        """Returns the totals with the seconds of workers extrapolated from the watched time to the whole run."""
        workers = {}
        for name, spent in totals.workers.items():
            watched = self._watched.get(name, 0.0)
            if watched > 0:
                part = min(1.0, sum(spent.values()) / watched)
                times = totals.wall * part / max(sum(spent.values()), 1e-12)
                workers[name] = {kind: seconds * times for kind, seconds in spent.items()}
        return replace(totals, workers=workers)


def _latest(kept: list[Box | tuple[Played, tuple[int, ...], int]], since: float, window: Window) -> list[Box]:
    """Returns the last boxes of a window, as many as are drawn."""
    boxes: list[Box] = []
    for one in reversed(kept):
        made = [one] if isinstance(one, Box) else boxes_of_wave(one[0], since, *one[1:])
        boxes += window.cut(made)
        if len(boxes) >= DRAWN + 60:
            break
    return in_order(boxes)[-DRAWN:]
