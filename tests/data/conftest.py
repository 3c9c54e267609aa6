"""A folder with a small copy of every data set, and a web server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampnet.data import download
from tests.data.server import Server
from tests.data.small import know, write_all


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `load(name, root)` finds small data sets; nothing else is found, and the cache is ``root/../cache``."""
    folder = tmp_path / "data"
    write_all(folder)
    know(folder, monkeypatch)
    return folder


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Has the files of MNIST. Downloads do not pause between their tries."""
    monkeypatch.setattr(download, "PAUSE", 0)
    with Server() as server:
        for path in (root / "mnist").iterdir():
            server.files[path.name] = path.read_bytes()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()
