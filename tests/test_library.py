"""The page on training and predicting from Python runs as it stands, and prints what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pages import ROOT, run_page


def test_the_page_runs_and_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        names = run_page(ROOT / "docs" / "library.md", "library.py")
    assert names["runtime"].stats().engine == "waves"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parity.csv", "parity.safetensors"]
