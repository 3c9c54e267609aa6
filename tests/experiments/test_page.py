"""The page about training says what is so: defaults, inputs, and its example."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from ampnet.experiments.catalog import WORKLOADS
from tests.pages import ROOT, run_page

PAGE = ROOT / "docs" / "train.md"
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_defaults_are_those_of_the_code(name: str) -> None:
    workload = WORKLOADS[name]
    settings: Any = workload.settings().complete()
    target, defaults = (row.split("|") for row in re.findall(rf"^\| `{name}` (.*)", TEXT, re.M)[:2])
    assert target[4].strip() == ("" if workload.paper_target is None else f"{workload.paper_target:g}")
    in_flight, update, optimizer, epochs = defaults[1:5]
    assert int(in_flight.split()[0]) == settings.max_active_keys
    assert int(update.split()[0]) == settings.min_update_frequency
    kind, rate, *_ = re.split("[,;]", optimizer)
    assert (kind.strip(), float(rate)) == (settings.optimizer, settings.learning_rate)
    assert ("times" in optimizer) == (settings.decay < 1)
    assert settings.decay == 1 or f"times {settings.decay:g} an epoch" in optimizer
    assert int(epochs) == settings.epochs
    for number in (*settings.update_after.values(), *settings.rate_of.values()):
        assert f"{number:,}" in update + optimizer


def test_the_page_names_all_inputs() -> None:
    asked = TEXT[TEXT.index("## Predict") :]
    for workload in WORKLOADS.values():
        assert (f"| `{workload.name}` |" in asked) == bool(workload.input)


def test_the_example_runs() -> None:
    with torch.random.fork_rng():
        run_page(PAGE, "train.py")
