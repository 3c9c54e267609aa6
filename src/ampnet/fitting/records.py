"""What comes of a `fit`: a record of each epoch, and the result of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from math import nan


def value_of(name: str, loss: float, metrics: Mapping[str, float]) -> float:
    """A number of a stream by its name: "loss", or a metric."""
    if name == "loss":
        return loss
    if name not in metrics:
        known = ["loss", *metrics]
        near = [n for n in known if n.endswith(f".{name}")] or get_close_matches(name, known, 1)
        hint = f". Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(
            f"metric '{name}' is not reported by any Loss of the graph; there are: {', '.join(known)}{hint}"
        )
    return metrics[name]


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

    def value(self, name: str) -> float:
        """The loss or a metric by name: of the validation, or of the training where there is none.

        "train_loss", "valid_accuracy" and the like say which of the two is meant.
        """
        kind, _, rest = name.partition("_")
        if kind == "train" or (kind != "valid" and self.valid_loss is None):
            return value_of(rest if kind == "train" else name, self.train_loss, self.train_metrics)
        if self.valid_loss is None:
            raise ValueError(f"there is no '{name}': fit was given no validation data")
        return value_of(rest if kind == "valid" else name, self.valid_loss, self.valid_metrics)

    def values(self) -> dict[str, float]:
        """All losses and metrics, by name: "train_loss", "train_accuracy", "valid_loss", ..."""
        out = {"train_loss": self.train_loss, **{f"train_{n}": v for n, v in self.train_metrics.items()}}
        if self.valid_loss is not None:
            out |= {"valid_loss": self.valid_loss, **{f"valid_{n}": v for n, v in self.valid_metrics.items()}}
        return out


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
    stopped: str | None = None
    """Why a callback ended the run early; None where none did."""

    @classmethod
    def empty(cls, metric: str, target: float | None = None) -> FitResult:
        """That of a run that was over before it began."""
        return cls(metric, nan, 0, target, False, 0, 0.0, None, nan, None, 0, ())


class FitInterrupted(KeyboardInterrupt):
    """`fit` was interrupted. ``result`` holds the epochs finished until then."""

    def __init__(self, result: FitResult) -> None:
        super().__init__(f"interrupted after {result.epochs} epochs")
        self.result = result
