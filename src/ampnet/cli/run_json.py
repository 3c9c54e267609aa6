"""The file of ``--json``: written atomically after every epoch, and once more at the end.

    "state": "running" ──┬──> "done"           all epochs, or the target reached
                         ├──> "interrupted"    by Ctrl-C
                         └──> "failed"         by an error, which is under "error"; with the epochs before it

If the file cannot be written after an epoch, that is a warning, and the next epoch tries again.

A file with "running" that is not written any more belongs to a killed process. During a run, "engine", "bounded" and
"skipped" are null: they are known at its end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan, nan
from pathlib import Path
from typing import Any, Literal

from ampnet.cli.report import write_json
from ampnet.errors import OutputWarning
from ampnet.fitting import EpochRecord, FitResult, Resumed

State = Literal["running", "done", "interrupted", "failed"]


class RunFile:
    """Updates the file. ``report`` builds its contents from a result; ``path`` None: there is no file."""

    def __init__(
        self,
        path: Path | None,
        report: Callable[[FitResult], dict[str, Any]],
        metric: str,
        target: float | None,
        higher_is_better: bool,
    ) -> None:
        self.path, self._report = path, report
        self._metric, self._target, self._sign = metric, target, 1 if higher_is_better else -1
        self._history: list[EpochRecord] = []
        self._resumed: Resumed | None = None

    def resumed(self, resumed: Resumed, history: Sequence[EpochRecord]) -> None:
        """Called before the first epoch of a resumed run, with the epochs completed before."""
        self._resumed, self._history = resumed, list(history)

    def epoch(self, record: EpochRecord) -> None:
        """Called at the end of an epoch."""
        self._history.append(record)
        try:
            self._write("running", self._report(self.so_far()) | {"skipped": None})
        except OSError as error:
            warnings.warn(str(error), OutputWarning, stacklevel=2)

    @property
    def epochs(self) -> int:
        """The number of completed epochs."""
        return len(self._history)

    def end(self, state: State, report: dict[str, Any]) -> None:
        """Called at the end of the run."""
        self._write(state, report)

    def failed(self, error: BaseException) -> None:
        """Called when the run has ended in an error. Without a completed epoch there is no file."""
        if self._history:
            what = f"{type(error).__name__}: {error}"
            self._write("failed", self._report(self.so_far()) | {"skipped": None, "error": what})

    def so_far(self) -> FitResult:
        """Returns the result of the completed epochs."""
        values = [self._value(record) for record in self._history]
        known = [i for i, value in enumerate(values) if not isnan(value)]
        best = max(known, key=lambda i: self._sign * values[i], default=None)
        rates = [record.train_records_per_second for record in self._history]
        valid = [r for record in self._history if (r := record.valid_records_per_second) is not None]
        value = nan if best is None else values[best]
        return replace(
            FitResult.empty(self._metric, self._target),
            value=value,
            epoch=0 if best is None else self._history[best].epoch,
            reached=self._target is not None and self._sign * value >= self._sign * self._target,
            epochs=len(self._history),
            seconds=self._history[-1].seconds,
            train_records_per_second=_mean_rate(rates),
            valid_records_per_second=_mean_rate(valid) if valid else None,
            history=tuple(self._history),
            resumed=self._resumed,
        )

    def _value(self, record: EpochRecord) -> float:
        if self._metric == "loss":
            return record.train_loss if record.valid_loss is None else record.valid_loss
        return (record.valid_metrics or record.train_metrics).get(self._metric, nan)

    def _write(self, state: State, report: dict[str, Any]) -> None:
        if self.path is not None:
            write_json(self.path, {"state": state, **report})


def _mean_rate(rates: list[float]) -> float:
    """Returns the mean rate over epochs of equally many examples: the harmonic mean."""
    return len(rates) / sum(1 / rate for rate in rates) if all(rate > 0 for rate in rates) else nan
