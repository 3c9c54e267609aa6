"""Callback: what is called while `fit` trains.

    on_begin                                                                                            on_end, close
       │  on_epoch_begin 1 ── train ── on_train_end ── valid ── on_valid_end ── on_epoch_end 1 ──> 2 ...      │
                               └ on_turn, ten times a second ┘

Callbacks are called one after the other, in the order they are given in, by the process that called `fit`. Streams
follow one another without a barrier: when an epoch's validation ends, instances of the next epoch are in flight, and
weights change. Where a callback has ``at_rest = True``, each epoch ends at rest: all instances have come back and all
updates are made before ``on_epoch_end``, so it may read and write weights, and predict.

An exception in a callback ends the run, and is raised as `CallbackError`, with the name of the callback and the method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ampnet.controller import Progress
from ampnet.errors import CallbackError
from ampnet.fitting.records import EpochRecord, FitResult
from ampnet.instance import StreamStats


@dataclass(frozen=True, slots=True)
class Run:
    """The `fit` that a callback is called by."""

    runtime: Any
    """The runtime that trains; ``run.runtime.graph`` is its graph."""
    epochs: int
    """How many there will be at most."""
    metric: str
    """The metric that counts."""
    totals: dict[str, int | None]
    """Examples in a stream, by "train" and "valid"; None where that is not known. No "valid" without validation."""
    stop: Callable[[str], None]
    """Ends the run, for a reason: in ``on_epoch_end`` after that epoch; elsewhere the epoch is cut short."""


class Callback:
    """Base of callbacks: every method does nothing. See the head of this file."""

    at_rest = False
    """Whether epochs have to end at rest: with a barrier, and everything written to the weights."""

    def on_begin(self, run: Run) -> None:
        """Before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch, numbered from 1, is about to be pumped; the end of the one before may still be under way."""

    def on_train_end(self, epoch: int, stats: StreamStats) -> None:
        """The training of an epoch has ended."""

    def on_valid_end(self, epoch: int, stats: StreamStats) -> None:
        """The validation of an epoch has ended."""

    def on_epoch_end(self, record: EpochRecord) -> None:
        """Training and validation of an epoch have ended."""

    def on_turn(self, progress: Progress) -> None:
        """Some progress was made; called about ten times a second."""

    def on_end(self, result: FitResult) -> None:
        """The run is over, after its last epoch, a stop or an interrupt; not after an error. Nothing is in flight."""

    def close(self) -> None:
        """The very last call, after an error too: close files."""


class Callbacks:
    """Calls several of them, and names the one that fails."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for one in callbacks:
            if not isinstance(one, Callback):
                raise TypeError(f"callbacks are Callback objects, got a {type(one).__name__}: derive it from Callback")
        self._all = list(callbacks)

    @property
    def at_rest(self) -> bool:
        """Whether any of them wants epochs to end at rest."""
        return any(one.at_rest for one in self._all)

    def has(self, method: str) -> bool:
        """Whether any of them does something in a method."""
        return any(
            getattr(getattr(one, method), "__func__", None) is not getattr(Callback, method) for one in self._all
        )

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of all of them, in order. The first that fails is raised."""
        for one in self._all:
            try:
                getattr(one, method)(*arguments)
            except Exception as error:
                raise _named(one, method, error) from error

    def close(self) -> None:
        """Close all of them, also where one fails to."""
        failed: CallbackError | None = None
        for one in self._all:
            try:
                one.close()
            except Exception as error:
                failed = failed or _named(one, "close", error)
        if failed is not None:
            raise failed


def _named(callback: Callback, method: str, error: Exception) -> CallbackError:
    made = CallbackError(f"callback {type(callback).__name__} failed in {method}: {type(error).__name__}: {error}")
    made.__cause__ = error
    return made
