"""The example of docs/pictures.md runs, and makes the files it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import ROOT, run_page


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(ROOT / "docs" / "pictures.md", "pictures.py")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "run.html", "run.json", "run.svg"]
