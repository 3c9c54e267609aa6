"""The examples run as they stand, and learn: with a fraction of their data, the loss falls.

Each contains its model, to be read; where the package ships the same model for its workloads, the two are equal.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ampnet import models
from ampnet.data import generated
from ampnet.data import list_reduction as lists
from ampnet.lang import Model

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


SHIPPED: dict[str, tuple[str, Callable[[], Model], Callable[[], Iterator[tuple[Any, ...]]]]] = {
    "mlp": ("Mlp", models.Mlp, lambda: generated.images(3, 0)),
    "list_reduction": (
        "ListReduction",
        lambda: models.ListReduction(64),
        lambda: map(lists.arguments, lists.generate(3, 0)),
    ),
    "tree_lstm": ("TreeLstm", lambda: models.TreeLstm(100, 24, 24), lambda: generated.trees(3, 0)),
    "babi15": ("Babi15", models.Babi15, lambda: generated.deductions(3, 0)),
    "qm9": ("Qm9", lambda: models.Qm9(5, 24, 2, 2), lambda: generated.molecules(3, 0, features=5, kinds=2)),
    "permuted_layers": (
        "PermutedLayers",
        lambda: models.PermutedLayers(16, 3, 4),
        lambda: generated.permutations(3, 0, width=16, layers=3, applied=3, classes=4),
    ),
    "adaptive_depth": ("AdaptiveDepth", lambda: models.AdaptiveDepth(2, 32, 2), lambda: generated.rotations(3, 0)),
}
"""The example's class, the shipped model of the same size, and data for both."""


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_every_example_is_tested_and_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SIZES, "common"}
    listed = re.findall(r"^\| \[([\w/.]+)\]\(([\w/.]+)\)", (EXAMPLES / "README.md").read_text("utf-8"), re.M)
    found = [*(EXAMPLES / f"{name}.py" for name in SIZES), *EXAMPLES.glob("*/*.py")]
    assert all(text == target for text, target in listed)
    assert sorted(text for text, _ in listed) == sorted(str(path.relative_to(EXAMPLES)) for path in found)


@pytest.mark.parametrize("name", SIZES)
def test_the_loss_falls(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng():
        losses = load(name, monkeypatch).main(epochs=3, instances=SIZES[name])
    assert losses[2] < 0.9 * losses[0]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[-1].startswith(f"{name.replace('_', '-')}: ".replace("babi15", "babi-15"))
    reached, guessed = (float(number) for number in re.findall(r"[\d.]+(?=%| on average|$)", lines[-1]))
    assert reached < guessed if "off by" in lines[-1] else reached > guessed


@pytest.mark.parametrize("name", SHIPPED)
def test_the_model_in_the_file_is_the_shipped_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class_name, make, data = SHIPPED[name]
    with torch.random.fork_rng():
        shipped, ours = make(), getattr(load(name, monkeypatch), class_name)()
    ours.load_state_dict({key.removeprefix("propagate."): value for key, value in shipped.state_dict().items()})
    for instance in data():
        torch.testing.assert_close(ours.loss(*instance), shipped.loss(*instance))


def test_the_graph_in_the_file_is_the_shipped_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from ampnet.models import by_hand

    with torch.random.fork_rng():
        assert load("by_hand", monkeypatch).build(64).mermaid() == by_hand.build(64).mermaid()


def test_an_example_is_a_script() -> None:
    command = [sys.executable, str(EXAMPLES / "adaptive_depth.py"), "--epochs", "1", "--instances", "40"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("epoch 1: loss ")
