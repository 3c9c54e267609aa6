"""The real data sets, put back into archives like the official ones and fetched from a server: they come out the same.

The archives' own checksums are not those of the official ones; the files that are made from them have the checksums of
the catalogue, which are those of the data that all results were made with.
"""

from __future__ import annotations

import lzma
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ampnet.data import load, qm9, qm9_archive
from ampnet.data.catalog import ENTRIES, entry_of
from ampnet.data.check import look
from ampnet.data.fetch import fetch
from ampnet.data.files import arrays, unpack
from ampnet.data.qm9_archive import ARCHIVE
from ampnet.data.smiles import molecule
from ampnet.data.word_vectors import WordVectors, plain
from tests.data.official import qm9_list, write_qm9, write_zip, xyz
from tests.data.server import Server
from tests.data.small import unpinned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(look(entry).verdict not in ("here", "generated") for entry in ENTRIES.values()),
        reason="the data sets are not on this machine",
    ),
]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def fetched(name: str, archive: Path, server: Server, place: Path) -> str:
    server.files[archive.name] = archive.read_bytes()
    return fetch(unpinned(entry_of(name)), place, base_url=server.url)


def folder(name: str) -> Path:
    found = look(entry_of(name)).folder
    assert found is not None
    return found


def test_treebank(server: Server, tmp_path: Path) -> None:
    texts = {
        f"trees/{part}.txt": unpack(folder("sst") / f"{part}.txt.xz")[0].decode() for part in ("train", "dev", "test")
    }
    write_zip(tmp_path / "trainDevTestTrees_PTB.zip", texts)
    assert fetched("sst", tmp_path / "trainDevTestTrees_PTB.zip", server, tmp_path / "place") == "by sha256"
    assert load("sst", tmp_path / "place").vocabulary == load("sst").vocabulary  # type: ignore[attr-defined]


def smiles_of_molecules() -> list[str]:
    """In the order of the file."""
    with lzma.open(folder("qm9") / "qm9_smiles.txt.xz", "rt") as file:
        return file.read().split()


def test_graphs_of_all_molecules() -> None:
    """130,831 graphs from their SMILES are what RDKit made of them, bit for bit."""
    found = arrays(folder("qm9") / "qm9_graphs.npz", qm9.FIELDS)
    graphs = {
        int(i): (*molecule(text), float(mu))
        for i, text, mu in zip(found["index"], smiles_of_molecules(), found["mu"], strict=True)
    }
    assert len(graphs) == 130_831
    for name, array in qm9_archive.packed(graphs).items():
        assert array.dtype == found[name].dtype and np.array_equal(array, found[name]), name


def test_molecules(server: Server, tmp_path: Path) -> None:
    """Every 50th, and all that are left out."""
    whole = load("qm9")
    known = {one.index: one for split in whole.splits.values() for one in split[::50]}
    numbers = arrays(folder("qm9") / "qm9_graphs.npz", ("index",))["index"].tolist()
    texts = dict(zip(numbers, smiles_of_molecules(), strict=True))
    left_out = sorted(set(range(1, 133_886)) - set(texts))
    assert len(left_out) == 3_054
    files = {i: xyz(i, texts[i], one.atoms.tolist(), repr(one.dipole)) for i, one in known.items()}
    files |= {i: xyz(i, "?", [6], "0.") for i in left_out}
    write_qm9(tmp_path / ARCHIVE.name, ((f"dsgdb9nsd_{i:06d}.xyz", text) for i, text in sorted(files.items())))
    server.files[ARCHIVE.name] = (tmp_path / ARCHIVE.name).read_bytes()
    server.files["uncharacterized.txt"] = qm9_list(left_out).encode()
    train = len(known) * qm9.TRAIN // qm9.ALL
    entry = replace(unpinned(entry_of("qm9")), counts={"train": train, "valid": len(known) - train})
    fetch(entry, tmp_path / "place", base_url=server.url)
    again = qm9.read(tmp_path / "place" / "qm9")
    for split in again.splits.values():
        for one in split:
            same = known.pop(one.index)
            assert np.array_equal(one.atoms, same.atoms) and np.array_equal(one.charges, same.charges)
            assert np.array_equal(one.bonds, same.bonds) and one.dipole == same.dipole
    assert not known


def test_vectors(server: Server, tmp_path: Path) -> None:
    """Those of 300 numbers are the same, repeated."""
    vectors = load("glove")
    assert isinstance(vectors, WordVectors)
    words = {
        plain(str(token)).lower(): " ".join(map(repr, map(float, vector)))
        for token, vector, known in zip(vectors.tokens, vectors.vectors, vectors.found, strict=True)
        if known
    }
    archive = tmp_path / "glove.6B.zip"
    write_zip(
        archive,
        {
            "glove.6B.50d.txt": "".join(f"{word} {numbers}\n" for word, numbers in words.items()),
            "glove.6B.300d.txt": "".join(f"{word} {' '.join([numbers] * 6)}\n" for word, numbers in words.items()),
        },
    )
    assert fetched("glove", archive, server, tmp_path / "place") == "by sha256"
    wide = load("glove", tmp_path / "place", dim=300)
    assert isinstance(wide, WordVectors) and np.array_equal(wide.vectors[:, :50], vectors.vectors)
