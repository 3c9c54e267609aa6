"""Early stopping: end a run whose metric has stopped improving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampnet.fitting.better import Best, Mode
from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.records import EpochRecord


class EarlyStopping(Callback):
    """Stops after ``patience`` epochs in a row in which ``metric`` was not better, by more than ``min_delta``, than the
    best epoch before.

    ``metric`` is "loss" or a metric of the validation ("train_loss": of the training). ``mode`` is "min" or "max"; by
    default lower is better for losses and errors, and higher for other metrics. An epoch whose value is NaN is not
    better.
    """

    def __init__(
        self, metric: str = "loss", patience: int = 5, *, min_delta: float = 0.0, mode: Mode | None = None
    ) -> None:
        if patience < 1:
            raise ValueError(f"patience must be 1 epoch or more, got {patience}")
        self.metric, self.patience, self.min_delta, self.mode = metric, patience, min_delta, mode
        self.best = Best(metric, mode, min_delta)

    def on_begin(self, run: Run) -> None:
        run.check(self.metric)
        self._run, self.best = run, Best(self.metric, self.mode, self.min_delta)

    def state(self) -> dict[str, Any]:
        return self.best.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best.restore(state)

    def on_epoch_end(self, record: EpochRecord) -> None:
        if not self.best.improves(record) and record.epoch - self.best.epoch >= self.patience:
            best = f"since epoch {self.best.epoch} ({self.best.value:.4g})" if self.best.epoch else "in any epoch"
            self._run.stop(f"{self.metric} was not better {best}, for {self.patience} epochs")
