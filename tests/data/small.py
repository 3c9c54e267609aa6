"""Small data sets of every kind, written as the real ones are, and a catalogue that knows them."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampnet.data import catalog, places
from ampnet.data.entry import Entry
from ampnet.data.files import contents_sha256, find

COUNTS: dict[str, dict[str, int]] = {
    "mnist": {"train": 12, "test": 4},
    "sst": {"train": 3, "valid": 2, "test": 1},
    "glove": {"words": 9},
    "wordvec300": {"words": 9},
    "babi15-en": {"train": 8, "test": 4},
    "babi15-en-10k": {"train": 16, "test": 4},
    "babi15-symbolic": {"train": 4, "test": 4},
    "qm9": {"train": 8, "valid": 2},
}

TREES = {
    "train": [
        "(3 (2 It) (4 (2 's) (4 good)))",
        "(1 (1 (2 a) (0 bore)) (2 .))",
        "(2 (2 8\u00a01\\/2) (2 -LRB-))",
    ],
    "dev": ["(2 alone)", "(4 (4 good) (2 .))"],
    "test": ["(0 (0 bore) (2 It))"],
}

STORY = """\
1 Mice are afraid of wolves.
2 Gertrude is a mouse.
3 Cats are afraid of sheep.
4 Winona is a sheep.
5 Sheep are afraid of wolves.
6 Wolves are afraid of cats.
7 Emily is a mouse.
8 Jessica is a wolf.
9 What is gertrude afraid of?\twolf\t2 1
10 What is jessica afraid of?\tcat\t8 6
11 What is winona afraid of?\twolf\t4 5
12 What is emily afraid of?\twolf\t7 1
"""

GRAPH = """\
1 {is_} 5
5 {fear} 6
2 {is_} 6
6 {fear} 7
7 {fear} 8
8 {fear} 5
3 {is_} 7
4 {is_} 8
? 1 1 6
? 1 2 7
? 1 3 8
? 1 4 5

"""


def idx(rows: np.ndarray) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">{1 + rows.ndim}I", 0x800 + rows.ndim, *rows.shape) + rows.astype(np.uint8).tobytes()


def write_mnist(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 12), ("t10k", 4)):
        images = gzip.compress(idx(rng.integers(0, 256, (count, 28, 28))))
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(count) % 10)))


def write_sst(folder: Path) -> None:
    for part, trees in TREES.items():
        (folder / f"{part}.txt.xz").write_bytes(lzma.compress("".join(f"{t}\n" for t in trees).encode()))


def words() -> list[str]:
    """All words of the trees, sorted."""
    pieces = " ".join(line for trees in TREES.values() for line in trees).split(" ")
    return sorted({piece.rstrip(")") for piece in pieces if not piece.startswith("(")})


def write_vectors(folder: Path, name: str, dim: int) -> None:
    tokens = np.array(words())
    vectors = np.arange(len(tokens) * dim, dtype=np.float16).reshape(-1, dim)
    np.savez_compressed(folder / name, tokens=tokens, found=tokens != "bore", vectors=vectors)


def write_babi15(folder: Path) -> None:
    for size, stories in (("en", 2), ("en-10k", 4)):
        (folder / size).mkdir()
        (folder / size / "qa15_basic-deduction_train.txt").write_text(STORY * stories)
        (folder / size / "qa15_basic-deduction_test.txt").write_text(STORY)
    (folder / "ggnn_symbolic_folds_1-5.tar.xz").write_bytes(lzma.compress(symbolic(symbolic_files())))


def symbolic_files() -> dict[str, str]:
    """The files of five folds, each of one graph; in fold 3 the edge types are the other way round."""
    out = {}
    for fold in range(1, 6):
        types = {"is_": 2, "fear": 1} if fold == 3 else {"is_": 1, "fear": 2}
        for part in ("train", "test"):
            out[f"fold_{fold}/{part}/15_graphs.txt"] = GRAPH.format(**types)
            out[f"fold_{fold}/{part}/15_edge_types.txt"] = "is={is_}\nhas_fear={fear}\n".format(**types)
    return out


def symbolic(files: Mapping[str, str], before: str = "./") -> bytes:
    """A tar archive of texts."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(before + name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return out.getvalue()


def molecules() -> dict[str, Any]:
    """Ten molecules: water, a lone atom, a pair without a bond, and seven chains."""
    atoms = [[8, 1, 1], [6], [7, 9], *([6] * n for n in range(2, 9))]
    bonds: list[list[tuple[int, int, int]]] = [[(0, 1, 0), (0, 2, 0)], [], []]
    bonds += [[(i, i + 1, i % 4) for i in range(n - 1)] for n in range(2, 9)]
    flat = np.array([b for one in bonds for b in one], dtype=np.uint8)
    charge = np.concatenate(atoms) * 0
    charge[4:6] = 1, -1
    return {
        "index": np.arange(1, 11, dtype=np.int32),
        "node_offset": np.cumsum([0, *map(len, atoms)], dtype=np.int32),
        "edge_offset": np.cumsum([0, *map(len, bonds)], dtype=np.int32),
        "atomic_number": np.concatenate(atoms).astype(np.uint8),
        "formal_charge": charge.astype(np.int8),
        "edge_src": flat[:, 0],
        "edge_dst": flat[:, 1],
        "edge_type": flat[:, 2],
        "mu": np.linspace(0, 4.5, 10, dtype=np.float32),
    }


def write_qm9(folder: Path, **changed: Any) -> None:
    np.savez_compressed(folder / "qm9_graphs.npz", **{**molecules(), **changed})


def write_all(root: Path) -> None:
    """Every data set, each in its folder."""
    for name in ("mnist", "sst", "glove", "wordvec300", "babi15", "qm9"):
        (root / name).mkdir(parents=True)
    write_mnist(root / "mnist")
    write_sst(root / "sst")
    write_vectors(root / "glove", "glove_6B_50d_sst.npz", 50)
    write_vectors(root / "wordvec300", "spacy_md_300d_sst.npz", 300)
    write_babi15(root / "babi15")
    write_qm9(root / "qm9")


def unpinned(entry: Entry) -> Entry:
    """An entry that does not know the checksums and sizes of what is fetched."""
    assert entry.source is not None
    remotes = tuple(replace(remote, sha256="", size=0) for remote in entry.source.remotes)
    return replace(entry, source=replace(entry.source, remotes=remotes))


def know(root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Entry]:
    """Make the catalogue expect what `write_all` wrote, and look nowhere but where a test says."""
    entries = dict(catalog.ENTRIES)
    for name, counts in COUNTS.items():
        entry = entries[name]
        files = []
        for file in entry.files:
            path = find(root / entry.folder, file.path)
            assert path is not None
            files.append(replace(file, sha256=contents_sha256(path, file.fields)))
        entries[name] = replace(unpinned(entry), counts=counts, files=tuple(files))
    monkeypatch.setattr(catalog, "ENTRIES", entries)
    monkeypatch.setattr(places, "CHECKOUT", root / "no-checkout")
    monkeypatch.delenv("AMPNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(root.parent / "cache"))
    work = root.parent / "work" / "here"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    return entries
