"""From nothing to a trained model: no data on the machine, and a server with archives like the official ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.experiments.sentiment import NO_VECTORS
from tests.data.conftest import root, server
from tests.data.official import write_qm9, write_zip
from tests.data.server import Server
from tests.data.small import TREES, words
from tests.data.test_qm9_archive import LEFT_OUT, files, qm9_list

__all__ = ["root", "server"]


@pytest.fixture
def clean(server: Server, root: Path, tmp_path: Path) -> Server:
    """A server with the archives; on the machine there is nothing."""
    shutil.rmtree(root)
    write_qm9(tmp_path / "qm9", files().items())
    trees = {f"trees/{part}.txt": "".join(f"{tree}\n" for tree in some) for part, some in TREES.items()}
    write_zip(tmp_path / "trees", trees)
    lines = {dim: "".join(f"{word.lower()} {'0.5 ' * dim}\n" for word in words()) for dim in (50, 300)}
    write_zip(tmp_path / "glove", {f"glove.6B.{dim}d.txt": text.replace(" \n", "\n") for dim, text in lines.items()})
    server.files |= {
        "dsgdb9nsd.xyz.tar.bz2": (tmp_path / "qm9").read_bytes(),
        "uncharacterized.txt": qm9_list(LEFT_OUT).encode(),
        "trainDevTestTrees_PTB.zip": (tmp_path / "trees").read_bytes(),
        "glove.6B.zip": (tmp_path / "glove").read_bytes(),
    }
    return server


def test_molecules(clean: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "qm9"]) == 1
    assert "'ampnet data get qm9' fetches it" in capsys.readouterr().err
    assert main(["data", "get", "qm9", "--base-url", clean.url]) == 0
    told = capsys.readouterr()
    assert told.err.splitlines()[0].startswith("fetching dsgdb9nsd.xyz.tar.bz2 (0.0 MB)")
    assert told.err.splitlines()[-1] == "qm9: reading and converting"
    assert main(["train", "qm9", "--hidden", "16", "--epochs", "1"]) == 0
    assert "qm9: absolute_error" in capsys.readouterr().out
    assert main(["data", "check", "qm9"]) == 0


def test_sentiment(clean: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """First without word vectors, which it says, then with them."""
    assert main(["train", "sentiment"]) == 1
    assert "'ampnet data get sentiment' fetches it" in capsys.readouterr().err
    train = ["train", "sentiment", "--hidden", "8", "--epochs", "1"]
    assert main(["data", "get", "sentiment", "--base-url", clean.url]) == 0
    assert main(train) == 0
    assert NO_VECTORS in capsys.readouterr().out
    assert main(["data", "get", "glove", "--base-url", clean.url]) == 0
    assert main(train) == 0
    assert "word vectors: glove300 (" in capsys.readouterr().out


def test_what_is_pinned_is_refused(
    clean: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The real catalogue knows size and sha256 of the official archives; ours are not those."""
    from ampnet.data import catalog, qm9, sst, word_vectors

    for entry in (qm9.ENTRY, sst.ENTRY, word_vectors.GLOVE):
        assert entry.source is not None
        assert all(len(remote.sha256) == 64 and remote.size for remote in entry.source.remotes)
    monkeypatch.setitem(catalog.ENTRIES, "sst", sst.ENTRY)
    assert main(["data", "get", "sentiment", "--base-url", clean.url]) == 1
    assert "trainDevTestTrees_PTB.zip: it has" in (error := capsys.readouterr().err) and "must be 789,539" in error
