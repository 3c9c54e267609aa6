"""``ampnet train --checkpoint-dir --resume``: a killed or interrupted command goes on; what is refused, and how."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ampnet.checkpoint import Checkpoints, Loaded
from ampnet.cli import main

SMALL = ("train", "list-reduction", "--train-size", "1200", "--valid-size", "200", "--hidden", "8", "--epochs", "3")
EVERY = ("--checkpoint-every", "4")


def last(folder: Path) -> Loaded:
    found = Checkpoints(folder).latest()
    assert found is not None
    return found


def started(*options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ampnet", *SMALL, *options]
    pipe = subprocess.PIPE
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def signalled(number: signal.Signals, after: int, *options: str) -> int:
    """Train in a process that gets a signal after some checkpoints. Returns its exit code."""
    with started(*options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            after -= line.startswith("checkpoint: ")
            if not after:
                process.send_signal(number)
                break
        process.communicate()
        return process.returncode


def without_times(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    for record in found["history"]:
        for name in ("seconds", "train_records_per_second", "valid_records_per_second"):
            del record[name]
    return {name: found[name] for name in ("state", "value", "value_epoch", "epochs", "history", "skipped")}


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL twice; then weights, optimizers and results equal those of one run, to the bit."""
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    files = tmp_path / "whole.json", tmp_path / "killed.json"
    assert main([*SMALL, *EVERY, "--checkpoint-dir", str(whole), "--json", str(files[0])]) == 0
    common = ("--checkpoint-dir", str(folder), "--json", str(files[1]))
    assert signalled(signal.SIGKILL, 2, *EVERY, *common) == -signal.SIGKILL
    assert signalled(signal.SIGKILL, 3, *common, "--resume", "auto") == -signal.SIGKILL
    capsys.readouterr()
    assert main([*SMALL, *common, "--resume"]) == 0  # every 4 instances: as it began
    assert capsys.readouterr().out.startswith(f"resumed from {folder}/checkpoint-")
    one, other = last(whole), last(folder)
    assert set(one.tensors) == set(other.tensors)
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    assert one.data["runtime"] == other.data["runtime"]
    assert without_times(files[0]) == without_times(files[1])
    found = json.loads(files[1].read_text())
    assert found["resumed_from"].startswith(str(folder))
    assert found["resumed_epochs"] in (0, 1, 2)
    assert json.loads(files[0].read_text())["resumed_from"] is None


def test_a_signal_leaves_a_last_checkpoint(tmp_path: Path) -> None:
    """At a drained point: nothing is in flight in it."""
    options = ("--checkpoint-dir", str(tmp_path / "run"), *EVERY, "--epochs", "500")
    assert signalled(signal.SIGTERM, 2, *options) == 128 + signal.SIGTERM
    positions = [of["position"] for of in last(tmp_path / "run").data["fit"]["open"].values()]
    assert positions
    assert not any(position["in_flight"] for position in positions)


def test_settings_hold_unless_given_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ("--checkpoint-dir", str(tmp_path / "run"))
    begun = (*SMALL, "--lr", "0.02", "--update-after", "cell=2", "--patience", "9", "--checkpoint-keep", "2")
    assert main([*begun, *folder, "--quiet"]) == 0
    assert "checkpoint" not in capsys.readouterr().out
    assert len(Checkpoints(tmp_path / "run").numbers()) == 2
    plain = ("train", "list-reduction", *folder, "--resume", "--epochs", "4", "--json", str(tmp_path / "a.json"))
    assert main(plain) == 0
    found = json.loads((tmp_path / "a.json").read_text())
    assert (found["settings"]["learning_rate"], found["settings"]["hidden"]) == (0.02, 8)
    assert found["settings"]["update_after"] == {"cell": 2}
    assert (found["epochs"], found["resumed_epochs"]) == (4, 3)
    assert len(Checkpoints(tmp_path / "run").numbers()) == 2
    capsys.readouterr()
    assert main(plain) == 0
    out = capsys.readouterr().out
    assert f"the run in {tmp_path / 'run'} is finished, after 4 epochs" in out
    assert "staleness" not in out  # nothing was computed
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main([*plain, "--max-active-keys", "9", "--epochs", "5"]) == 0
    assert "ampnet: resumed with other settings than the run began with: max_active_keys 9 (was 4)" in (
        capsys.readouterr().err
    )


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    there = ("--checkpoint-dir", str(folder))
    assert main([*SMALL, *there, "--epochs", "1", "--quiet"]) == 0
    (tmp_path / "file").touch()
    for options, words in (
        ((*there,), f"--checkpoint-dir: {folder} has checkpoints of another run; continue it with --resume"),
        ((*there, "--resume", "--lr", "0.5"), f"--learning-rate: the run in {folder} has 0.003, and 0.5 was given"),
        ((*there, "--resume", "--hidden", "9"), f"--hidden: the run in {folder} has 8, and 9 was given"),
        ((*there, "--resume", "--seed", "1"), f"--seed: the run in {folder} has 0, and 1 was given"),
        ((*there, "--resume", "--train-size", "9"), "--train-size: the run in"),
        ((*there, "--resume", "--optimizer", "sgd"), "--optimizer: the run in"),
        ((*there, "--resume", "never"), "--resume: 'never': write --resume or --resume auto; the folder is given as"),
        (("--resume",), "--resume: give the folder of the checkpoints, --checkpoint-dir"),
        (("--checkpoint-every", "9"), "--checkpoint-every: there are no checkpoints without --checkpoint-dir"),
        ((*there, "--checkpoint-every", "9x"), "--checkpoint-every: '9x' is not an interval; write it like '30 s'"),
        ((*there, "--checkpoint-every", "0"), "--checkpoint-every: '0': give a whole number of instances, 1 or more"),
        ((*there, "--checkpoint-keep", "0"), "--checkpoint-keep: 0 is too small"),
        (("--checkpoint-dir", str(tmp_path / "file")), "file is not a folder; give another one"),
        (("--checkpoint-dir", str(tmp_path / "none"), "--resume"), f"no checkpoint in {tmp_path / 'none'}"),
    ):
        assert main([*SMALL[:2], *options]) == 2, options
        assert words in capsys.readouterr().err, options
    assert main(["train", "adaptive-depth", *there, "--resume"]) == 2
    assert f"the run in {folder} is of list-reduction, not of adaptive-depth" in capsys.readouterr().err


def test_a_failed_run_names_its_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--checkpoint-dir", str(tmp_path / "run"), "--checkpoint-every", "4", "--lr", "1e30")
    assert main([*SMALL, *options]) == 1
    out = capsys.readouterr().out
    assert f"the last checkpoint is {tmp_path / 'run'}/checkpoint-" in out or "checkpoint: " not in out


@pytest.mark.parametrize(
    ("name", "value"),
    [("training", 7), ("training", {"hidden": "wide"}), ("checkpoint_every", [1]), ("patience", "x"), ("data_dir", 3)],
)
def test_a_forged_checkpoint_is_a_usage_error(
    name: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"workload": "list-reduction", "training": {}, "checkpoint_every": "4", "checkpoint_keep": 3}
    about |= {"checkpoint_at": "drained", name: value}
    Checkpoints(tmp_path).write(1, {}, {"about": about})
    assert main([*SMALL, "--checkpoint-dir", str(tmp_path), "--resume"]) == 2
    assert "cannot be continued" in capsys.readouterr().err
