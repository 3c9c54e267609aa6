"""`ampnet data get` against a server of our own: whole, or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from ampnet.data import fetch as fetching
from ampnet.data import load, sst
from ampnet.data.catalog import entry_of
from ampnet.data.check import check
from ampnet.data.fetch import fetch
from ampnet.errors import DataError
from tests.data.server import Server
from tests.data.small import STORY, TREES, symbolic_files, words


def left(place: Path) -> list[str]:
    """Every file and folder."""
    return sorted(str(path.relative_to(place)) for path in place.rglob("*")) if place.exists() else []


def test_what_is_fetched_can_be_loaded(server: Server, tmp_path: Path) -> None:
    place = tmp_path / "new" / "place"
    told: list[tuple[str, int, int | None]] = []
    how = fetch(entry_of("mnist"), place, base_url=server.url, progress=lambda *what: told.append(what))
    assert how == "by sha256"
    assert left(place) == ["mnist", *sorted(f"mnist/{name}" for name in server.files)]
    assert load("mnist", place).counts == {"train": 12, "test": 4}
    assert {(a.rpartition("/")[2], n) for a, n, total in told if n == total} == {
        (name, len(data)) for name, data in server.files.items()
    }


@pytest.mark.parametrize("wrong", ["cut", "error", "missing"])
def test_an_error_on_the_way_leaves_nothing(wrong: str, server: Server, tmp_path: Path) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    if wrong == "missing":
        del server.files[name]
    server.wrong[name] = wrong
    says = {
        "cut": r"it ended after [\d,]+ of [\d,]+ bytes|cannot be fetched",
        "error": "the server answered 500",
        "missing": "answered",
    }
    with pytest.raises(DataError, match=says[wrong]) as caught:
        fetch(entry_of("mnist"), tmp_path / "place", base_url=server.url)
    message = str(caught.value)
    assert message.startswith(f"mnist: {server.url}/{name}: ") and "Nothing was kept" in message
    assert "--base-url" in message and "train-images-idx3-ubyte, train-labels-idx1-ubyte" in message
    assert not (tmp_path / "place").exists()


def test_a_server_that_is_not_there(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be fetched \(.*refused"):
        fetch(entry_of("mnist"), tmp_path / "place", base_url="http://127.0.0.1:1/")
    assert not (tmp_path / "place").exists()


def test_a_wrong_checksum_is_refused(server: Server, tmp_path: Path) -> None:
    """Every record can be read, but one pixel is another."""
    name = "train-images-idx3-ubyte.gz"
    data = bytearray(gzip.decompress(server.files[name]))
    data[-1] ^= 1
    server.files[name] = gzip.compress(data)
    with pytest.raises(DataError, match="train-images-idx3-ubyte.gz: the sha256 of its contents is .*, must be") as e:
        fetch(entry_of("mnist"), tmp_path / "place", base_url=server.url)
    assert ".part-" not in str(e.value), "names of what is gone help nobody"
    assert not (tmp_path / "place").exists()


def test_a_page_instead_of_a_file_is_refused(server: Server, tmp_path: Path) -> None:
    """As hotels do."""
    server.files = dict.fromkeys(server.files, b"<html>please log in</html>")
    with pytest.raises(DataError, match="cannot be unpacked"):
        fetch(entry_of("mnist"), tmp_path / "place", base_url=server.url)


def test_an_interruption_leaves_nothing(server: Server, tmp_path: Path) -> None:
    def interrupt(address: str, have: int, total: int | None) -> None:
        if "t10k" in address:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(entry_of("mnist"), tmp_path / "place", base_url=server.url, progress=interrupt)
    assert not (tmp_path / "place").exists()


def test_what_a_killed_process_left_goes_away(server: Server, tmp_path: Path) -> None:
    """A process that is alive keeps its folder. Numbers come again: a folder with ours was left by another."""
    place = tmp_path / "place"
    (place / ".mnist.part-999999999" / "fetched0").mkdir(parents=True)
    (place / f".mnist.part-{os.getpid()}").mkdir()
    (place / f".mnist.part-{os.getppid()}").mkdir()
    fetch(entry_of("mnist"), place, base_url=server.url)
    assert [name for name in left(place) if "part" in name] == [f".mnist.part-{os.getppid()}"]


def test_the_second_address_is_tried(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    entry = entry_of("mnist")
    assert entry.source is not None
    entry = replace(entry, source=replace(entry.source, bases=(f"{server.url}/gone/", f"{server.url}/")))
    assert fetch(entry, tmp_path / "place") == "by sha256"


def test_damaged_files_are_replaced(server: Server, tmp_path: Path) -> None:
    """Also where they were packed in another way, which would be found first."""
    place = tmp_path / "place"
    (place / "mnist").mkdir(parents=True)
    (place / "mnist" / "train-images-idx3-ubyte").write_bytes(b"rubbish")
    assert check(entry_of("mnist"), place).verdict == "incomplete"
    fetch(entry_of("mnist"), place, base_url=server.url)
    assert check(entry_of("mnist"), place).verdict == "whole"


def test_no_length_is_no_error(server: Server, tmp_path: Path) -> None:
    server.wrong = dict.fromkeys(server.files, "no length")
    assert fetch(entry_of("mnist"), tmp_path / "place", base_url=server.url) == "by sha256"


def zipped(files: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return out.getvalue()


def treebank(good: str = "good", others: Mapping[str, str] = MappingProxyType({})) -> bytes:
    trees = {f"trees/{part}.txt": "".join(f"{tree}\n" for tree in lines) for part, lines in TREES.items()}
    return zipped({name: text.replace("good", good) for name, text in trees.items()} | others)


def test_the_treebank(server: Server, tmp_path: Path) -> None:
    server.files["trainDevTestTrees_PTB.zip"] = treebank()
    assert fetch(entry_of("sst"), tmp_path / "place", base_url=server.url) == "by sha256"
    assert load("sst", tmp_path / "place").counts == {"train": 3, "valid": 2, "test": 1}


def test_another_edition_of_the_treebank(server: Server, tmp_path: Path) -> None:
    """The archive has no checksum that is known: every record is read, and what came is noted."""
    place = tmp_path / "place"
    server.files["trainDevTestTrees_PTB.zip"] = treebank("fine")
    assert fetch(entry_of("sst"), place, base_url=server.url).startswith("by reading every record")
    assert left(place / "sst") == ["dev.txt.xz", "sst.sha256", "test.txt.xz", "train.txt.xz"]
    assert check(entry_of("sst"), place).verdict == "whole"
    (place / "sst" / "train.txt.xz").write_bytes((place / "sst" / "dev.txt.xz").read_bytes())
    assert check(entry_of("sst"), place).verdict == "damaged"


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        pytest.param(b"nothing", "trainDevTestTrees_PTB.zip: not the archive of trees", id="no zip"),
        pytest.param(treebank()[:200], "trainDevTestTrees_PTB.zip: not the archive of trees", id="cut"),
        pytest.param(zipped({"trees/train.txt": ""}), "not the archive of trees .*dev.txt", id="a file missing"),
        pytest.param(treebank("good)"), "train.txt.xz, line 1: near", id="a tree that is none"),
        pytest.param(
            zipped({f"trees/{part}.txt": "(2 a)\n" for part in TREES}), "split 'train': it has 1 records", id="too few"
        ),
    ],
)
def test_an_archive_that_is_not_the_treebank(archive: bytes, says: str, server: Server, tmp_path: Path) -> None:
    server.files["trainDevTestTrees_PTB.zip"] = archive
    with pytest.raises(DataError, match=says) as caught:
        fetch(entry_of("sst"), tmp_path / "place", base_url=server.url)
    assert server.url in str(caught.value) and ".part-" not in str(caught.value)
    assert not (tmp_path / "place").exists()


def tasks() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for size, stories in (("en", 2), ("en-10k", 4)):
            for part, count in (("train", stories), ("test", 1)):
                member = tarfile.TarInfo(f"tasks_1-20_v1-2/{size}/qa15_basic-deduction_{part}.txt")
                text = (STORY * count).encode()
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    return out.getvalue()


def test_the_stories(server: Server, tmp_path: Path) -> None:
    server.files["tasks_1-20_v1-2.tar.gz"] = tasks()
    assert fetch(entry_of("babi15-en"), tmp_path / "place", base_url=server.url) == "by sha256"
    assert load("babi15-en-10k", tmp_path / "place").counts == {"train": 16, "test": 4}
    server.files["tasks_1-20_v1-2.tar.gz"] = tasks()[:-60]
    with pytest.raises(DataError, match=r"tar\.gz: not the archive of the bAbI tasks"):
        fetch(entry_of("babi15-en-10k"), tmp_path / "other", base_url=server.url)


def test_the_symbolic_graphs(server: Server, tmp_path: Path) -> None:
    for name, text in symbolic_files().items():
        server.files[name.replace("fold_", "processed_")] = text.encode()
    how = fetch(entry_of("babi15-symbolic"), tmp_path / "place", base_url=server.url)
    assert how.startswith("by reading every record")
    assert load("babi15-symbolic", tmp_path / "place", fold=3).counts == {"train": 4, "test": 4}
    assert check(entry_of("babi15-symbolic"), tmp_path / "place").verdict == "whole"


def test_glove_is_reduced_to_the_words_of_the_trees(server: Server, root: Path, tmp_path: Path) -> None:
    lines = {
        dim: f"the {'1 ' * dim}\ngood {' '.join(map(str, range(dim)))}\n( {' '.join(['0.5'] * dim)}\n"
        for dim in (50, 300)
    }
    server.files["glove.6B.zip"] = zipped({f"glove.6B.{dim}d.txt": text for dim, text in lines.items()})
    with pytest.raises(DataError, match="sst: not found"):
        fetch(entry_of("glove"), tmp_path / "place", base_url=server.url)
    assert server.asked == [], "nothing is fetched for nothing"
    fetch(entry_of("glove"), tmp_path / "place", base_url=server.url, data_dir=root)
    for dim in (50, 300):
        vectors = load("glove", tmp_path / "place", dim=dim)
        known = {w.token: w.vector for w in vectors.splits["words"] if w.vector is not None}
        assert sorted(known) == ["-LRB-", "good"] and len(vectors.splits["words"]) == len(words())
        assert np.array_equal(known["good"], np.arange(dim)) and known["-LRB-"][0] == 0.5


def test_what_cannot_be_fetched_says_what_is_needed(server: Server, root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)place/wordvec300.*--base-url.*spacy_md_300d_sst\.npz.*tokens.*vectors"):
        fetch(entry_of("wordvec300"), tmp_path / "place")
    server.files["spacy_md_300d_sst.npz"] = (root / "wordvec300" / "spacy_md_300d_sst.npz").read_bytes()
    assert fetch(entry_of("wordvec300"), tmp_path / "place", base_url=server.url) == "by sha256"
    with pytest.raises(DataError, match="babi15 is generated"):
        fetch(entry_of("babi15"), tmp_path / "place")


def test_a_place_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"mnist: cannot write to .*file/place: .*Nothing was kept"):
        fetch(entry_of("mnist"), tmp_path / "file" / "place", base_url=server.url)


def test_a_full_disk(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While files are converted."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetching, "_keep", full)
    with pytest.raises(DataError, match="mnist: cannot write to .*: the disk is full"):
        fetch(entry_of("mnist"), tmp_path / "place", base_url=server.url)
    assert not (tmp_path / "place").exists()


def test_a_member_that_is_far_too_large(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sst, "LARGEST", 10)
    server.files["trainDevTestTrees_PTB.zip"] = treebank()
    with pytest.raises(DataError, match=r"trees/train.txt: \d+ bytes are too many"):
        fetch(entry_of("sst"), tmp_path / "place", base_url=server.url)


@pytest.mark.parametrize("name", ["../../evil.txt", "/tmp/evil.txt", "trees\\..\\evil.txt"])
def test_names_that_lead_out_of_an_archive(name: str, server: Server, tmp_path: Path) -> None:
    server.files["trainDevTestTrees_PTB.zip"] = treebank(others={name: "x"})
    with pytest.raises(DataError, match=r"trainDevTestTrees_PTB\.zip, member .*evil.*leads out of the archive"):
        fetch(entry_of("sst"), tmp_path / "place", base_url=server.url)
    assert not list(tmp_path.rglob("*evil*")) and not (tmp_path / "place").exists()
