"""Fit: train for some epochs, validate after each, stop when the target is reached. The same loop for every runtime.

An epoch is two streams, its training and its validation. The runtime reads the streams from one iterator, and begins
the next while the last instances of the one before are still in flight, so that the machine is not idle between epochs:

    pumped   train 1 ............ valid 1 ... train 2 ............ valid 2 ... train 3 ..
    in flight            └ last of train 1 ┘           └ [1] ┘                     └ [3] ┘
                                                                         [2] valid 2 ends at the target: stop

[1] Without a barrier a validation uses weights that the last training instances still change, and its own last
    instances use weights of the next epoch: a difference of at most ``max_active_keys`` instances. ``barrier=True``
    prevents it: each stream waits for the one before, and each epoch is a separate run, after which nothing is in
    flight. With replicas there is always a barrier: they are synchronised after each training stream.
[2] The target is checked when a validation stream has ended, and the result refers to that stream's epoch.
[3] Instances of the next epoch that were already pumped complete and change weights, but are in no record.

A stream that was stopped early (by [2], or by another call of ``runtime.stop()``) is recognised by its remaining data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Protocol

from ampnet.controller import Progress
from ampnet.errors import CallbackError, DataError
from ampnet.fitting.callback import Callback, Callbacks, Run
from ampnet.fitting.metrics import check_metric, metric_names, split_name, value_of
from ampnet.fitting.records import EpochRecord, FitInterrupted, FitResult
from ampnet.fitting.sources import Source, length_of, source_of
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.tally import is_loss


class Runtime(Protocol):
    """The methods that `fit` needs of a runtime."""

    def run(
        self,
        streams: Iterable[Stream],
        *,
        barrier: bool = False,
        on_end: Callable[[StreamStats], None] | None = None,
        on_turn: Callable[[Progress], None] | None = None,
    ) -> list[StreamStats]:
        """Pump streams one after the other until every instance has retired; call ``on_end`` at each stream's end."""

    def stop(self) -> None:
        """Stop pumping; instances in flight still complete. May be called from ``on_end`` and ``on_turn``."""


