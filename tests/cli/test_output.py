"""Files that the user names: refused before any work, or written whole; a full disk costs only what has no room."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampnet.checkpoint.output import Replacement
from ampnet.cli import main, train

TINY = ["train", "list-reduction", "--train-size", "60", "--valid-size", "20", "--epochs", "2", "--quiet"]
WRITING = [
    [*TINY, "--json"],
    [*TINY, "--save"],
    [*TINY, "--log"],
    [*TINY, "--trace"],
    [*TINY, "--csv"],
    ["draw", "mnist", "-o"],
    ["profile", "mnist", "--json"],
]


@pytest.mark.parametrize("argv", WRITING, ids=lambda argv: f"{argv[0]} {argv[-1]}")
def test_devices_pipes_and_folders_are_refused(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they were replaced: ``--json /dev/null`` by root made a file of it."""
    monkeypatch.setattr(train, "make_graph", lambda *args: pytest.fail("work has begun"))
    fifo, folder, loop = tmp_path / "fifo.svg", tmp_path / "folder.svg", tmp_path / "loop.svg"
    os.mkfifo(fifo)
    folder.mkdir()
    loop.symlink_to(loop)
    link = tmp_path / "link.svg"
    link.symlink_to(fifo)
    for path in (Path("/dev/null"), fifo, link, folder, loop, tmp_path / "missing" / "x.svg", Path("x" * 300)):
        assert main([*argv, str(path)]) == 2
        error = capsys.readouterr().err
        assert str(path) in error or path.name == "x.svg"
        assert error.count("\n") == 1
    assert fifo.is_fifo()
    assert Path("/dev/null").is_char_device()
    assert link.is_symlink()


def test_a_symlink_stays_and_its_target_is_written(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    names = ("json", "log", "trace", "csv", "save")
    options = []
    for name in names:
        (tmp_path / name).symlink_to(other / name)
        options += [f"--{name}", str(tmp_path / name)]
        (tmp_path / f"{name}.part").write_text("not ours")
    assert main([*TINY, *options]) == 0
    for name in names:
        assert (tmp_path / name).is_symlink()
        assert (other / name).stat().st_size > 100
        assert (tmp_path / f"{name}.part").read_text() == "not ours"
    assert sorted(path.name for path in other.iterdir()) == sorted(names)


def no_room(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """These files cannot be written to their end."""
    commit = Replacement.commit

    def full(self: Replacement) -> None:
        if self.path.name in names:
            self.discard()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        commit(self)

    monkeypatch.setattr(Replacement, "commit", full)


@pytest.mark.filterwarnings("default::ampnet.errors.OutputWarning")
def test_what_has_no_room_does_not_cost_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch, "result.json")
    argv = [*TINY, "--json", str(tmp_path / "result.json"), "--save", str(tmp_path / "model")]
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert "result.json" in error
    assert "No space left on device" in error
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_results_are_there_without_room_for_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room(monkeypatch, "model")
    argv = [*TINY, "--json", str(tmp_path / "result.json"), "--save", str(tmp_path / "model")]
    assert main(argv) == 1
    error = capsys.readouterr().err
    assert "model" in error
    assert "No space left on device" in error
    assert json.loads((tmp_path / "result.json").read_text())["state"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from ampnet.__main__ import main
sys.exit(main())
"""
"""No file may have more than 20,000 bytes: a real error of the system, at any write."""


def test_a_real_process_without_room(tmp_path: Path) -> None:
    names = ("log", "trace", "json", "csv", "save")
    options = [text for name in names for text in (f"--{name}", str(tmp_path / name))]
    command = [sys.executable, "-c", LIMITED, *TINY, "--epochs", "4", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 3
    for name in ("log", "trace", "save"):
        assert f"ampnet: {tmp_path / name}" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["csv", "json", "log", "trace"]
    for name in ("log", "trace"):
        assert main(["report", str(tmp_path / name), "-o", str(tmp_path / "out.html")]) == 0
        assert "<b>Incomplete:</b>" in (tmp_path / "out.html").read_text()


@pytest.mark.parametrize(
    ("argv", "redirected"),
    [
        ("explain list-reduction", ""),
        ("completion bash", ">&-"),
        ("completion bash", ">&- 2>&- <&-"),
        ("completion bash", "| head -c 10"),
    ],
)
def test_any_stdout(argv: str, redirected: str, tmp_path: Path) -> None:
    """In ASCII, closed, or gone early."""
    command = f"{sys.executable} -m ampnet {argv} {redirected}"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=120, check=False, env=environment)
    assert b"Traceback" not in done.stderr
    assert b"Error" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("value", [str(2**64), "-1", "9" * 5_000, "nan", "0x10", ""])
def test_a_seed_that_no_generator_takes(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, f"--seed={value}"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ampnet train list-reduction: --seed: ")
    assert len(error) < 200


def test_the_largest_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, f"--seed={2**63 - 1}"]) == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "line 1: this is not JSON"),
        (b"\xff\xfe", "is not text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"cell": ' * 100_000, "nested too deeply"),
        (b"[]", "holds no object"),
        (b'{"cell": {"cell": 1}}', 'entry "cell": an object is no worker'),
        (b'{"cell": "1"}', "entry \"cell\": '1' is no worker"),
        (b'{"cell": 1e999}', 'entry "cell": Infinity is no worker'),
        (b'{"cell": ' + b"9" * 5_000 + b"}", "is not JSON"),
        (b'{"\\ud800": 0}', 'entry "\\ud800": no node is called that'),
    ],
)
def test_an_affinity_that_is_none(data: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "where.json"
    path.write_bytes(data)
    assert main([*TINY, "--workers", "2", "--affinity", str(path)]) == 2
    error = capsys.readouterr().err
    assert f"--affinity: {path}" in error
    assert said in error
