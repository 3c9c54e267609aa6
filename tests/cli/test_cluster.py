"""``ampnet train --cluster``: errors before any work, and a run on a Ray of this machine."""

from __future__ import annotations

import importlib.util
import json
import socket
from pathlib import Path

import pytest

from ampnet.cli import main
from tests.cli.test_workloads import SMALL

pytest.importorskip("ray")
TINY = ["train", "permuted-layers", *SMALL["permuted-layers"].split(), "--epochs", "2", "--limit", "60", "--quiet"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--cluster auto --workers auto", "--workers: auto measures this machine, not a cluster; give a number"),
        ("--cluster auto --replicas 2 --sync shared", "--sync: machines share no memory; give updates"),
        ("--cluster auto --pin", "--pin: Ray places the processes"),
        ("--cluster /dev/null", "--cluster: '/dev/null' is no address of a Ray cluster"),
        ("--cluster auto --no-waves", "--no-waves: worker processes play waves"),
    ],
)
def test_options_that_do_not_fit(given: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *given.split()]) == 2
    assert said in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    assert main([*TINY, "--cluster", address]) == 1
    said = capsys.readouterr().err
    assert f"no Ray cluster answers at {address}" in said
    assert "Traceback" not in said


def test_without_ray_the_remedy_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "ray" else find(name, *a))
    assert main([*TINY, "--cluster", "auto"]) == 1
    assert "a cluster needs Ray, not installed here: pip install 'ampnet[cluster]'" in capsys.readouterr().err


def test_a_run_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.json"
    assert main([*TINY, "--cluster", "local", "--workers", "2", "--replicas", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["engine"]["workers"] == 2
    assert found["engine"]["name"] == "waves"
    assert found["settings"]["sync"] == "updates"
    assert not capsys.readouterr().err
