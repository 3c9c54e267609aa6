"""`ampnet.checkpoint.output`: the old contents or the new ones, and nothing else is touched."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ampnet.checkpoint.output import Replacement, check_output, replacing
from ampnet.errors import AmpnetError, OutputError


def write(path: Path, text: str = "new") -> None:
    with replacing(path) as file:
        file.write(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_and_an_existing_one(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write(file, "ä")
    assert file.read_bytes() == "ä".encode()
    with replacing(file, "wb") as raw:
        raw.write(b"\x00")
        assert file.read_bytes() == "ä".encode(), "nobody sees half a file"
    assert file.read_bytes() == b"\x00"
    assert names(tmp_path) == ["a"]


def test_permissions_are_those_of_the_old_file_or_the_usual_ones(tmp_path: Path) -> None:
    old, new, plain = tmp_path / "old", tmp_path / "new", tmp_path / "plain"
    old.touch()
    old.chmod(0o640)
    plain.touch()
    write(old)
    write(new)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == plain.stat().st_mode


def test_a_symlink_stays_one_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link, dangling = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "dangling"
    target.write_text("old")
    link.symlink_to("far/target")
    dangling.symlink_to("far/fresh")
    write(link)
    write(dangling)
    assert (link.is_symlink(), dangling.is_symlink()) == (True, True)
    assert target.read_text() == (tmp_path / "far" / "fresh").read_text() == "new"
    assert check_output(link) == target.resolve()
    assert names(tmp_path / "far") == ["fresh", "target"]


@pytest.fixture
def special(tmp_path: Path) -> Iterator[Path]:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-fifo").symlink_to("fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-folder").symlink_to("folder")
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("none/file")
    (tmp_path / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(tmp_path)  # paths of sockets are short
        server.bind("socket")
        os.chdir(here)
        yield tmp_path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fifo", "is a FIFO"),
        ("to-fifo", "is a FIFO"),
        ("folder", "is a folder; give a file in it"),
        ("to-folder", "is a folder"),
        ("", "is a folder"),
        ("null", "is a device and no regular file"),
        ("/dev/full", "is a device"),
        ("socket", "is a socket"),
        ("loop", "cannot be written: Too many levels of symbolic links"),
        ("none/file", "there is no folder"),
        ("nowhere", "there is no folder"),
        ("file/in", "cannot be written: Not a directory"),
        ("x" * 300, "cannot be written: File name too long"),
    ],
)
def test_what_is_no_regular_file_is_refused_before_any_work(special: Path, name: str, said: str) -> None:
    path, before = special / name, sorted((p.name, p.lstat().st_mode) for p in special.iterdir())
    with pytest.raises(OutputError, match=said) as caught:
        check_output(path)
    assert str(path) in str(caught.value)
    with pytest.raises(OutputError, match=said), replacing(path):
        raise AssertionError("the block is not reached")
    assert sorted((p.name, p.lstat().st_mode) for p in special.iterdir()) == before


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write(path)
    assert names(tmp_path) == [path.name]


def test_files_and_folders_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.access` answers for a user who is not root."""
    closed, locked = tmp_path / "closed", tmp_path / "locked"
    closed.mkdir()
    locked.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) not in (closed, locked))
    for path in (closed / "a", locked):
        with pytest.raises(OutputError, match=f"{path} cannot be written; give a file in a folder of yours"):
            check_output(path)


def test_somebody_elses_part_is_not_touched(tmp_path: Path) -> None:
    other = tmp_path / "a.part"
    other.write_text("theirs")
    with replacing(tmp_path / "a") as file, replacing(tmp_path / "a") as second:
        file.write("first")
        second.write("second")
    assert (tmp_path / "a").read_text() == "first", "the one that ends last"
    assert other.read_text() == "theirs"
    assert names(tmp_path) == ["a", "a.part"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, BrokenPipeError, MemoryError])
def test_an_error_inside_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "a").write_text("old")
    for path in (tmp_path / "a", tmp_path / "b"):
        with pytest.raises(error), replacing(path) as file:
            file.write("new")
            raise error
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.parametrize("call", ["open", "fchmod", "fdopen", "fsync", "replace"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))])
def test_an_error_of_every_call_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def failing(*args: object, **settings: object) -> object:
        raise error

    monkeypatch.setattr(os, call, failing)
    with pytest.raises((KeyboardInterrupt, OutputError)) as caught:
        write(path)
    monkeypatch.undo()
    if isinstance(error, OSError):
        assert str(caught.value) == f"{path} cannot be written: No space left on device"
        assert isinstance(caught.value, AmpnetError)
        assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("size", [100, 100_000], ids=["when it is flushed", "in the block"])
def test_a_disk_that_is_really_full(tmp_path: Path, size: int) -> None:
    """A limit on the size of files fails as a full disk does, in the midst of a write."""
    path = tmp_path / "a"
    path.write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, before[1]))
    try:
        with pytest.raises(OutputError, match=f"^{path} cannot be written: File too large$"):
            write(path, "x" * size)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_other_errors_inside_keep_their_names(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="elsewhere"), replacing(tmp_path / "a"):
        (tmp_path / "elsewhere").read_text()
    assert names(tmp_path) == []


def test_a_writer_that_lives_longer(tmp_path: Path) -> None:
    kept, dropped = Replacement(tmp_path / "a"), Replacement(tmp_path / "b", "wb")
    kept.file.write("a")
    dropped.file.write(b"b")
    for _ in range(2):
        kept.commit()
        dropped.discard()
    kept.discard()
    dropped.commit()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "a"


def test_a_forked_child_does_not_end_its_parents_file(tmp_path: Path) -> None:
    out = Replacement(tmp_path / "a")
    if (child := os.fork()) == 0:
        try:
            out.discard()
            out.commit()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not (tmp_path / "a").exists()
    out.file.write("parent's")
    out.commit()
    assert (tmp_path / "a").read_text() == "parent's"
    assert names(tmp_path) == ["a"]
