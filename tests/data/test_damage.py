"""Damaged files of every kind: the error names the file, the record and the remedy."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampnet.data import files, load
from ampnet.data.catalog import entry_of
from ampnet.data.check import check
from ampnet.errors import DataError
from tests.data.small import STORY, TREES, idx, molecules, symbolic, symbolic_files, write_qm9

Damage = Callable[[Path], None]
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
TEXT = "en/qa15_basic-deduction_train.txt"
TAR = "ggnn_symbolic_folds_1-5.tar.xz"


@dataclass(frozen=True)
class Case:
    """What was done to a file of a data set, and what must be said."""

    name: str
    file: str
    damage: Damage
    says: str


def gz(data: bytes) -> Damage:
    return lambda path: (path.write_bytes(gzip.compress(data)), None)[1]


def xz(data: bytes) -> Damage:
    return lambda path: (path.write_bytes(lzma.compress(data)), None)[1]


def text(data: str) -> Damage:
    return lambda path: (path.write_text(data), None)[1]


def cut(share: float) -> Damage:
    def damage(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])

    return damage


def flip(path: Path) -> None:
    """Many bytes in the middle."""
    data = bytearray(path.read_bytes())
    for i in range(len(data) // 2, len(data) // 2 + len(data) // 8):
        data[i] ^= 0x5A
    path.write_bytes(data)


def trees(last: str) -> Damage:
    return xz("".join(f"{tree}\n" for tree in [*TREES["train"][:2], last]).encode())


def graphs(**changed: str) -> Damage:
    """The archive with one text of fold 1 changed."""
    files = symbolic_files()
    for what, new in changed.items():
        files[f"fold_1/train/15_{what}.txt"] = new
    return xz(symbolic(files))


def qm9(**changed: Any) -> Damage:
    return lambda path: write_qm9(path.parent, **changed)


def at(field: str, place: int, value: float) -> Damage:
    array = molecules()[field].copy()
    array[place] = value
    return qm9(**{field: array})


MNIST = idx(np.zeros((12, 28, 28)))
CASES = {
    "mnist, cut": Case("mnist", IMAGES, cut(0.5), r"image \d of 12: the \.gz file ends too early"),
    "mnist, cut before it was packed": Case("mnist", IMAGES, gz(MNIST[:5000]), "image 6 of 12: the file ends before"),
    "mnist, cut in the header": Case("mnist", IMAGES, gz(MNIST[:9]), "it ends within its header"),
    "mnist, too long": Case("mnist", IMAGES, gz(MNIST + b"xy"), "image 12: .* goes on for 2 bytes"),
    "mnist, flipped": Case("mnist", IMAGES, flip, "it cannot be unpacked"),
    "mnist, not gzip": Case("mnist", IMAGES, text("<html>"), "it cannot be unpacked .*Not a gzipped"),
    "mnist, labels for images": Case("mnist", IMAGES, gz(idx(np.zeros(12))), "not an idx file of images"),
    "mnist, other sizes": Case("mnist", IMAGES, gz(idx(np.zeros((12, 14, 56)))), r"sizes \[14, 56\]"),
    "mnist, label out of range": Case("mnist", LABELS, gz(idx(np.arange(12))), "label 10: it is 10; there are 10"),
    "mnist, labels missing": Case("mnist", LABELS, gz(idx(np.zeros(9))), "label 9: 9 labels for 12 images"),
    "sst, cut": Case("sst", "train.txt.xz", cut(0.7), r"line \d: the .xz file ends too early"),
    "sst, cut before it was packed": Case(
        "sst", "train.txt.xz", xz(b"(2 a)\n(2 b)\n(2 (2"), "line 3: .* in the middle"
    ),
    "sst, flipped": Case("sst", "train.txt.xz", flip, "it cannot be unpacked"),
    "sst, not text": Case("sst", "train.txt.xz", xz(b"(2 a)\n(2 \xff)\n"), r"line 2: not UTF-8 text \(byte 0xff\)"),
    "sst, a label of 7": Case("sst", "train.txt.xz", trees("(7 word)"), r"line 3: a node begins with '\(7'"),
    "sst, no label": Case("sst", "train.txt.xz", trees("( word)"), r"line 3: a node begins with '\('"),
    "sst, three children": Case("sst", "train.txt.xz", trees("(2 (2 a) (2 b) (2 c))"), "line 3: near 'c\\)\\)'"),
    "sst, one child": Case("sst", "train.txt.xz", trees("(2 (2 a))"), "line 3: near 'a\\)\\)'"),
    "sst, two words": Case("sst", "train.txt.xz", trees("(2 a b)"), "line 3: near 'b\\)'"),
    "sst, not closed": Case("sst", "train.txt.xz", trees("(2 (2 a) (2 b)"), "line 3: not one whole tree"),
    "sst, closed twice": Case("sst", "train.txt.xz", trees("(2 a))"), "line 3: near 'a\\)\\)'"),
    "sst, two trees": Case("sst", "train.txt.xz", trees("(2 a) (2 b)"), "line 3: not one whole tree"),
    "sst, an empty line": Case("sst", "train.txt.xz", trees(""), "line 3: not one whole tree"),
    "sst, a line less": Case("sst", "train.txt.xz", xz(b"(2 a)\n"), "split 'train': it has 1 records, there must be 3"),
    "sst, empty": Case("sst", "train.txt.xz", xz(b""), "split 'train': it has 0 records, there must be 3"),
    "glove, cut": Case("glove", "glove_6B_50d_sst.npz", cut(0.5), "cut short or damaged"),
    "glove, flipped": Case("glove", "glove_6B_50d_sst.npz", flip, "cut short or damaged"),
    "glove, empty": Case("glove", "glove_6B_50d_sst.npz", text(""), "cut short or damaged"),
    "text, a fact that is none": Case("babi15-en", TEXT, text(STORY.replace("wolves.", "wolves")), "line 1: 'Mice are"),
    "text, a wrong answer": Case(
        "babi15-en", TEXT, text(STORY.replace("\twolf\t2", "\tcat\t2")), "line 9: .*'cat' does not"
    ),
    "text, a stranger": Case(
        "babi15-en", TEXT, text(STORY.replace("is jessica", "is bob")), "line 10: .*not about what"
    ),
    "text, no support": Case("babi15-en", TEXT, text(STORY.replace("\t2 1", "")), "line 9: not enough values"),
    "text, support that is no fact": Case(
        "babi15-en", TEXT, text(STORY.replace("\t2 1", "\t2 9")), "line 9: line 9 of"
    ),
    "text, a number missing": Case(
        "babi15-en", TEXT, text(STORY.replace("\n5 ", "\n6 ")), "line 5: it begins with '6'"
    ),
    "text, a number of 5000 digits": Case(
        "babi15-en", TEXT, text(STORY.replace("\n5 ", "\n" + "5" * 5000 + " ")), "line 5: it begins with '5555"
    ),
    "text, cut": Case("babi15-en", TEXT, text(STORY[:-5]), "line 12: the file ends in the middle"),
    "text, a story less": Case("babi15-en", TEXT, text(STORY), "it has 4 records, there must be 8"),
    "symbolic, cut": Case("babi15-symbolic", TAR, cut(0.7), "ends too early"),
    "symbolic, cut before it was packed": Case(
        "babi15-symbolic", TAR, xz(symbolic(symbolic_files())[:700]), "fold 1: the archive is cut short"
    ),
    "symbolic, no archive": Case("babi15-symbolic", TAR, xz(b"something else" * 100), "fold 1: the archive is cut"),
    "symbolic, a file missing": Case(
        "babi15-symbolic", TAR, xz(symbolic({"x": ""})), "fold_1/train/15_edge_types.txt: not in the archive"
    ),
    "symbolic, types": Case("babi15-symbolic", TAR, graphs(edge_types="is=1\neats=2\n"), "edge_types.txt: it names"),
    "symbolic, a type": Case("babi15-symbolic", TAR, graphs(graphs="1 9 5\n\n"), "graphs.txt, line 1: not a fact"),
    "symbolic, a line": Case("babi15-symbolic", TAR, graphs(graphs="1 1 5\n5 2\n\n"), "graphs.txt, line 2: not a fact"),
    "symbolic, an answer": Case(
        "babi15-symbolic", TAR, graphs(graphs="1 1 2\n2 2 3\n? 1 1 2\n\n"), r"line 4: .*node 2 does not follow"
    ),
    "symbolic, node 0": Case("babi15-symbolic", TAR, graphs(graphs="0 1 5\n\n"), "line 2: .*numbered from 1"),
    "symbolic, no end": Case(
        "babi15-symbolic", TAR, graphs(graphs="1 1 5\n"), "graphs.txt, line 1: the last graph has no end"
    ),
    "qm9, cut": Case("qm9", "qm9_graphs.npz", cut(0.6), "cut short or damaged"),
    "qm9, flipped": Case("qm9", "qm9_graphs.npz", flip, "cut short or damaged|has no field"),
    "qm9, no npz": Case("qm9", "qm9_graphs.npz", text("hello"), "cut short or damaged|not an npz"),
    "qm9, a bond too far": Case(
        "qm9", "qm9_graphs.npz", at("edge_dst", 1, 3), r"molecule 0 \(number 1 of.*: a bond joins"
    ),
    "qm9, a bond with itself": Case("qm9", "qm9_graphs.npz", at("edge_dst", 3, 0), r"molecule 4 .*an atom with itself"),
    "qm9, a fifth type": Case("qm9", "qm9_graphs.npz", at("edge_type", 0, 4), "molecule 0 .*a bond has a type above 3"),
    "qm9, an element": Case("qm9", "qm9_graphs.npz", at("atomic_number", 3, 14), "molecule 1 .*none of H, C, N, O, F"),
    "qm9, a target": Case("qm9", "qm9_graphs.npz", at("mu", 7, np.nan), "molecule 7 .*no finite number"),
    "qm9, offsets": Case(
        "qm9", "qm9_graphs.npz", at("node_offset", 3, 2), "molecule 2: 'node_offset' goes from 4 to 2"
    ),
    "qm9, a field cut": Case(
        "qm9", "qm9_graphs.npz", qm9(edge_type=molecules()["edge_type"][:-1]), "field 'edge_type': uint8"
    ),
    "qm9, an offset less": Case(
        "qm9", "qm9_graphs.npz", qm9(node_offset=molecules()["node_offset"][:-1]), "field 'node_offset': int32"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_error_names_file_record_and_remedy(case: Case, root: Path) -> None:
    entry = entry_of(case.name)
    path = root / entry.folder / case.file
    case.damage(path)
    with pytest.raises(DataError, match=case.says) as caught:
        load(case.name, root)
    message = str(caught.value)
    short = message.startswith(f"{case.name}: {root / entry.folder}, split ") and "there must be" in message
    assert short or message.startswith((f"{case.name}: {path}, ", f"{case.name}: {path}: "))
    assert message.endswith(("fetches it", "says how to make it")) and "\n" not in message
    state = check(entry, root)
    assert state.verdict == "damaged" and state.sentence == message


def test_a_missing_field_is_named(root: Path) -> None:
    np.savez(root / "qm9" / "qm9_graphs.npz", index=np.arange(3))
    with pytest.raises(DataError, match=r"qm9_graphs\.npz: it has no field 'node_offset'; there are: index"):
        load("qm9", root)


def test_pickles_are_refused(root: Path) -> None:
    """An npz with Python objects in it could run anything when it is read."""
    np.savez(root / "qm9" / "qm9_graphs.npz", **{**molecules(), "mu": np.array([{}] * 10, dtype=object)})
    with pytest.raises(DataError, match="field 'mu': cut short or damaged .*allow_pickle"):
        load("qm9", root)


def test_vectors_that_do_not_belong_together(root: Path) -> None:
    path = root / "glove" / "glove_6B_50d_sst.npz"
    np.savez(path, tokens=np.array(["a", "b"]), found=np.ones(2, bool), vectors=np.zeros((3, 50)))
    with pytest.raises(DataError, match="do not belong together"):
        load("glove", root)
    np.savez(path, tokens=np.array(["a", "b"]), found=np.ones(2, bool), vectors=np.full((2, 50), np.inf))
    with pytest.raises(DataError, match=r"word 0 \('a'\): its vector has a number that is not finite"):
        load("glove", root)


def test_what_only_a_checksum_can_tell(root: Path) -> None:
    """A text can be read whatever word is changed in it; `check` still sees it."""
    assert check(entry_of("sst"), root).verdict == "whole"
    path = root / "sst" / "train.txt.xz"
    xz(lzma.decompress(path.read_bytes()).replace(b"good", b"goat"))(path)
    load("sst", root)
    state = check(entry_of("sst"), root)
    assert state.verdict == "damaged" and str(path) in state.sentence and "must be" in state.sentence


def test_a_file_that_cannot_be_read_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "babi15" / TEXT

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("ampnet.data.files.open", refuse, raising=False)
    with pytest.raises(DataError, match="Permission denied.*qa15_basic-deduction_train"):
        load("babi15-en", root)


@pytest.mark.parametrize(("name", "split"), [("mnist", IMAGES), ("qm9", "qm9_graphs.npz")])
def test_a_file_that_unpacks_to_too_much(name: str, split: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes can unpack to more than fits into memory: once they were unpacked whole."""
    monkeypatch.setattr(files, "LARGEST", 100)
    with pytest.raises(DataError, match=f"{split}.*unpacks to more than 100 bytes"):
        load(name, root)
