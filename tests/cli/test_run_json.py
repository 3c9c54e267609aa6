"""The file of ``--json``: there after every epoch, whole, and it says whether the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampnet.cli import main, placing
from ampnet.cli.run_json import RunFile
from ampnet.fitting import EpochRecord, FitResult

TINY = ["train", "list-reduction", "--epochs", "2", "--limit", "60", "--bucket", "10", "--hidden", "8"]


def record(epoch: int, accuracy: float, train_rate: float) -> EpochRecord:
    metrics = {"accuracy": accuracy}
    return EpochRecord(epoch, 0.3, metrics, 0.2, metrics, train_rate, 50.0, 10.0 * epoch)


def described(result: FitResult, **more: Any) -> dict[str, Any]:
    return {"value": result.value, "epoch": result.epoch, "rate": result.train_records_per_second, **more}


def test_the_file_is_written_after_every_epoch(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    file = RunFile(path, described, "accuracy", 0.9, True)
    file.epoch(record(1, 0.8, 100.0))
    first = {"state": "running", "value": 0.8, "epoch": 1, "rate": 100.0, "skipped": None}
    assert json.loads(path.read_text()) == first
    file.epoch(record(2, 0.7, 300.0))
    assert json.loads(path.read_text()) == {**first, "rate": 150.0}  # the best is still the first
    assert file.so_far().reached is False
    file.end("done", {"value": 0.8})
    assert json.loads(path.read_text()) == {"state": "done", "value": 0.8}
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_that_fails_keeps_its_epochs_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    file = RunFile(path, described, "accuracy", None, True)
    file.failed(RuntimeError("too early"))
    assert not path.exists()
    file.epoch(record(1, 0.8, 100.0))
    file.failed(RuntimeError("no memory"))
    found = json.loads(path.read_text())
    assert (found["state"], found["error"], found["value"]) == ("failed", "RuntimeError: no memory", 0.8)


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = RunFile(None, described, "accuracy", None, True)
    file.epoch(record(1, 0.8, 100.0))
    file.end("done", {})
    assert list(tmp_path.iterdir()) == []


def test_a_training_run_writes_it_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "run.json", []
    epoch = RunFile.epoch

    def looking(self: RunFile, record: EpochRecord) -> None:
        epoch(self, record)
        seen.append(json.loads(path.read_text()))

    monkeypatch.setattr(RunFile, "epoch", looking)
    assert main([*TINY, "--quiet", "--json", str(path)]) == 0
    assert [(one["state"], one["epochs"], one["engine"]) for one in seen] == [
        ("running", 1, None),
        ("running", 2, None),
    ]
    done = json.loads(path.read_text())
    assert (done["state"], done["epochs"], done["engine"]["name"]) == ("done", 2, "waves")
    assert done["history"] == seen[-1]["history"]
    assert done["settings"] == seen[-1]["settings"]


def test_the_limit_is_that_of_training_and_validation(capsys: pytest.CaptureFixture[str]) -> None:
    from ampnet.experiments.catalog import WORKLOADS

    for name in ("list-reduction", "babi15", "permuted-layers", "adaptive-depth"):
        workload = WORKLOADS[name]
        data = workload.load(workload.settings(limit=7))
        assert (len(data.train), len(data.valid)) == (7, 7)
    whole = WORKLOADS["adaptive-depth"]
    few = whole.load(whole.settings(limit=7)).valid
    assert [p[0].tolist() for p in few] == [p[0].tolist() for p in whole.load(whole.settings()).valid[:7]]


def test_more_workers_than_cores_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert placing.crowded(2) is placing.crowded("auto") is placing.crowded(None) is None
    line = placing.crowded(99)
    assert line is not None
    assert line.startswith("99 workers on 2 cores: they take turns on the cores, so training is not faster than with")
    assert main([*TINY, "--workers", "3"]) == 0
    assert capsys.readouterr().err.count("ampnet: 3 workers on 2 cores: ") == 1
