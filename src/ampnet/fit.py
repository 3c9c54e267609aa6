"""Fit: train for some epochs, validate after each, stop when the target is reached. The same loop for every runtime.

An epoch is two streams, its training and its validation. The runtime pulls them from one endless-looking row, and opens
the next while the last instances of the one before are still under way, so that no epoch ends with an idle machine:

    pumped   train 1 ............ valid 1 ... train 2 ............ valid 2 ... train 3 ..
    in flight            └ last of train 1 ┘           └ [1] ┘                     └ [3] ┘
                                                                         [2] valid 2 ends at the target: stop

[1] Without a barrier a validation meets weights that the last training instances still move, and its own last instances
    meet those of the next epoch: a difference of at most ``max_active_keys`` instances. ``barrier=True`` rules it out.
    Where there are replicas there is always a barrier: they are made equal after each training stream.
[2] The target counts from the moment a validation stream has ended, and the result speaks of that stream's epoch.
[3] What had been pumped of the next epoch comes back and changes weights, but is in no record.

A stream that was cut short (by [2], or by somebody else's ``runtime.stop()``) is known by its data not being used up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Protocol

from ampnet.controller import Progress
from ampnet.errors import DataError
from ampnet.instance import Instance, Stream, StreamStats


class Runtime(Protocol):
    """What `fit` needs of a runtime."""

    def run(
        self,
        streams: Iterable[Stream],
        *,
        barrier: bool = False,
        on_end: Callable[[StreamStats], None] | None = None,
        on_turn: Callable[[Progress], None] | None = None,
    ) -> list[StreamStats]:
        """Pump streams one after the other until every instance has retired; tell ``on_end`` of each stream's end."""

    def stop(self) -> None:
        """Pump nothing more; what is in flight still comes back. May be called from ``on_end`` and ``on_turn``."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What came of one epoch."""

    epoch: int
    """Its number, from 1."""
    train_loss: float
    """Mean loss over the epoch, of weights that changed all along."""
    train_metrics: dict[str, float]
    """Means of the metrics over the epoch, likewise."""
    valid_loss: float | None
    """Mean loss of the validation after it; None without validation data."""
    valid_metrics: dict[str, float]
    """Metrics of the validation after it; empty without validation data."""
    train_records_per_second: float
    """Training examples per second, from the stream's first pump to its last retirement."""
    valid_records_per_second: float | None
    """Validation examples per second, likewise; None without validation data."""
    seconds: float
    """From the start of `fit` to the end of this epoch's last stream."""


@dataclass(frozen=True, slots=True)
class FitResult:
    """What came of a `fit`."""

    metric: str
    """The name of the metric that counts."""
    value: float
    """The metric that counts: the one that reached the target, else the best of all epochs; nan without an epoch."""
    epoch: int
    """The epoch of ``value``; 0 without an epoch."""
    target: float | None
    """What was to be reached, if anything."""
    reached: bool
    """Whether it was."""
    epochs: int
    """Epochs in ``history``; the last is the one that reached the target, if it was reached."""
    seconds: float
    """From the start to the end of the last instance."""
    seconds_to_target: float | None
    """From the start to the end of the validation that reached the target; None if it was not reached."""
    train_records_per_second: float
    """Training examples per second over all epochs: examples / sum of the streams' seconds."""
    valid_records_per_second: float | None
    """Validation examples per second, likewise; None without validation data."""
    skipped: int
    """Messages whose loss was not finite and whose gradient was left out, in all streams."""
    history: tuple[EpochRecord, ...]
    """The epochs that were finished, in order."""

    @classmethod
    def empty(cls, metric: str, target: float | None = None) -> FitResult:
        """That of a run that was over before it began."""
        return cls(metric, nan, 0, target, False, 0, 0.0, None, nan, None, 0, ())


class FitInterrupted(KeyboardInterrupt):
    """`fit` was interrupted. ``result`` tells of the epochs finished until then."""

    def __init__(self, result: FitResult) -> None:
        super().__init__(f"interrupted after {result.epochs} epochs")
        self.result = result


