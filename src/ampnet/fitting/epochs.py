"""Epochs: the streams of a `fit`, one after the other, and the records made of them.

    (1, train) (1, valid) (2, train) (2, valid) ...      given to the runtime as it asks for them
         ended       ended        open                   a checkpoint keeps statistics, and positions of open streams

The state holds everything that later records and decisions depend on. A resumed run skips the streams that had ended,
and continues open ones at their positions.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ampnet.coming import Passed
from ampnet.controller import Progress
from ampnet.errors import CheckpointWarning, DataError
from ampnet.fingerprint import fingerprint
from ampnet.fitting.callback import Callbacks
from ampnet.fitting.generators import generator_states, set_generators
from ampnet.fitting.metrics import value_of
from ampnet.fitting.records import EpochRecord, FitResult, Resumed
from ampnet.fitting.sources import Source
from ampnet.instance import Instance, Stream, StreamStats
from ampnet.position import Position

if TYPE_CHECKING:
    from ampnet.fitting.saving import Saver


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


@dataclass(slots=True)
class _Half:
    """One of the two streams of an epoch."""

    epoch: int
    train: bool
    used_up: bool = False
    stats: StreamStats | None = None
    position: Position | None = None
    """Where it continues, in a resumed run."""
    generators: Any = None
    """The states of the global random generators when its data were opened."""
    first: int | None = None
    """The fingerprint of its first instance, if there are checkpoints."""


@dataclass(slots=True)
class Epochs:
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
    begun: int = 0
    """The last epoch whose ``on_epoch_begin`` was called."""
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
    saver: Saver | None = None
    """Writes checkpoints, if there are any."""
    resumed: Resumed | None = None
    generators: Any = None
    """In a resumed run: the states of the global random generators at the checkpoint."""
    interrupted: bool = False
    """Whether `interrupt` was called."""
    halted: bool = False
    """Whether the run ends because of it: its checkpoint, if any, is written."""

    def go(self) -> None:
        """Run all epochs that are left."""
        turn = self._turn if self.saver is not None or self.callbacks.has("on_turn") else None
        try:
            if self.is_over():
                return
            if not self.at_rest:
                for epoch in self._numbers:
                    if epoch not in self.records:
                        self._record(epoch)  # one whose streams had ended, in a resumed run
                self.runtime.run(self.streams(range(1, self.epochs + 1)), on_end=self.ended, on_turn=turn)
            for epoch in range(1, self.epochs + 1) if self.at_rest else ():
                if epoch in self.records:
                    continue
                self.runtime.run(self.streams([epoch]), barrier=True, on_end=self.ended, on_turn=turn)
                self._record(epoch)
                if self.last is not None or self.stopped is not None or self.halted or epoch not in self.records:
                    break
            if self.saver is not None and self.is_over():
                self.saver.over()
        finally:
            self.seconds = self.clock() - self.start

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.stopped is not None or self.last is not None or all(e in self.records for e in self._numbers)

    @property
    def _numbers(self) -> range:
        return range(1, self.epochs + 1)

    def _turn(self, progress: Progress) -> None:
        self.callbacks.call("on_turn", progress)
        if self.saver is not None:
            self.saver.turn()

    def stop(self, reason: str) -> None:
        """Called by a callback to end the run."""
        self.stopped, self.last = self.stopped or reason, self.last or self.finishing
        self.runtime.stop()

    def interrupt(self) -> None:
        """End the run before its end: with a checkpoint, if there are any, from which it can go on."""
        if self.saver is None:
            self._halt()
        elif not self.interrupted:
            self.interrupted = True
            self.saver.write_and(self._halt)

    def _halt(self) -> None:
        self.halted = True
        self.runtime.stop()

    def streams(self, epochs: Iterable[int]) -> Iterator[Stream]:
        """Yields the streams of these epochs that have not ended."""
        for epoch in epochs:
            if epoch > self.begun:
                self.begun = epoch
                self.callbacks.call("on_epoch_begin", epoch)
            for name in self.sources:
                half = self.halves.get(f"{name} {epoch}")
                if half is None or half.stats is None:
                    yield self._stream(epoch, name)

    def _stream(self, epoch: int, which: str) -> Stream:
        name = f"{which} {epoch}"
        half = self.halves.setdefault(name, _Half(epoch, which == "train"))

        def instances() -> Iterator[Instance]:
            again = half.position
            if self.saver is not None or again is not None:
                if again is not None:
                    set_generators(half.generators)  # data that are shuffled or drawn come again in the same way
                half.generators = generator_states()
            stream.source = given = self.sources[which](epoch)
            for number, instance in enumerate(given):
                if number == 0 and half.generators is not None and isinstance(instance, Instance):
                    _check_first(name, half, fingerprint(instance))
                if again is not None and number == again.pumped:
                    set_generators(self.generators)
                    again = None
                yield instance
            if again is not None:
                set_generators(self.generators)
            half.used_up = True

        stream = Passed(instances())
        return Stream(stream, half.train, name, position=half.position)

    def ended(self, stats: StreamStats) -> None:
        """Called at the end of a stream."""
        half = self.halves[stats.name]
        self.skipped += stats.skipped
        if not half.used_up:
            return  # [3]
        if not stats.instances:
            raise DataError(f"stream '{stats.name}' has no instance: there is nothing to learn or to measure")
        half.stats, half.position = stats, None
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
        if self.saver is not None and not self.is_over():  # at the end there is one in any case
            self.saver.epoch_ended(epoch, running=not self.at_rest)

    def _stats(self, epoch: int) -> tuple[StreamStats | None, StreamStats | None]:
        train, valid = self.halves.get(f"train {epoch}"), self.halves.get(f"valid {epoch}")
        return train.stats if train is not None else None, valid.stats if valid is not None else None

    def result(self) -> FitResult:
        """Returns the result so far."""
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
            self.resumed,
        )

    # -- checkpoints

    def state(self, positions: Mapping[str, Position]) -> dict[str, Any]:
        """Returns everything that a resumed run needs, as plain data. ``positions``: of open streams, by name."""
        plain = ("begun", "reached", "last", "stopped", "seconds_to_target", "skipped", "target")
        ended = {name: half.stats for name, half in self.halves.items() if half.stats is not None}
        opened = {name: at for name, at in positions.items() if name in self.halves}
        return {
            **{name: getattr(self, name) for name in plain},
            "seconds": self.clock() - self.start,
            "resumes": 0 if self.resumed is None else self.resumed.resumes,
            "ended": {name: _plain(stats) for name, stats in ended.items()},
            "open": {
                name: {"position": at.plain(), "generators": half.generators, "first": half.first}
                for name, at in opened.items()
                for half in (self.halves[name],)
            },
            "records": [asdict(record) for record in self.records.values()],
        }

    def restore(self, state: Mapping[str, Any], path: Path) -> None:
        """Continue from a state."""
        self.start = self.clock() - state["seconds"]
        self.begun, self.skipped, self.stopped = state["begun"], state["skipped"], state["stopped"]
        if state["target"] == self.target or state["stopped"] is not None:
            self.reached, self.last, self.seconds_to_target = (
                state[name] for name in ("reached", "last", "seconds_to_target")
            )
        self.records = {record["epoch"]: EpochRecord(**record) for record in state["records"]}
        for name, stats in state["ended"].items():
            self.halves[name] = _Half(_epoch(name), stats["train"], True, StreamStats(**stats))
        for name, opened in state["open"].items():
            position = Position.of(opened["position"])
            train = name.startswith("train")
            generators, first = opened["generators"], opened["first"]
            self.halves[name] = _Half(_epoch(name), train, False, None, position, generators, first)
            set_generators(generators)  # raises an error now, and not in the middle of the run
        where = next(iter(state["open"]), None)
        done = 0 if where is None else Position.of(state["open"][where]["position"]).retired
        self.resumed = Resumed(
            path, len(self.records), where, done, state["seconds"], state["resumes"] + 1, self.is_over()
        )


def _check_first(stream: str, half: _Half, found: int) -> None:
    """Warn if a stream that continues begins with another instance than before."""
    if half.position is not None and half.first is not None and half.first != found:
        warnings.warn(
            CheckpointWarning(
                f"stream '{stream}' begins with another instance than before the checkpoint: the data or their order "
                f"have changed, so some are trained twice or not at all in this epoch"
            ),
            stacklevel=2,
        )
    half.first = found


def _epoch(stream: str) -> int:
    return int(stream.rpartition(" ")[2])


def _plain(stats: StreamStats) -> dict[str, Any]:
    return {item.name: getattr(stats, item.name) for item in fields(stats) if item.name != "predictions"}


def _rate(streams: list[StreamStats]) -> float:
    seconds = sum(s.seconds for s in streams)
    return sum(s.records for s in streams) / seconds if seconds > 0 else float("nan")
