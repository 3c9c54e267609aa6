"""The page about data sets runs as it stands, and names every data set."""

from __future__ import annotations

import torch

from ampnet.data.catalog import ENTRIES
from tests.pages import ROOT, run_page

PAGE = ROOT / "docs" / "data.md"


def test_the_page_runs_and_prints_what_it_shows() -> None:
    with torch.random.fork_rng():
        run_page(PAGE, "data.py")


def test_the_page_names_every_data_set() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, entry in ENTRIES.items():
        assert f"`{name}`" in text
        for count in entry.counts.values():
            assert f"{count:,}" in text
