"""The first model prints what README and docs say; their other examples run; the files they name exist."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


@pytest.mark.parametrize("page", ["README.md", "docs/ir.md"])
def test_the_first_model_prints_what_the_page_shows(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same model twice: written for one instance, and wired by hand."""
    text = (ROOT / page).read_text(encoding="utf-8")
    ((code, shown),) = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S)
    with torch.random.fork_rng():
        exec(compile(code, page, "exec"), {"__name__": "first_model"})
    printed = capsys.readouterr().out
    words, wanted = re.findall(r"[a-z ]+", printed), re.findall(r"[a-z ]+", shown)
    assert words == wanted
    loss, error = (float(v) for v in re.findall(r"[\d.]+", printed))
    shown_loss, shown_error = (float(v) for v in re.findall(r"[\d.]+", shown))
    assert loss < 3 * shown_loss + 1e-3
    assert error < 2 * shown_error + 0.01


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
def test_the_first_model_on_several_cores() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 3
    names: dict[str, Any] = {"__name__": "first_model"}
    with torch.random.fork_rng():
        for block in blocks:
            exec(compile(block, "README.md", "exec"), names)
    assert names["trained"].instances == 1000
    assert names["trained"].loss < 0.1
    assert names["copied"].nodes["middle#2"].module.weight.equal(names["model"].middle.weight)


def test_the_example_of_replicas_runs() -> None:
    page = ROOT / "docs" / "ir.md"
    (code,) = re.findall(r"## Replicas.*?```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    with torch.random.fork_rng():
        exec(compile(code, "docs/ir.md", "exec"), {"__name__": "replicas"})


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))])
def test_every_file_that_the_docs_name_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in re.findall(r"`(?:python )?((?:docs|src|bench|examples|tests)/[\w/.]*)(?:::\w*\*?)?`", text):
        assert (ROOT / path).exists(), path


def test_the_examples_of_the_testing_page_run() -> None:
    page = README.parent / "docs" / "testing.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 9
    shared: dict[str, object] = {"__name__": "testing_page"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), shared)