def fit(
    runtime: Runtime,
    *,
    train: Callable[[int], Iterable[Instance]],
    valid: Callable[[int], Iterable[Instance]] | None = None,
    epochs: int,
    metric: str = "accuracy",
    target: float | None = None,
    higher_is_better: bool | None = None,
    barrier: bool = False,
    on_epoch: Callable[[EpochRecord], None] | None = None,
    on_turn: Callable[[Progress], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> FitResult:
    """Train for ``epochs`` epochs, or until ``metric`` of a validation is at or beyond ``target``.

    ``train`` and ``valid`` give the instances of an epoch (numbered from 1), in the order wanted. ``metric`` is one of
    the Loss's, or ``"loss"``; without ``valid`` the training's own metric counts. Streams are called "train 1",
    "valid 1" and so on. ``on_epoch`` hears of each finished epoch, ``on_turn`` of progress now and then.

    An interrupt (Ctrl-C) is raised as `FitInterrupted`, which carries the result so far.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be 1 or more, got {epochs}")
    if higher_is_better is None:
        higher_is_better = metric != "loss"
    if higher_is_better and metric == "loss":
        raise ValueError("a higher loss is not better: leave higher_is_better out, or give another metric")
    sign = 1 if higher_is_better else -1
    loop = _Loop(runtime, train, valid, epochs, metric, target, sign, on_epoch, clock, start=clock())
    try:
        runtime.run(loop.streams(), barrier=barrier, on_end=loop.ended, on_turn=on_turn)
    except KeyboardInterrupt as interrupt:
        raise FitInterrupted(loop.result()) from interrupt
    return loop.result()


@dataclass(slots=True)
class _Half:
    """One of the two streams of an epoch."""

    epoch: int
    train: bool
    used_up: bool = False
    stats: StreamStats | None = None


@dataclass(slots=True)
class _Loop:
    """The streams given to the runtime, and what has come of them."""

    runtime: Runtime
    train: Callable[[int], Iterable[Instance]]
    valid: Callable[[int], Iterable[Instance]] | None
    epochs: int
    metric: str
    target: float | None
    sign: int
    """1 where a higher metric is better, else -1."""
    on_epoch: Callable[[EpochRecord], None] | None
    clock: Callable[[], float]
    start: float
    halves: dict[str, _Half] = field(default_factory=dict)
    """By the name of the stream."""
    records: dict[int, EpochRecord] = field(default_factory=dict)
    reached: int | None = None
    """The epoch that reached the target."""
    seconds_to_target: float | None = None
    skipped: int = 0

    def streams(self) -> Iterator[Stream]:
        for epoch in range(1, self.epochs + 1):
            yield self._stream(epoch, True, self.train)
            if self.valid is not None:
                yield self._stream(epoch, False, self.valid)

    def _stream(self, epoch: int, train: bool, source: Callable[[int], Iterable[Instance]]) -> Stream:
        name = f"{'train' if train else 'valid'} {epoch}"
        half = self.halves[name] = _Half(epoch, train)

        def instances() -> Iterator[Instance]:
            yield from source(epoch)
            half.used_up = True

        return Stream(instances(), train, name)

    def ended(self, stats: StreamStats) -> None:
        half = self.halves[stats.name]
        self.skipped += stats.skipped
        if not half.used_up:
            return  # [3]
        if not stats.instances:
            raise DataError(f"stream '{stats.name}' has no instance: there is nothing to learn or to measure")
        half.stats = stats
        value = self._value(stats)
        if half.train == (self.valid is None) and self.reached is None and self._is_enough(value):
            self.reached, self.seconds_to_target = half.epoch, self.clock() - self.start
            self.runtime.stop()  # [2]
        self._record(half.epoch)

    def _value(self, stats: StreamStats) -> float:
        if self.metric == "loss":
            return stats.loss
        if self.metric not in stats.metrics:
            known = ", ".join(["loss", *stats.metrics])
            raise ValueError(f"metric '{self.metric}' is not reported by any Loss of the graph; there are: {known}")
        return stats.metrics[self.metric]

    def _is_enough(self, value: float) -> bool:
        return self.target is not None and self.sign * value >= self.sign * self.target

    def _record(self, epoch: int) -> None:
        """Make the epoch's record once both its streams have ended, whichever ended last."""
        train, valid = self._stats(epoch)
        if train is None or (valid is None and self.valid is not None):
            return
        if self.reached is not None and epoch > self.reached:
            return  # [3]: small enough to have ended before the validation that it came after
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
        if self.on_epoch is not None:
            self.on_epoch(record)

    def _stats(self, epoch: int) -> tuple[StreamStats | None, StreamStats | None]:
        train, valid = self.halves.get(f"train {epoch}"), self.halves.get(f"valid {epoch}")
        return train.stats if train is not None else None, valid.stats if valid is not None else None

    def result(self) -> FitResult:
        last = self.reached or self.epochs
        numbers = [epoch for epoch in sorted(self.records) if epoch <= last]
        pairs = [self._stats(epoch) for epoch in numbers]
        trains = [train for train, _ in pairs if train is not None]
        valids = [valid for _, valid in pairs if valid is not None]
        values = dict(zip(numbers, map(self._value, valids or trains), strict=True))
        best = max((e for e in numbers if not isnan(values[e])), key=lambda e: self.sign * values[e], default=0)
        epoch = self.reached or best
        return FitResult(
            self.metric,
            values.get(epoch, float("nan")),
            epoch,
            self.target,
            self.reached is not None,
            len(numbers),
            self.clock() - self.start,
            self.seconds_to_target,
            _rate(trains),
            _rate(valids) if self.valid is not None else None,
            self.skipped,
            tuple(self.records[e] for e in numbers),
        )


def _rate(streams: list[StreamStats]) -> float:
    seconds = sum(s.seconds for s in streams)
    return sum(s.records for s in streams) / seconds if seconds > 0 else float("nan")
