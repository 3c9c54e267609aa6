"""The examples run as they stand, and learn: with a fraction of their data, the loss falls."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"
SIZES = {
    "mlp": 200,
    "list_reduction": 3000,
    "tree_lstm": 120,
    "babi15": 120,
    "qm9": 150,
    "permuted_layers": 600,
    "adaptive_depth": 300,
    "by_hand": 3000,
}
"""Instances in an epoch of each."""


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SIZES, "common"}


@pytest.mark.parametrize("name", SIZES)
def test_the_loss_falls(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with torch.random.fork_rng():
        losses = example.main(epochs=3, instances=SIZES[name])
    assert losses[2] < 0.9 * losses[0]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith(f"{name.replace('_', '-')}: ".replace("babi15", "babi-15"))
    reached, guessed = (float(number) for number in re.findall(r"[\d.]+(?=%| on average|$)", lines[-1]))
    assert reached < guessed if "off by" in lines[-1] else reached > guessed


def test_an_example_is_a_script() -> None:
    command = [sys.executable, str(EXAMPLES / "adaptive_depth.py"), "--epochs", "1", "--instances", "40"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("epoch 1: loss ")
