"""``ampnet check``: a verdict on a log, or one line that says what is wrong with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampnet.cli import main

TRAIN = ("train", "list-reduction", "--train-size", "200", "--valid-size", "50", "--hidden", "8", "--epochs", "1")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines of a good run's log."""
    path = tmp_path_factory.mktemp("log") / "run.log"
    assert main([*TRAIN, "--quiet", "--log", str(path)]) == 0
    return path.read_text().splitlines(keepends=True)


@pytest.fixture
def log(written: list[str], tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text("".join(written))
    return path


def test_a_good_log(log: Path, written: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(log)]) == 0
    assert capsys.readouterr().out == f"all promises kept: P1 P5 P6 P7 P8 P9 P10 over {len(written):,} events\n"


def test_a_broken_promise_is_told_with_its_line(
    log: Path, written: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Operations that are in the log twice come back once too often."""
    twice = next(i for i, line in enumerate(written) if '"event": "Played"' in line and '"train": true' in line)
    log.write_text("".join([*written[: twice + 1], written[twice], *written[twice + 1 :]]))
    assert main(["check", str(log)]) == 1
    *violations, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith(f"P1   line {twice + 2}: ") for line in violations)
    assert last.endswith(f" over {len(written) + 1:,} events")


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(tmp_path / "none.log")]) == 2
    assert capsys.readouterr().err == f"ampnet check: LOG: there is no file {tmp_path / 'none.log'}\n"


@pytest.mark.parametrize(
    "torn",
    [
        pytest.param(b'{"event": "Pump", "time": 0.1, "str', id="in the middle of a line"),
        pytest.param(b'{"event": "Lunch", "time": 0.1}\n', id="an event that does not exist"),
        pytest.param(
            b'{"event": "Return", "time": 0.1, "port": 0, "states": {"fields": ["t"], "columns": [[1]]}}\n',
            id="a state without an instance",
        ),
        pytest.param(
            b'{"event": "Return", "time": 0.1, "port": 0, "states": {"fields": ["instance"], "columns": [[1], [2]]}}\n',
            id="a state with a value too many",
        ),
        pytest.param(b"\xff\xfe\x00\n", id="not text"),
    ],
)
def test_a_torn_file_is_named_with_the_line(
    torn: bytes, written: list[str], log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.write_bytes("".join(written[:3]).encode() + torn)
    assert main(["check", str(log)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ampnet: {log}, line 4: not an event of a run (")
    assert captured.err.count("\n") == 1


def test_an_empty_file_holds_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.log").touch()
    assert main(["check", str(tmp_path / "run.log")]) == 1
    assert "no event in it" in capsys.readouterr().err
