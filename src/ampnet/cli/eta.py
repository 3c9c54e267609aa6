"""Elapsed time, and how long the epoch and the run will still take, from the rates measured so far.

    epoch   (train records left) / (train rate)  +  (valid records left) / (valid rate)
    run     that, and all records of the epochs to come by the same rates

A rate is that of the stream that runs, or else that of the last epoch; before the first validation, validation is
expected to be as fast as training. A run that reaches its target ends earlier.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ampnet.controller import Progress
from ampnet.fitting import EpochRecord


class Eta:
    """Estimates of the time left. ``totals``: records of a "train" and a "valid" stream."""

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
        """Seconds until the end of the epoch, and of the run; None before anything was measured."""
        phase, _, number = progress.stream.partition(" ")
        rates = dict(self._rates)
        if progress.records and progress.seconds > 0:
            rates[phase] = progress.records / progress.seconds
        if not any(rate > 0 for rate in rates.values()):
            return None
        slowest = min(rate for rate in rates.values() if rate > 0)
        whole = {stream: count / rates.get(stream, slowest) for stream, count in self.totals.items()}
        done = whole["train"] if phase == "valid" else 0.0
        done += min(1.0, progress.records / max(1, self.totals[phase])) * whole[phase]
        epoch = sum(whole.values()) - done
        return epoch, epoch + (self.epochs - int(number)) * sum(whole.values())

    def text(self, progress: Progress) -> str:
        """``elapsed 1:02  left: epoch 0:05, run 3:20 at most``."""
        elapsed = f"elapsed {clock_text(self._clock() - self._start)}"
        left = self.left(progress)
        if left is None:
            return elapsed
        return f"{elapsed}  left: epoch {clock_text(left[0])}, run {clock_text(left[1])} at most"


def clock_text(seconds: float) -> str:
    """``0:09``, ``12:40``, ``3:05:00``."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
