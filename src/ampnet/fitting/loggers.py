"""Loggers: the numbers of every epoch in a file, written while the run goes on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TextIO

from ampnet.errors import AmpnetError
from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.records import EpochRecord


class CSVLogger(Callback):
    """A CSV file with a row for each epoch: losses, metrics, speeds, learning rate. Each row is flushed at once.

    The first row names the columns. ``append``: go on in a file that is there, whose columns must be the same; else
    the file is written anew. ``learning_rate`` is left empty where nodes differ in it.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self._file: TextIO | None = None
        self._columns: list[str] = []

    def on_begin(self, run: Run) -> None:
        self._runtime = run.runtime
        there = self.append and self.path.exists() and self.path.stat().st_size > 0
        self._columns = next(csv.reader(self.path.read_text("utf-8").splitlines()), []) if there else []
        self._file = self.path.open("a" if there else "w", newline="", encoding="utf-8")

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
    """Event files for TensorBoard in a folder: ``tensorboard --logdir FOLDER``. They are flushed after each epoch.

    Losses and metrics are called ``loss/train``, ``loss/valid``, ``accuracy/train`` and so on; speeds
    ``per_second/train``, learning rates ``learning_rate/NODE``. Needs the package tensorboard: the extra of that name.
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
