"""Tune: chooses the number of instances in flight by trying several numbers.

More instances in flight make larger waves, and one call computes more rows, so a run gets faster up to a point. Each
number is tried briefly, on a copy of the graph, with the runtime that will train it:

    in flight         1      4      16      64      256
    instances/wave    1      4      16      20       20      an update waits for 20
    records/s         ▂▂     ▅▅     ▇▇      ██       ██
                                            ^ the smallest that is as fast as the fastest

If waves are played one after the other, no gradient is stale, whatever the number. If they interleave (another
schedule, or message passing), more in flight also means staler gradients: then numbers with a mean staleness above a
bound are excluded.

Numbers are tried in rising order. The search ends at the first that is too stale, or when two in a row were no faster
than one before. The rate of a number is the best of several measurements: other programs on the machine can only make
it slower.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ampnet.errors import DataError, LossError, NodeError
from ampnet.events.log import Listener
from ampnet.events.staleness import StalenessMeter
from ampnet.graph import Graph
from ampnet.instance import Instance, Stream
from ampnet.runtime.runtime import Runtime
from ampnet.wave.schedule import WAVE_SCHEDULES

NUMBERS = (1, 4, 16, 64, 256)
"""The numbers of instances in flight that are tried."""
ENOUGH = 0.95
"""A number counts as fast as the fastest if it has this share of its rate: the rest is noise."""
STALEST = 4.0
"""The largest mean staleness allowed, in updates between forward and backward."""
_STRETCHES = 3
_FASTER = 1.05
"""From this ratio of rates a number counts as faster than another."""

Make = Callable[[Graph, int, Sequence[Listener]], Runtime]
"""Builds a runtime on a graph, with this number of instances in flight and these listeners."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The measurements with one number of instances in flight."""

    in_flight: int
    """Instances in flight at most."""
    rate: float
    """Records per second, in the best measurement."""
    staleness: float = 0.0
    """The mean number of updates of a node between the forward and the backward of a message; 0 without updates."""
    stalest: int = 0
    """The largest staleness of a message."""
    waves: int = 0
    """Waves played; 0 with message passing."""
    wave_size: float = 0.0
    """The mean number of instances of a wave; 0 with message passing."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The suggested number, and the trials it is based on."""

    in_flight: int
    """The suggested number of instances in flight."""
    trials: tuple[Trial, ...]
    """In rising order of instances in flight."""
    enough: float = ENOUGH
    """The share of the fastest rate that counts as equal to it."""
    bound: float | None = STALEST
    """The largest mean staleness allowed; None: waves were played one after the other, so nothing is stale."""
    engine: str = "waves"
    """The engine that was measured: "waves" or "messages"."""

    def __str__(self) -> str:
        """Returns a table of the trials, with the chosen one."""
        best = max(trial.rate for trial in _allowed(self.trials, self.bound))
        waves = self.engine == "waves"
        lines = ["in flight  " + "instances/wave  " * waves + "records/s  of the best  staleness"]
        for trial in self.trials:
            note = "  <- chosen" if trial.in_flight == self.in_flight else ""
            if self.bound is not None and trial.staleness > self.bound:
                note = note or "  too stale"
            size = f"{trial.wave_size:>14,.1f}  " if waves else ""
            part = trial.rate / best
            lines.append(
                f"{trial.in_flight:>9,}  {size}{trial.rate:>9,.0f}  {part:>11.0%}  {trial.staleness:>9.1f}{note}"
            )
        lines.append(
            f"max_active_keys: {self.in_flight}, the smallest number with {self.enough:.0%} of the best throughput"
            + ("" if self.bound is None else f" and a mean staleness of at most {self.bound:g}")
            + f"; measured in {self.engine}"
            + (", played one after the other: nothing is stale" if self.bound is None else "")
        )
        return "\n".join(lines)


def suggest(
    graph: Graph,
    instances: Iterable[Instance],
    make: Make,
    *,
    numbers: Sequence[int] = NUMBERS,
    seconds: float = 1.0,
    enough: float = ENOUGH,
    stalest: float = STALEST,
    clock: Callable[[], float] = time.perf_counter,
) -> Suggestion:
    """Train copies of a graph on some instances, ``seconds`` for each number; returns a suggested number in flight.

    The graph itself, its weights, and torch's random state are unchanged. At most ``max(numbers)`` instances are read,
    and no number larger than that is tried. All times are read from ``clock``, so the same clock readings give the same
    suggestion. ``stalest`` is used only if waves interleave or messages are passed.
    """
    some = list(itertools.islice(instances, max(numbers)))
    if not some:
        raise DataError("there is no instance to try")
    trials: list[Trial] = []
    bound: float | None = stalest
    engine = ""
    for number in sorted({n for n in numbers if n <= len(some)}) or [len(some)]:
        try:
            trial, engine, interleaved = _try(graph, some, make, number, seconds, clock)
        except NodeError as error:
            if not trials or not isinstance(error.__cause__, LossError):
                raise
            break  # training fails with this number
        bound = stalest if interleaved else None
        trials.append(trial)
        if _is_over(trials, bound):
            break
    return Suggestion(choose(trials, enough, bound), tuple(trials), enough, bound, engine)


def choose(trials: Sequence[Trial], enough: float = ENOUGH, stalest: float | None = STALEST) -> int:
    """Returns the smallest number that is as fast as the fastest, of those that are not too stale; if all are too
    stale, the smallest. ``stalest`` None: staleness does not count."""
    allowed = _allowed(trials, stalest)
    best = max(trial.rate for trial in allowed)
    return min(trial.in_flight for trial in allowed if trial.rate >= enough * best)


def _allowed(trials: Sequence[Trial], stalest: float | None) -> Sequence[Trial]:
    return [trial for trial in trials if stalest is None or trial.staleness <= stalest] or trials[:1]


def _is_over(trials: Sequence[Trial], stalest: float | None) -> bool:
    """Whether no higher number will be chosen."""
    *before, last = trials
    if stalest is not None and last.staleness > stalest:
        return True
    best = max((trial.rate for trial in before[:-1]), default=float("inf"))
    return len(before) > 1 and max(last.rate, before[-1].rate) < _FASTER * best


def _try(
    graph: Graph, instances: list[Instance], make: Make, number: int, seconds: float, clock: Callable[[], float]
) -> tuple[Trial, str, bool]:
    """Try one number. Returns the measurements, the engine, and whether gradients can be stale in this process."""
    meter = StalenessMeter()
    rates = []
    with torch.random.fork_rng(devices=[]), make(copy.deepcopy(graph), number, (meter,)) as runtime:
        if runtime.may_play:
            runtime.rehearse(instances)
        for stretch in range(1 + _STRETCHES):
            began = clock()
            stats = runtime.run([Stream(_until(instances, seconds / (1 + _STRETCHES), clock), True, "trial")])[0]
            if stretch:  # the first measurement includes warm-up
                rates.append(stats.records / (clock() - began))
        found, staleness = runtime.stats(), meter.overall()
        schedule = WAVE_SCHEDULES[runtime.settings["schedule"]](0) if found.engine == "waves" else None
    trial = Trial(
        number,
        max(rates),
        staleness.mean if staleness.messages else 0.0,
        staleness.max,
        found.waves,
        found.instances / found.waves if found.waves else 0.0,
    )
    return trial, found.engine, schedule is None or not schedule.one_by_one


def _until(instances: list[Instance], seconds: float, clock: Callable[[], float]) -> Iterator[Instance]:
    """Yields instances cyclically until the time has passed; at least one."""
    end = clock() + seconds
    for instance in itertools.cycle(instances):
        yield instance
        if clock() >= end:
            return
