"""Loggers: write the numbers of every epoch to a file during the run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TextIO

from ampnet.errors import AmpnetError
from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.records import EpochRecord


class CSVLogger(Callback):
    """Writes a CSV file with a row for each epoch: losses, metrics, speeds, learning rate. Each row is flushed at once.

    The first row names the columns. ``append``: continue an existing file, whose columns must be the same (an
    incomplete last row is dropped); otherwise the file is overwritten. ``learning_rate`` is empty if it differs
    between nodes.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_begin(self, run: Run) -> None:
        self._runtime = run.runtime
        there = self.path.read_bytes() if self.append and self.path.exists() else b""
        rows = there[: there.rfind(b"\n") + 1]  # a killed process may have left part of a row
        self._columns = next(csv.reader(rows.decode("utf-8").splitlines()), [])
        self._file = self.path.open("a" if rows else "w", newline="", encoding="utf-8")
        if len(rows) < len(there):
            self._file.truncate(len(rows))

    def on_epoch_end(self, record: EpochRecord) -> None:
        assert self._file is not None
        speeds = {"train_per_second": record.train_records_per_second}
        if record.valid_records_per_second is not None:
            speeds["valid_per_second"] = record.valid_records_per_second
        rates = set(_rates(self._runtime).values())
        row: dict[str, Any] = {"epoch": record.epoch, **record.values(), **speeds, "seconds": record.seconds}
        row["learning_rate"] = rates.pop() if len(rates) == 1 else ""
        writer = csv.writer(self._file)
        if not self._columns:
            self._columns = list(row)
            writer.writerow(self._columns)
        if set(self._columns) != set(row):
            raise ValueError(
                f"{self.path} has the columns {', '.join(self._columns)}, and this run has {', '.join(row)}: write "
                f"another file"
            )
        writer.writerow([row[name] for name in self._columns])
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class TensorBoardLogger(Callback):
    """Writes event files for TensorBoard to a folder: ``tensorboard --logdir FOLDER``. They are flushed after each
    epoch.

    The tags of losses and metrics are ``loss/train``, ``loss/valid``, ``accuracy/train`` and so on; of speeds
    ``per_second/train``, of learning rates ``learning_rate/NODE``. Needs the extra ``tensorboard``.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise AmpnetError(
                f"TensorBoardLogger needs the package tensorboard ({error}): pip install 'ampnet[tensorboard]'"
            ) from error
        self._make, self.folder = SummaryWriter, Path(folder)
        self._writer: Any = None

    def on_begin(self, run: Run) -> None:
        self._runtime = run.runtime
        self._writer = self._make(str(self.folder))

    def on_epoch_end(self, record: EpochRecord) -> None:
        for name, value in record.values().items():
            kind, _, rest = name.partition("_")
            self._writer.add_scalar(f"{rest}/{kind}", value, record.epoch)
        self._writer.add_scalar("per_second/train", record.train_records_per_second, record.epoch)
        if record.valid_records_per_second is not None:
            self._writer.add_scalar("per_second/valid", record.valid_records_per_second, record.epoch)
        for node, rate in _rates(self._runtime).items():
            self._writer.add_scalar(f"learning_rate/{node}", rate, record.epoch)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _rates(runtime: Any) -> dict[str, float]:
    rates: dict[str, float] = getattr(runtime, "learning_rates", {})
    return rates
