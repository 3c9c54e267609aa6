"""Better: compares epochs by a metric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any, Literal

from ampnet.fitting.records import EpochRecord
from ampnet.tally import is_loss

Mode = Literal["min", "max"]


@dataclass(slots=True)
class Best:
    """The best value of a metric so far."""

    metric: str
    """The name of the metric, as in `EpochRecord.value`."""
    mode: Mode | None = None
    """Whether lower or higher is better; None: lower for losses and errors, higher for all others."""
    min_delta: float = 0.0
    """The minimal improvement that counts."""
    value: float = field(default=nan, init=False)
    epoch: int = field(default=0, init=False)
    """The best epoch; 0 before the first."""

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max", None):
            raise ValueError(f"mode must be 'min' or 'max', got {self.mode!r}")
        if self.min_delta < 0:
            raise ValueError(f"min_delta must be 0 or more, got {self.min_delta}")
        name = self.metric.removeprefix("train_").removeprefix("valid_")
        self.mode = self.mode or ("min" if is_loss(name) or name.endswith("error") else "max")

    def state(self) -> dict[str, Any]:
        """Returns the best epoch and its value, for a checkpoint."""
        return {"value": self.value, "epoch": self.epoch}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.value, self.epoch = float(state["value"]), int(state["epoch"])

    def improves(self, record: EpochRecord) -> bool:
        """Whether an epoch is better than all before it; if so, records it as the best. NaN is never better."""
        value = record.value(self.metric)
        sign = 1 if self.mode == "max" else -1
        better = not isnan(value) and (isnan(self.value) or sign * (value - self.value) > self.min_delta)
        if better:
            self.value, self.epoch = value, record.epoch
        return better
