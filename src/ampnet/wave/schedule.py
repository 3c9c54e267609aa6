"""Schedule: which passage plays its next operation.

The operations of a passage have one order, so a schedule only chooses among passages, and among them and the wave that
is to begin next:

    backward-first    gradients before activations, the oldest wave first (the paper's). In one process every operation
                      of the oldest wave can always run, so waves are played one after the other: staleness is 0. Where
                      nodes are parted over workers, a wave that no other worker waits for comes last
    fifo              the wave that has waited longest: waves take turns, operation by operation
    sweep             the wave with the fewest operations played: waves advance in step
    random            any, drawn from the seed. For tests

With updates frozen the order decides nothing (promise P3); otherwise it decides how stale gradients are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np


class Bordered(Protocol):
    """What a schedule reads of a layout."""

    @property
    def crosses(self) -> bool:
        """Whether rows go to other workers, or come from them."""


class InFlight(Protocol):
    """What a schedule reads of a passage: a real one (`ampnet.wave.passage`), or a simulated one."""

    backward: bool
    played_at: int

    @property
    def layout(self) -> Bordered: ...

    @property
    def progress(self) -> float: ...


P = TypeVar("P", bound=InFlight)


class WaveSchedule(Protocol):
    """Chooses among passages."""

    one_by_one: bool
    """Whether a passage that was begun is played to its end before another is."""

    def next(self, passages: Sequence[P], more: bool) -> P | None:
        """The passage to play now, of those in flight (oldest first); None: begin another, which ``more`` says is
        there."""

    def state(self) -> Any:
        """Returns what its choices depend on besides the passages, as plain data."""

    def restore(self, state: Any) -> None:
        """Continue from a state."""


class _Stateless:
    """A schedule that depends on the passages alone."""

    def state(self) -> Any:
        return None

    def restore(self, state: Any) -> None:
        """There is nothing to restore."""


class BackwardFirst(_Stateless):
    """Backward before forward, then the oldest; of those that go to other workers, if there are any."""

    one_by_one = True

    def next(self, passages: Sequence[P], more: bool) -> P | None:
        if len(passages) > 1:
            return min(passages, key=lambda p: (not p.layout.crosses, not p.backward))  # of equal ones, the first
        return passages[0] if passages else None


class Fifo(_Stateless):
    """The passage that has waited longest."""

    one_by_one = False

    def next(self, passages: Sequence[P], more: bool) -> P | None:
        return None if more else min(passages, key=lambda p: p.played_at, default=None)


class Sweep(_Stateless):
    """The least advanced passage."""

    one_by_one = False

    def next(self, passages: Sequence[P], more: bool) -> P | None:
        return None if more else min(passages, key=lambda p: p.progress, default=None)


class Random:
    """A random passage, drawn from ``seed``."""

    one_by_one = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def state(self) -> Any:
        return self._rng.bit_generator.state

    def restore(self, state: Any) -> None:
        self._rng.bit_generator.state = state

    def next(self, passages: Sequence[P], more: bool) -> P | None:
        chosen = int(self._rng.integers(len(passages) + more)) if passages or more else 0
        return passages[chosen] if chosen < len(passages) else None


WAVE_SCHEDULES: dict[str, Callable[[int], WaveSchedule]] = {
    "backward-first": lambda seed: BackwardFirst(),
    "fifo": lambda seed: Fifo(),
    "sweep": lambda seed: Sweep(),
    "random": Random,
}
"""By name, made with the run's seed."""
