"""The README's model runs and prints what the README says it prints; the examples of the docs run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_first_model_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    text = README.read_text(encoding="utf-8")
    code, shown = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.S)[0]
    exec(compile(code, str(README), "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    words, wanted = re.findall(r"[a-z ]+", printed), re.findall(r"[a-z ]+", shown)
    assert words == wanted
    loss, error = (float(v) for v in re.findall(r"[\d.]+", printed))
    shown_loss, shown_error = (float(v) for v in re.findall(r"[\d.]+", shown))
    assert loss < 3 * shown_loss + 1e-3
    assert error < 2 * shown_error + 0.01


def test_every_file_the_readme_names_exists() -> None:
    text = README.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:docs|src|bench)/[\w/.]*)`", text):
        assert (README.parent / path).exists(), path


def test_the_examples_of_the_testing_page_run() -> None:
    page = README.parent / "docs" / "testing.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    assert len(blocks) == 5
    shared: dict[str, object] = {"__name__": "testing_page"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), shared)
