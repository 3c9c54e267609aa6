"""QM9 from an archive like the official one: ten molecules, and two that are left out."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ampnet.data import load
from ampnet.data.catalog import entry_of
from ampnet.data.check import check
from ampnet.data.fetch import fetch
from ampnet.data.smiles import molecule
from ampnet.errors import DataError
from tests.data.official import qm9_list, write_qm9, xyz
from tests.data.server import Server

SMILES = ("C", "N", "O", "C#C", "C=O", "CC1CC1", "C1=CC=CC=C1", "[NH3+]CC([O-])=O", "CN(=O)=O", "CF")
LEFT_OUT = (4, 9)
NUMBERS = [n for n in range(1, 13) if n not in LEFT_OUT]
Files = dict[str, str]


def name(number: int) -> str:
    return f"dsgdb9nsd_{number:06d}.xyz"


def files() -> Files:
    """Those that are left out are no molecules at all: nothing of them is read."""
    out = {name(n): xyz(n, s, molecule(s)[0], f"{n / 8}") for n, s in zip(NUMBERS, SMILES, strict=True)}
    return out | {name(n): xyz(n, "?", [6], "0.") for n in LEFT_OUT}


@pytest.fixture
def serve(server: Server, tmp_path: Path) -> Callable[..., None]:
    def put(texts: Files, *extra: tarfile.TarInfo, left_out: str = qm9_list(LEFT_OUT), cut: int = 0) -> None:
        path = tmp_path / "archive"
        write_qm9(path, texts.items(), extra)
        data = path.read_bytes()
        path.unlink()
        server.files["dsgdb9nsd.xyz.tar.bz2"] = data[: len(data) - cut]
        server.files["uncharacterized.txt"] = left_out.encode()

    return put


def test_it_can_be_loaded(server: Server, serve: Callable[..., None], tmp_path: Path) -> None:
    texts = files()
    serve(dict(reversed(texts.items())))
    how = fetch(entry_of("qm9"), tmp_path / "place", base_url=server.url)
    assert how.startswith("by reading every record"), "it is not the real one"
    data = load("qm9", tmp_path / "place")
    found = {one.index: one for split in data.splits.values() for one in split}
    assert sorted(found) == NUMBERS
    for number, text in zip(NUMBERS, SMILES, strict=True):
        atoms, charges, bonds = molecule(text)
        one = found[number]
        assert one.atoms.tolist() == atoms and one.charges.tolist() == charges and one.dipole == number / 8
        assert np.array_equal(one.bonds, np.array(bonds) - (0, 0, 1))
    assert check(entry_of("qm9"), tmp_path / "place").verdict == "whole"


def link(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name(13))
    member.type, member.linkname = kind, "/etc/passwd"
    return member


def wrong(number: int, text: str) -> Files:
    return files() | {name(number): text}


@pytest.mark.parametrize(
    ("texts", "extra", "says"),
    [
        pytest.param(files() | {"../evil.xyz": "x"}, [], r"member '\.\./evil\.xyz': not an xyz file", id="path"),
        pytest.param(files() | {"readme.txt": "x"}, [], "member 'readme.txt': not an xyz file", id="other file"),
        pytest.param(files(), [link(tarfile.SYMTYPE)], "dsgdb9nsd_000013.xyz': not an xyz file", id="link"),
        pytest.param(files(), [link(tarfile.DIRTYPE)], "dsgdb9nsd_000013.xyz': not an xyz file", id="folder"),
        pytest.param(files() | {name(13): "x" * 70_000}, [], "000013.xyz': not an xyz file", id="too large"),
        pytest.param(wrong(1, "5\nnothing"), [], "000001.xyz: it does not begin with", id="no properties"),
        pytest.param(wrong(1, files()[name(1)][:-20]), [], "000001.xyz: 9 lines; 5 atoms make 10", id="cut text"),
        pytest.param(wrong(1, xyz(1, "C", [6, 1], "0.")), [], r"other atoms \(5\) than it lists \(2\)", id="atoms"),
        pytest.param(wrong(1, xyz(1, "CX", [6], "0.")), [], "'CX', character 2", id="smiles"),
        pytest.param(wrong(1, xyz(1, "C", [6, 1, 1, 1, 1], "much")), [], "000001.xyz: could not convert", id="dipole"),
        pytest.param(wrong(1, xyz(2, "N", [7, 1, 1, 1], "0.")), [], "molecule 2 is there twice", id="twice"),
        pytest.param({n: t for n, t in files().items() if n != name(1)}, [], "there must be 2", id="one missing"),
        pytest.param(
            {n: t for n, t in files().items() if n != name(4)}, [], "lacks 1 molecules of unchar", id="listed"
        ),
    ],
)
def test_what_is_refused(
    texts: Files, extra: list[tarfile.TarInfo], says: str, server: Server, serve: Callable[..., None], tmp_path: Path
) -> None:
    serve(texts, *extra)
    with pytest.raises(DataError, match=says):
        fetch(entry_of("qm9"), tmp_path / "place", base_url=server.url)
    assert not (tmp_path / "place").exists() and not list(tmp_path.rglob("*.xyz"))


def test_an_archive_that_is_cut(server: Server, serve: Callable[..., None], tmp_path: Path) -> None:
    serve(files(), cut=40)
    with pytest.raises(DataError, match=r"dsgdb9nsd\.xyz\.tar\.bz2: not the archive of QM9, or cut short"):
        fetch(entry_of("qm9"), tmp_path / "place", base_url=server.url)
    serve(files(), left_out="<html>please log in</html>\n")
    with pytest.raises(DataError, match=r"uncharacterized\.txt: no line begins with the number"):
        fetch(entry_of("qm9"), tmp_path / "place", base_url=server.url)
