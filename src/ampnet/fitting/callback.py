"""Callback: an object whose methods `fit` calls during training.

    on_begin                                                                                            on_end, close
       │  on_epoch_begin 1 ── train ── on_train_end ── valid ── on_valid_end ── on_epoch_end 1 ──> 2 ...      │
                               └ on_turn, ten times a second ┘

Callbacks are called one after the other, in the given order, in the process that called `fit`. Streams follow one
another without a barrier: when an epoch's validation ends, instances of the next epoch are in flight, and weights
change. If a callback has ``at_rest = True``, each epoch ends at rest: all instances have retired and all updates are
made before ``on_epoch_end``, so it may read and write weights, and predict.

**Checkpoints.** A checkpoint keeps what `state` of each callback returns. A resumed run calls ``on_begin`` first, then
`load_state` with that; ``on_epoch_begin`` is not called again for an epoch that had begun. States are found by the name
of the class, and the order among callbacks of one class.

An exception in a callback ends the run, and is raised as `CallbackError`, with the name of the callback and the method.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampnet.controller import Progress
from ampnet.errors import CallbackError, CheckpointWarning, nearest
from ampnet.fitting.metrics import check_metric, metric_names
from ampnet.fitting.records import EpochRecord, FitResult, Resumed
from ampnet.instance import StreamStats

_OPTIONS = {"BestWeights": " (--save)", "CSVLogger": " (--csv)", "TensorBoardLogger": " (--tensorboard)"}
"""The options of the command line that add a callback."""


@dataclass(frozen=True, slots=True)
class Run:
    """The `fit` that calls the callback."""

    runtime: Any
    """The runtime that trains; ``run.runtime.graph`` is its graph."""
    epochs: int
    """The maximal number of epochs."""
    metric: str
    """The metric that `fit` compares with its target."""
    totals: dict[str, int | None]
    """The number of examples of "train" and "valid"; None if unknown. No "valid" without validation data."""
    stop: Callable[[str], None]
    """Ends the run, with a reason: in ``on_begin`` before the first epoch, in ``on_epoch_end`` after that epoch;
    elsewhere within the epoch."""
    interrupt: Callable[[], None] = lambda: None
    """Ends the run like Ctrl-C: instances in flight complete; if there are checkpoints, one is written."""
    resumed: Resumed | None = None
    """The checkpoint that it continues from; None: it starts afresh."""
    history: tuple[EpochRecord, ...] = ()
    """The records of epochs completed before it, in a resumed run."""
    begins: str | None = None
    """A line about the checkpoint that it continues from, or about the lack of one; None if none was asked for."""

    def check(self, metric: str) -> None:
        """Raise `ValueError` if no epoch will have this metric. For ``on_begin``."""
        graph = getattr(self.runtime, "graph", None)
        check_metric(metric, None if graph is None else metric_names(graph), "valid" in self.totals)


class Callback:
    """Base class of callbacks: every method does nothing. See the head of this file."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise TypeError for a method ``on_...`` that is never called, like those of other libraries."""
        super().__init_subclass__(**kwargs)
        known = [name for name in vars(Callback) if name.startswith("on_")]
        for name in dir(cls):
            if name.startswith("on_") and name not in known:
                raise TypeError(f"{cls.__name__}.{name} would never be called: {nearest(name, known)}")

    at_rest = False
    """Whether epochs must end at rest: with a barrier, and all updates made."""

    def on_begin(self, run: Run) -> None:
        """Called before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called before an epoch, numbered from 1, is pumped; instances of the one before may still be in flight."""

    def on_train_end(self, epoch: int, stats: StreamStats) -> None:
        """Called when the training of an epoch has ended."""

    def on_valid_end(self, epoch: int, stats: StreamStats) -> None:
        """Called when the validation of an epoch has ended."""

    def on_epoch_end(self, record: EpochRecord) -> None:
        """Called when training and validation of an epoch have ended."""

    def on_turn(self, progress: Progress) -> None:
        """Called about ten times a second with the progress."""

    def on_checkpoint(self, path: Path, seconds: float) -> None:
        """Called after a checkpoint was written, which took ``seconds``, mostly within a run."""

    def state(self) -> Mapping[str, Any] | None:
        """Returns what a resumed run needs: numbers, texts, tensors, and lists and dicts of them. None: nothing."""
        return None

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, in a resumed run, after ``on_begin``. Tuples have become lists."""

    def on_end(self, result: FitResult) -> None:
        """Called after the last epoch, a stop or an interrupt; not after an error. Nothing is in flight."""

    def close(self) -> None:
        """Called last, also after an error: close files."""


class Callbacks:
    """Calls several callbacks; an error names the one that failed."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        for one in callbacks:
            if not isinstance(one, Callback):
                raise TypeError(f"callbacks are Callback objects, got a {type(one).__name__}: derive it from Callback")
        self._all = list(callbacks)

    @property
    def at_rest(self) -> bool:
        """Whether any callback needs epochs to end at rest."""
        return any(one.at_rest for one in self._all)

    def has(self, method: str) -> bool:
        """Whether any callback overrides a method."""
        return any(
            getattr(getattr(one, method), "__func__", None) is not getattr(Callback, method) for one in self._all
        )

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method of all callbacks, in order. Raises the first error."""
        for one in self._all:
            try:
                getattr(one, method)(*arguments)
            except Exception as error:
                raise _named(one, method, error) from error

    def states(self) -> dict[str, Any]:
        """Returns the states of all callbacks that have one, by name."""
        found: dict[str, Any] = {}
        for name, one in self._by_name():
            try:
                state = one.state()
            except Exception as error:
                raise _named(one, "state", error) from error
            if state is not None:
                found[name] = state
        return found

    def restore(self, states: Mapping[str, Any]) -> None:
        """Give all callbacks their states. Warns of states whose callback is missing."""
        callbacks = dict(self._by_name())
        for name, state in states.items():
            if name not in callbacks:
                warnings.warn(
                    CheckpointWarning(
                        f"the run had a callback {name}{_OPTIONS.get(name, '')}, and this fit has none: it is not "
                        f"continued"
                    ),
                    stacklevel=3,
                )
                continue
            try:
                callbacks[name].load_state(state)
            except Exception as error:
                raise _named(callbacks[name], "load_state", error) from error

    def _by_name(self) -> Iterator[tuple[str, Callback]]:
        """Yields callbacks with a name of each: the class, with a number from the second of a class on."""
        seen: Counter[str] = Counter()
        for one in self._all:
            kind = type(one).__name__
            seen[kind] += 1
            yield (kind if seen[kind] == 1 else f"{kind} {seen[kind]}"), one

    def close(self) -> None:
        """Close all callbacks, even if one raises an error."""
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
