"""Loggers: write the numbers of every epoch to a file during the run."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import os
import warnings
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from ampnet.checkpoint.output import check_output
from ampnet.errors import AmpnetError, OutputWarning
from ampnet.fitting.callback import Callback, Run
from ampnet.fitting.records import EpochRecord


class CSVLogger(Callback):
    """Writes a CSV file with a row for each epoch: losses, metrics, speeds, learning rate. Each row is flushed at once.

    The first row names the columns. ``append``: continue an existing file, whose columns must be the same (an
    incomplete last row is dropped); otherwise the file is overwritten. ``learning_rate`` is empty if it differs
    between nodes. A resumed run continues the file; rows of epochs that are trained again are dropped first. A file of
    another run is refused then.

    A device, FIFO or folder is refused. If the disk is full, the rows that had room stay, ``fault`` is the error, and
    the run goes on.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path, self.append = Path(path), append
        self.fault: str | None = None
        check_output(self.path)
        self._file: FileIO | None = None
        self._columns: list[str] = []

    def on_begin(self, run: Run) -> None:
        self._runtime = run.runtime
        goes_on = self.append or run.resumed is not None
        there = self.path.read_bytes() if goes_on and self.path.exists() else b""
        rows = there[: there.rfind(b"\n") + 1]  # a killed process may have left part of a row
        self._columns = next(csv.reader(rows.decode("utf-8").splitlines()), [])
        self._file = FileIO(self.path, "a+" if rows else "w+")
        if len(rows) < len(there):
            self._file.truncate(len(rows))

    def state(self) -> dict[str, Any]:
        size = 0 if self._file is None else self._file.tell()
        return {"size": size, "sha256": self._digest(size)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        assert self._file is not None
        size = state["size"]
        if size < self._file.tell():
            if self._digest(size) != state["sha256"]:
                raise ValueError(
                    f"{self.path} is not the file that this run began, and nothing of it is removed: give that one, or "
                    f"a new one"
                )
            self._file.truncate(size)
        if not size:
            self._columns = []

    def _digest(self, size: int) -> str:
        """Returns the SHA-256 of the beginning of the file."""
        there = b"" if self._file is None else os.pread(self._file.fileno(), size, 0)
        return hashlib.sha256(there).hexdigest()

    def on_epoch_end(self, record: EpochRecord) -> None:
        assert self._file is not None
        speeds = {"train_per_second": record.train_records_per_second}
        if record.valid_records_per_second is not None:
            speeds["valid_per_second"] = record.valid_records_per_second
        rates = set(_rates(self._runtime).values())
        row: dict[str, Any] = {"epoch": record.epoch, **record.values(), **speeds, "seconds": record.seconds}
        row["learning_rate"] = rates.pop() if len(rates) == 1 else ""
        text = io.StringIO()
        writer = csv.writer(text)
        if not self._columns:
            self._columns = list(row)
            writer.writerow(self._columns)
        if set(self._columns) != set(row):
            raise ValueError(
                f"{self.path} has the columns {', '.join(self._columns)}, and this run has {', '.join(row)}: write "
                f"another file"
            )
        writer.writerow([row[name] for name in self._columns])
        if self.fault is None:
            self._append(text.getvalue().encode())

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        before = self._file.tell()
        try:
            if self._file.write(data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.fault = error.strerror or str(error)
            self._file.truncate(before)
            warnings.warn(f"{self.path}: {self.fault}; later epochs are not in it", OutputWarning, stacklevel=2)

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
        again = {} if run.resumed is None else {"purge_step": run.resumed.epochs + 1}  # hides epochs trained again
        self._writer = self._make(str(self.folder), **again)

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
