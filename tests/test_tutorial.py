"""The tutorial runs as it stands, prints what it shows, and its picture is that of its graph."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import torch

from tests.pages import ROOT, run_page

PAGE = ROOT / "docs" / "tutorial.md"
PICTURE = ROOT / "docs" / "pictures" / "tree_lstm.svg"


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
def test_the_tutorial_runs_and_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        names = run_page(PAGE, "tutorial.py")
    assert [p.name for p in tmp_path.iterdir()] == [PICTURE.name]
    drawn, shown = (re.findall(r"<text[^>]*>([^<]*)", p.read_text("utf-8")) for p in (tmp_path / PICTURE.name, PICTURE))
    assert drawn == shown, "draw the tutorial's graph again: python -m tests.test_tutorial"
    assert shown
    assert names["trained"].loss < 0.5
    assert names["runtime"].stats().engine == "waves"
    assert names["tested"].metrics["accuracy"] > 0.9


def test_the_tutorial_names_every_combinator() -> None:
    from ampnet.lang import combinators

    text = PAGE.read_text(encoding="utf-8")
    ours = [f for f in vars(combinators).values() if getattr(f, "__module__", "") == combinators.__name__]
    for name in (f.__name__ for f in ours if not f.__name__.startswith("_")):
        assert f"| `{name}(" in text, name


if __name__ == "__main__":  # draws the picture again, where the page's examples write it
    os.chdir(PICTURE.parent)
    run_page(PAGE, "tutorial.py")
