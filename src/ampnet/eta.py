"""Elapsed time, and the time left of the epoch and of the run, from the rates measured so far.

    epoch   (train records left) / (train rate)  +  (valid records left) / (valid rate)
    run     that, and all records of the epochs to come by the same rates

A rate is that of the stream that runs, or else that of the last epoch; before the first validation, validation is
expected to be as fast as training. A run that reaches its target ends earlier. The terminal (`ampnet.cli.progress`) and
the live page (`ampnet.events.live`) show these numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampnet.controller import Progress
    from ampnet.fitting import EpochRecord


def time_left(
    epochs: int, totals: Mapping[str, int], rates: Mapping[str, float], stream: str, records: int
) -> tuple[float, float] | None:
    """Returns the seconds until the end of the epoch and of the run; None before a rate was measured.

    ``totals`` are the records of a "train" and a "valid" stream, ``rates`` their records per second, as far as known.
    ``records`` of ``stream`` ("train 3") are done.
    """
    phase, _, number = stream.partition(" ")
    measured = {name: rate for name, rate in rates.items() if rate > 0}
    if not measured or phase not in totals or not number.isdecimal():
        return None
    whole = {name: count / measured.get(name, min(measured.values())) for name, count in totals.items()}
    done = whole.get("train", 0.0) if phase == "valid" else 0.0
    done += min(1.0, records / max(1, totals[phase])) * whole[phase]
    epoch = sum(whole.values()) - done
    return epoch, epoch + (epochs - int(number)) * sum(whole.values())


class Eta:
    """The time elapsed and left of a run, from its progress. ``totals``: as for `time_left`."""

    def __init__(self, epochs: int, totals: Mapping[str, int], clock: Callable[[], float] = time.perf_counter) -> None:
        self.epochs, self.totals, self._clock = epochs, totals, clock
        self._start = clock()
        self._rates: dict[str, float] = {}
        """Records per second, by stream."""

    def epoch(self, record: EpochRecord) -> None:
        """An epoch has ended."""
        self._rates["train"] = record.train_records_per_second
        if record.valid_records_per_second is not None:
            self._rates["valid"] = record.valid_records_per_second

    def left(self, progress: Progress) -> tuple[float, float] | None:
        """Returns the seconds until the end of the epoch, and of the run; None before anything was measured."""
        rates = dict(self._rates)
        if progress.records and progress.seconds > 0:
            rates[progress.stream.partition(" ")[0]] = progress.records / progress.seconds
        return time_left(self.epochs, self.totals, rates, progress.stream, progress.records)

    def text(self, progress: Progress) -> str:
        """Returns ``elapsed 1:02  left: epoch 0:05, run 3:20 at most``."""
        elapsed = f"elapsed {clock_text(self._clock() - self._start)}"
        left = self.left(progress)
        if left is None:
            return elapsed
        return f"{elapsed}  left: epoch {clock_text(left[0])}, run {clock_text(left[1])} at most"


def clock_text(seconds: float) -> str:
    """Returns a duration like ``0:09``, ``12:40``, ``3:05:00``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
