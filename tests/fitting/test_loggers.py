"""Loggers: files that can be read while the run goes on."""

from __future__ import annotations

import builtins
import csv
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ampnet import AmpnetError, Callback, CSVLogger, TensorBoardLogger, fit
from ampnet.errors import CallbackError
from ampnet.fitting import EpochRecord
from tests.fitting.models import inline, points

TRAIN, VALID = points(8), points(4, seed=1)


class Reads(Callback):
    """Reads the file after every epoch."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[int]()

    def on_epoch_end(self, record: EpochRecord) -> None:
        self.lines.append(len(self.path.read_text().splitlines()))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_there_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    reads = Reads(path)
    with inline() as runtime:
        result = fit(runtime, train=TRAIN, valid=VALID, epochs=3, callbacks=[CSVLogger(path), reads])
        runtime.set_learning_rates({"first": 0.1})
        fit(runtime, train=TRAIN, valid=VALID, epochs=1, callbacks=[CSVLogger(path, append=True)])
    assert reads.lines == [2, 3, 4]
    found = rows(path)
    assert [row["epoch"] for row in found] == ["1", "2", "3", "1"]
    assert [float(row["valid_loss"]) for row in found[:3]] == [r.valid_loss for r in result.history]
    assert float(found[0]["train_absolute_error"]) == result.history[0].train_metrics["absolute_error"]
    assert [row["learning_rate"] for row in found] == ["0.05", "0.05", "0.05", ""]
    assert {"train_per_second", "valid_per_second", "seconds"} <= set(found[0])


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    with inline() as runtime:
        fit(runtime, train=TRAIN, valid=VALID, epochs=1, callbacks=[CSVLogger(path)])
        with pytest.raises(CallbackError, match=r"CSVLogger .* has the columns"):
            fit(runtime, train=TRAIN, epochs=1, callbacks=[CSVLogger(path, append=True)])
        fit(runtime, train=TRAIN, epochs=1, callbacks=[CSVLogger(path)])
    assert len(rows(path)) == 1


def test_a_row_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    """Once the first row of the run that went on was put after the half row that a killed process had left."""
    path = tmp_path / "run.csv"
    for append in (False, True):
        with inline() as runtime:
            fit(runtime, train=points(12), epochs=2, callbacks=[CSVLogger(path, append=append)])
        if not append:
            path.write_bytes(path.read_bytes()[:-9])
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "1", "2"]
    assert all(None not in row and None not in row.values() for row in rows)


class Writer:
    """Looks like torch's SummaryWriter."""

    made: ClassVar[list[Writer]] = []

    def __init__(self, folder: str) -> None:
        self.folder, self.scalars, self.flushed, self.closed = folder, dict[tuple[str, int], float](), 0, False
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars[name, step] = value

    def flush(self) -> None:
        self.flushed += 1

    def close(self) -> None:
        self.closed = True


def test_tensorboard_gets_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with inline() as runtime:
        result = fit(runtime, train=TRAIN, valid=VALID, epochs=2, callbacks=[TensorBoardLogger(tmp_path)])
    (writer,) = Writer.made
    assert (writer.flushed, writer.closed, writer.folder) == (2, True, str(tmp_path))
    assert writer.scalars["loss/valid", 2] == result.history[1].valid_loss
    assert writer.scalars["absolute_error/train", 1] == result.history[0].train_metrics["absolute_error"]
    assert writer.scalars["learning_rate/first", 1] == 0.05


def test_without_tensorboard_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError("No module named 'tensorboard'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(AmpnetError, match=r"pip install 'ampnet\[tensorboard\]'"):
        TensorBoardLogger("runs")


def test_tensorboards_own_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with inline() as runtime:
        fit(runtime, train=TRAIN, epochs=1, callbacks=[TensorBoardLogger(tmp_path)])
    assert [p.name.startswith("events.out.tfevents") for p in tmp_path.iterdir()] == [True]
