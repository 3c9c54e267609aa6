"""Options of ``ampnet train`` that are callbacks of `fit`: early stopping, CSV, TensorBoard."""

from __future__ import annotations

import builtins
import csv
from pathlib import Path
from typing import Any

import pytest

from ampnet.cli import main

TINY = ("train", "list-reduction", "--train-size", "300", "--valid-size", "100", "--hidden", "8", "--quiet")


def test_a_row_for_every_epoch(tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    assert main([*TINY, "--epochs", "2", "--csv", str(file)]) == 0
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert 0 <= float(rows[1]["valid_accuracy"]) <= 1
    assert float(rows[1]["learning_rate"]) < float(rows[0]["learning_rate"])  # it decays


def test_patience_ends_the_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With a rate of nearly nothing no epoch is better than the first."""
    argv = [*TINY[:-1], "--epochs", "9", "--lr", "1e-30", "--patience", "2", "--json", str(tmp_path / "run.json")]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "stopped: accuracy was not better since epoch 1" in out
    assert " in 3 epochs, " in out


@pytest.mark.parametrize("patience", ["0", "some"])
def test_patience_is_a_number(patience: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--patience", patience]) == 2
    assert "--patience" in capsys.readouterr().err


def test_two_files_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "run.csv")
    assert main([*TINY, "--csv", path, "--json", path]) == 2
    assert "the same file as --json" in capsys.readouterr().err


def test_tensorboard_that_is_not_installed_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch.utils.tensorboard":
            raise ImportError("No module named 'tensorboard'")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main([*TINY, "--tensorboard", str(tmp_path)]) == 1
    assert "pip install 'ampnet[tensorboard]'" in capsys.readouterr().err
