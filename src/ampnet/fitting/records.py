"""Records: the record of each epoch of a `fit`, and the result of the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from pathlib import Path

from ampnet.fitting.metrics import check_metric, split_name, value_of


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The statistics of one epoch."""

    epoch: int
    """Its number, from 1."""
    train_loss: float
    """Mean loss over the epoch, while the weights changed."""
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
        """Returns the loss or a metric by name: of the validation, or of the training without validation data.

        A prefix selects one of the two: "train_loss", "valid_accuracy".
        """
        kind, bare = split_name(name)
        check_metric(name, None, self.valid_loss is not None)
        if kind == "train" or self.valid_loss is None:
            return value_of(bare, self.train_loss, self.train_metrics)
        return value_of(bare, self.valid_loss, self.valid_metrics)

    def values(self) -> dict[str, float]:
        """Returns all losses and metrics, by name: "train_loss", "train_accuracy", "valid_loss", ..."""
        out = {"train_loss": self.train_loss, **{f"train_{n}": v for n, v in self.train_metrics.items()}}
        if self.valid_loss is not None:
            out |= {"valid_loss": self.valid_loss, **{f"valid_{n}": v for n, v in self.valid_metrics.items()}}
        return out


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a run continued from."""

    path: Path
    """The checkpoint."""
    epochs: int
    """Epochs completed before it."""
    stream: str | None
    """The stream in which it was written, like "train 4"; None: between two."""
    instances: int
    """The instances of that stream that were complete."""
    seconds: float
    """The seconds of training before it, without later ones that were lost."""
    resumes: int
    """How many times the run has been resumed, with this one."""
    finished: bool
    """Whether the run had ended: there is nothing left to train."""

    def __str__(self) -> str:
        plural = "" if self.epochs == 1 else "s"
        if self.finished:
            return f"the run in {self.path.parent} is finished, after {self.epochs} epoch{plural}"
        done = [f"{self.epochs} epoch{plural}"] if self.epochs or self.stream is None else []
        if self.stream is not None:
            done.append(f"{self.instances:,} instances of '{self.stream}'")
        return f"resumed from {self.path}, after {' and '.join(done)}"


@dataclass(frozen=True, slots=True, repr=False)
class FitResult:
    """The result of a `fit`."""

    metric: str
    """The name of the metric that is compared with the target."""
    value: float
    """Its value: the one that reached the target, else the best of all epochs; nan without an epoch."""
    epoch: int
    """The epoch of ``value``; 0 without an epoch."""
    target: float | None
    """The target value, if any."""
    reached: bool
    """Whether the target was reached."""
    epochs: int
    """Epochs in ``history``; the last is the one that reached the target, if it was reached."""
    seconds: float
    """Seconds from the start to the end of the last instance."""
    seconds_to_target: float | None
    """Seconds from the start to the end of the validation that reached the target; None if it was not reached."""
    train_records_per_second: float
    """Training examples per second over all epochs: examples / sum of the streams' seconds."""
    valid_records_per_second: float | None
    """Validation examples per second, likewise; None without validation data."""
    skipped: int
    """The number of messages whose loss was not finite and whose gradient was skipped, in all streams."""
    history: tuple[EpochRecord, ...]
    """The records of completed epochs, in order."""
    stopped: str | None = None
    """The reason why a callback ended the run early; None if none did."""
    resumed: Resumed | None = None
    """The checkpoint that the run continued from; None: it started afresh."""

    def __repr__(self) -> str:
        """``FitResult(accuracy 0.9754 in epoch 7 of 7, target 0.97 reached, 27.8 s)``: without the history."""
        target = (
            f", target {self.target:g} {'reached' if self.reached else 'not reached'}"
            if self.target is not None
            else ""
        )
        stopped = f", stopped: {self.stopped}" if self.stopped is not None else ""
        of = f"{self.metric} {self.value:.4g} in epoch {self.epoch} of {self.epochs}"
        return f"FitResult({of}{target}, {self.seconds:.1f} s{stopped})"

    @classmethod
    def empty(cls, metric: str, target: float | None = None) -> FitResult:
        """Returns the result of a run without epochs."""
        return cls(metric, nan, 0, target, False, 0, 0.0, None, nan, None, 0, ())


class FitInterrupted(KeyboardInterrupt):
    """`fit` was interrupted. ``result`` holds the epochs completed before."""

    def __init__(self, result: FitResult) -> None:
        super().__init__(f"interrupted after {result.epochs} epoch{'' if result.epochs == 1 else 's'}")
        self.result = result