def fit(
    runtime: Runtime,
    *,
    train: Any,
    valid: Any = None,
    epochs: int,
    callbacks: Sequence[Callback] = (),
    metric: str = "loss",
    target: float | None = None,
    higher_is_better: bool | None = None,
    shuffle: bool | None = None,
    seed: int = 0,
    barrier: bool = False,
    progress: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> FitResult:
    """Train for ``epochs`` epochs, or until ``metric`` of a validation is at or beyond ``target``.

    ``train`` and ``valid`` are data sets: lists or Datasets of samples (what ``graph.instance`` takes) or of instances,
    other iterables, or functions from the number of an epoch (from 1) to an iterable. Training data with a length are
    shuffled, in an order determined by ``seed`` and the epoch, unless ``shuffle`` is False.

    ``metric`` is one of the Loss's, or "loss"; of several losses with names, "mood.accuracy" or "mood.loss". It is
    measured on ``valid``, or on ``train`` without it; "train_loss" and "valid_loss" say which. ``callbacks`` are called
    in order (see `Callback`); ``progress`` shows the display of ``ampnet train``. ``barrier``: each stream waits for
    the one before, and each epoch ends with nothing in flight. Streams have the names "train 1", "valid 1" and so on.

    An interrupt (Ctrl-C) is raised as `FitInterrupted`, which carries the result so far; an exception in a callback as
    `CallbackError`, which names it.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be 1 or more, got {epochs}")
    _check_runtime(runtime)
    graph = getattr(runtime, "graph", None)
    check_metric(metric, None if graph is None else metric_names(graph), valid is not None)
    kind, bare = split_name(metric)
    if higher_is_better is None:
        higher_is_better = not is_loss(bare)
    if higher_is_better and is_loss(bare):
        raise ValueError("a higher loss is not better: leave higher_is_better out, or give another metric")
    if isinstance(callbacks, Callback):
        raise TypeError(f"callbacks is a list: callbacks=[{type(callbacks).__name__}(...)]")
    given = list(callbacks)
    if progress:
        from ampnet.fitting.shown import Shown

        given.append(Shown())
    called = Callbacks(given)
    sources = {"train": source_of(train, runtime, shuffle=shuffle, seed=seed, epochs=epochs, name="train")}
    if valid is not None:
        sources["valid"] = source_of(valid, runtime, shuffle=False, seed=seed, epochs=epochs, name="valid")
    totals = {name: length_of(data) for name, data in (("train", train), ("valid", valid)) if name in sources}
    loop = _Loop(
        runtime, sources, epochs, metric, target, 1 if higher_is_better else -1, called, clock, clock(),
        at_rest=barrier or called.at_rest, name=bare, by_train=kind == "train" or valid is None,
    )  # fmt: skip
    try:
        called.call("on_begin", Run(runtime, epochs, metric, totals, loop.stop))
        try:
            loop.go()
        except KeyboardInterrupt as interrupt:
            called.call("on_end", loop.result())
            raise FitInterrupted(loop.result()) from interrupt
        called.call("on_end", loop.result())
    except BaseException:
        with suppress(CallbackError):  # the first error counts
            called.close()
        raise
    called.close()
    return loop.result()


def _check_runtime(runtime: Any) -> None:
    """Raise an error for a model or a graph instead of a runtime, and for a runtime that updates nothing."""
    if not hasattr(runtime, "run"):
        raise TypeError(
            f"fit takes a runtime, got a {type(runtime).__name__}: "
            f"ampnet.Inline(ampnet.compile(model, *example), update=ampnet.Update(...))"
        )
    graph = getattr(runtime, "graph", None)
    trained = [] if graph is None else list(graph.parameterised().values())
    if trained and all(node.updater.policy is None for node in trained):
        raise ValueError(
            "this runtime has no optimizer, so training would change no weights: make it with "
            "update=ampnet.Update(partial(torch.optim.Adam, lr=1e-3))"
        )


@dataclass(slots=True)
class _Half:
    """One of the two streams of an epoch."""

    epoch: int
    train: bool
    used_up: bool = False
    stats: StreamStats | None = None


@dataclass(slots=True)
class _Loop:
    """The streams given to the runtime, and their results."""

    runtime: Runtime
    sources: dict[str, Source]
    """By "train" and, with validation data, "valid"."""
    epochs: int
    metric: str
    target: float | None
    sign: int
    """1 if a higher metric is better, else -1."""
    callbacks: Callbacks
    clock: Callable[[], float]
    start: float
    at_rest: bool
    """Whether each epoch is a separate run."""
    name: str
    """The metric's name without "train_" or "valid_"."""
    by_train: bool
    """Whether the metric is that of the training."""
    halves: dict[str, _Half] = field(default_factory=dict)
    """By the name of the stream."""
    records: dict[int, EpochRecord] = field(default_factory=dict)
    reached: int | None = None
    """The epoch that reached the target."""
    last: int | None = None
    """The epoch after which the run was stopped."""
    stopped: str | None = None
    """The reason given by the callback that stopped it."""
    seconds_to_target: float | None = None
    skipped: int = 0
    finishing: int | None = None
    """The epoch whose ``on_epoch_end`` is being called."""
    seconds: float | None = None

    def go(self) -> None:
        """Run all epochs."""
        turn = (lambda progress: self.callbacks.call("on_turn", progress)) if self.callbacks.has("on_turn") else None
        try:
            if self.stopped is not None:  # in on_begin
                return
            if not self.at_rest:
                self.runtime.run(self.streams(range(1, self.epochs + 1)), on_end=self.ended, on_turn=turn)
                return
            for epoch in range(1, self.epochs + 1):
                self.runtime.run(self.streams([epoch]), barrier=True, on_end=self.ended, on_turn=turn)
                self._record(epoch)
                if self.last is not None or self.stopped is not None or epoch not in self.records:
                    return
        finally:
            self.seconds = self.clock() - self.start

    def stop(self, reason: str) -> None:
        """Called by a callback to end the run."""
        self.stopped, self.last = self.stopped or reason, self.last or self.finishing
        self.runtime.stop()

    def streams(self, epochs: Iterable[int]) -> Iterator[Stream]:
        for epoch in epochs:
            self.callbacks.call("on_epoch_begin", epoch)
            for name in self.sources:
                yield self._stream(epoch, name)

    def _stream(self, epoch: int, which: str) -> Stream:
        half = self.halves[f"{which} {epoch}"] = _Half(epoch, which == "train")

        def instances() -> Iterator[Instance]:
            yield from self.sources[which](epoch)
            half.used_up = True

        return Stream(instances(), half.train, f"{which} {epoch}")

    def ended(self, stats: StreamStats) -> None:
        half = self.halves[stats.name]
        self.skipped += stats.skipped
        if not half.used_up:
            return  # [3]
        if not stats.instances:
            raise DataError(f"stream '{stats.name}' has no instance: there is nothing to learn or to measure")
        half.stats = stats
        value = value_of(self.name, stats.loss, stats.metrics)
        counts = half.train == self.by_train
        if counts and self.last is None and self.target is not None and self.sign * value >= self.sign * self.target:
            self.reached = self.last = half.epoch
            self.seconds_to_target = self.clock() - self.start
            self.runtime.stop()  # [2]
        self.callbacks.call("on_train_end" if half.train else "on_valid_end", half.epoch, stats)
        if not self.at_rest:
            self._record(half.epoch)

    def _record(self, epoch: int) -> None:
        """Make the epoch's record when both its streams have ended, in any order."""
        train, valid = self._stats(epoch)
        if train is None or (valid is None and "valid" in self.sources):
            return
        if self.last is not None and epoch > self.last:
            return  # [3]: a small stream that ended before the validation that precedes it
        self.records[epoch] = record = EpochRecord(
            epoch,
            train.loss,
            train.metrics,
            valid.loss if valid is not None else None,
            valid.metrics if valid is not None else {},
            train.records_per_second,
            valid.records_per_second if valid is not None else None,
            self.clock() - self.start,
        )
        self.finishing = epoch
        self.callbacks.call("on_epoch_end", record)
        self.finishing = None

    def _stats(self, epoch: int) -> tuple[StreamStats | None, StreamStats | None]:
        train, valid = self.halves.get(f"train {epoch}"), self.halves.get(f"valid {epoch}")
        return train.stats if train is not None else None, valid.stats if valid is not None else None

    def result(self) -> FitResult:
        last = self.last or self.epochs
        numbers = [epoch for epoch in sorted(self.records) if epoch <= last]
        pairs = [self._stats(epoch) for epoch in numbers]
        trains = [train for train, _ in pairs if train is not None]
        valids = [valid for _, valid in pairs if valid is not None]
        counted = trains if self.by_train else valids
        values = {e: value_of(self.name, s.loss, s.metrics) for e, s in zip(numbers, counted, strict=True)}
        best = max((e for e in numbers if not isnan(values[e])), key=lambda e: self.sign * values[e], default=0)
        epoch = self.reached or best
        return FitResult(
            self.metric,
            values.get(epoch, float("nan")),
            epoch,
            self.target,
            self.reached is not None,
            len(numbers),
            self.clock() - self.start if self.seconds is None else self.seconds,
            self.seconds_to_target,
            _rate(trains),
            _rate(valids) if "valid" in self.sources else None,
            self.skipped,
            tuple(self.records[e] for e in numbers),
            self.stopped,
        )


def _rate(streams: list[StreamStats]) -> float:
    seconds = sum(s.seconds for s in streams)
    return sum(s.records for s in streams) / seconds if seconds > 0 else float("nan")
