"""A folder with a small copy of every data set."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.small import know, write_all


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `load(name, root)` finds small data sets; nothing else is found, and the cache is ``root/../cache``."""
    folder = tmp_path / "data"
    write_all(folder)
    know(folder, monkeypatch)
    return folder
