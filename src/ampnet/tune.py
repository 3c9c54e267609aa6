"""Tune: how many instances to have in flight, found out by trying.

More in flight is more to put together, so a run is faster, up to a point; and it is staler, for every gradient is then
about weights of longer ago. So each number is tried for a moment, on a copy of the graph:

    in flight    1      4      16      64      256
    records/s    ▂▂     ▅▅     ▇▇      ▇▇      ▇▇
    staleness    0      0.4    1.9     7.8     31
                               ^ the smallest that is nearly as fast as the fastest, of those that are not too stale

Numbers rise, so it ends at the first that is too stale, or when two in a row were no faster than one before. How fast
a number is, is its best of some stretches: whoever else is on the machine only makes it slower.
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

NUMBERS = (1, 4, 16, 64, 256)
"""That are tried."""
ENOUGH = 0.9
"""Part of the best throughput that is as good as it."""
STALEST = 4.0
"""Updates between forward and backward, on average, that are not too many."""
_STRETCHES = 3
_FASTER = 1.05
"""From here on a number is faster than another."""

Make = Callable[[Graph, int, Sequence[Listener]], Runtime]
"""A runtime on a graph, with so many instances in flight and these listeners."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One number, tried."""

    in_flight: int
    """Instances in flight at most."""
    rate: float
    """Records a second, in the best stretch."""
    staleness: float
    """Updates of a node between the forward and the backward of a message, on average; 0 where nothing is updated."""
    stalest: int
    """The most of them."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """What was found out."""

    in_flight: int
    """How many instances to have in flight."""
    trials: tuple[Trial, ...]
    """In rising order."""
    enough: float
    """Part of the best throughput that was asked for."""
    bound: float
    """Staleness that was allowed."""

    def __str__(self) -> str:
        """A table of the trials, and what was chosen."""
        best = max(trial.rate for trial in self._allowed())
        lines = [f"{'in flight':>9}  {'records/s':>9}  {'of the best':>11}  {'staleness':>9}"]
        for trial in self.trials:
            note = "  <- chosen" if trial.in_flight == self.in_flight else ""
            note = note or ("  too stale" if trial.staleness > self.bound else "")
            part = trial.rate / best
            lines.append(f"{trial.in_flight:>9,}  {trial.rate:>9,.0f}  {part:>11.0%}  {trial.staleness:>9.1f}{note}")
        lines.append(
            f"max_active_keys: {self.in_flight}, the smallest number with {self.enough:.0%} of the best throughput "
            f"and a mean staleness of at most {self.bound:g}"
        )
        return "\n".join(lines)

    def _allowed(self) -> Sequence[Trial]:
        return _allowed(self.trials, self.bound)


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
    """Train copies of a graph on some instances, ``seconds`` for each number, and say how many to have in flight.

    The graph itself, its weights, and torch's random numbers stay as they are. No more instances are asked for than the
    highest number, and none is tried that there are not instances enough for.
    """
    some = list(itertools.islice(instances, max(numbers)))
    if not some:
        raise DataError("there is no instance to try")
    trials: list[Trial] = []
    for number in sorted(n for n in numbers if n <= len(some)) or [len(some)]:
        try:
            trials.append(_try(graph, some, make, number, seconds, clock))
        except NodeError as error:
            if not trials or not isinstance(error.__cause__, LossError):
                raise
            break  # so many are more than the training bears
        if _is_over(trials, stalest):
            break
    return Suggestion(choose(trials, enough, stalest), tuple(trials), enough, stalest)


def choose(trials: Sequence[Trial], enough: float = ENOUGH, stalest: float = STALEST) -> int:
    """The smallest number that is fast enough, of those that are not too stale; the least where all are."""
    allowed = _allowed(trials, stalest)
    best = max(trial.rate for trial in allowed)
    return min(trial.in_flight for trial in allowed if trial.rate >= enough * best)


def _allowed(trials: Sequence[Trial], stalest: float) -> Sequence[Trial]:
    return [trial for trial in trials if trial.staleness <= stalest] or trials[:1]


def _is_over(trials: Sequence[Trial], stalest: float) -> bool:
    """Whether a higher number will not be chosen."""
    *before, last = trials
    if last.staleness > stalest:
        return True
    best = max((trial.rate for trial in before[:-1]), default=float("inf"))
    return len(before) > 1 and max(last.rate, before[-1].rate) < _FASTER * best


def _try(
    graph: Graph, instances: list[Instance], make: Make, number: int, seconds: float, clock: Callable[[], float]
) -> Trial:
    meter = StalenessMeter()
    rates = []
    with torch.random.fork_rng(devices=[]), make(copy.deepcopy(graph), number, (meter,)) as runtime:
        for stretch in range(1 + _STRETCHES):
            stats = runtime.run([Stream(_until(instances, seconds / (1 + _STRETCHES), clock), True, "trial")])[0]
            if stretch:  # whatever is slow the first time is slow in the first one
                rates.append(stats.records / stats.seconds)
        staleness = meter.overall()
    return Trial(number, max(rates), staleness.mean if staleness.messages else 0.0, staleness.max)


def _until(instances: list[Instance], seconds: float, clock: Callable[[], float]) -> Iterator[Instance]:
    """Instances, round and round until the time is over; one at least."""
    end = clock() + seconds
    for instance in itertools.cycle(instances):
        yield instance
        if clock() >= end:
            return
