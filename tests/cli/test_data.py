"""`ampnet data`: what is printed, and the exit codes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.data.catalog import ENTRIES
from tests.data.small import know, write_all


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "data"
    write_all(folder)
    know(folder, monkeypatch)
    return folder


def test_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(root / "qm9")
    (root / "sst" / "dev.txt.xz").unlink()
    assert main(["data", "list", "--data-dir", str(root)]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ENTRIES)
    assert f"here: {root / 'mnist'}" in out
    assert "missing: 'ampnet data get qm9' fetches it" in out
    assert f"incomplete: sst: {root / 'sst'} lacks dev.txt; 'ampnet data get sentiment' fetches it" in out
    assert "12 train / 4 test" in out
    assert f"  {root} (--data-dir)\n  ../shared/data (beside the current folder): no such folder\n" in out


def test_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "--data-dir", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ENTRIES)
    verdicts = {line.split()[0]: line.split()[1] for line in lines}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "whole"} == {
        "list-reduction": "generated",
        "babi15": "generated",
    }
    assert main(["data", "check", "mnist", "--data-dir", str(root)]) == 0
    assert capsys.readouterr().out == f"mnist  whole       {root / 'mnist'} (4 files: 12 train, 4 test)\n"


def test_check_of_what_is_damaged(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "babi15" / "en" / "qa15_basic-deduction_test.txt"
    path.write_text(path.read_text().replace("Emily is a mouse", "Emily is mouse"))
    assert main(["data", "check", "--data-dir", str(root)]) == 1
    captured = capsys.readouterr()
    assert f"babi15-en        damaged     babi15-en: {path}, line 7: 'Emily is mouse.'" in captured.out
    assert captured.err == "ampnet: 1 of 10 data sets is not whole\n"
    assert main(["data", "check", "babi15-en", "--data-dir", str(root)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ampnet: babi15-en: {path}, line 7: ") and captured.err.count("\n") == 1


def test_check_of_what_is_missing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is asked for by name must be there."""
    assert main(["data", "check"]) == 0
    assert "mnist            missing     'ampnet data get mnist' fetches it" in capsys.readouterr().out
    assert main(["data", "check", "mnist"]) == 1
    assert capsys.readouterr().err == "ampnet: mnist: not found; 'ampnet data get mnist' fetches it\n"


def test_get(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = (root / "mnist").as_uri()
    cache = tmp_path / "cache" / "ampnet"
    assert main(["data", "get", "mnist", "--base-url", url]) == 0
    assert capsys.readouterr().out == f"mnist: fetched into {cache / 'mnist'}, verified by sha256\n"
    assert main(["data", "get", "mnist"]) == 0
    assert capsys.readouterr().out.startswith(f"mnist is here and whole: {cache / 'mnist'}")
    assert main(["data", "get", "mnist", "--base-url", url, "--data-dir", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other" / "mnist" / "t10k-labels-idx1-ubyte.gz").is_file()
    assert main(["data", "get", "babi15"]) == 0
    assert "generated" in capsys.readouterr().out


def test_get_beside_damaged_files(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They come first in the search, and are not ours to change."""
    whole = root.parent / "whole"
    shutil.copytree(root / "mnist", whole)
    (root / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"x")
    monkeypatch.setenv("AMPNET_DATA", str(root))
    assert main(["data", "get", "mnist", "--base-url", whole.as_uri()]) == 0
    assert f"note: {root / 'mnist'} comes first and is not whole" in capsys.readouterr().out


def test_get_that_fails(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "get", "mnist", "--base-url", tmp_path.as_uri()]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"ampnet: mnist: {tmp_path.as_uri()}/") and captured.err.count("\n") == 1
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").rglob("*.gz"))
    assert main(["data", "get", "wordvec300"]) == 1
    assert "spacy_md_300d_sst.npz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["data"], "ampnet data: no command given; 'ampnet data --help' lists them"),
        (["data", "get"], "ampnet data get: the following arguments are required: NAME"),
        (["data", "get", "mnits"], "ampnet data get: NAME: invalid choice: 'mnits'; did you mean 'mnist'?"),
        (["data", "check", "x", "y"], "ampnet data check: NAME: invalid choice: 'x'; there are: mnist, "),
        (["data", "list", "--data-dir", "/no/such"], "ampnet data list: --data-dir: there is no folder /no/such"),
        (["data", "get", "mnist", "--base-url", "here"], "ampnet data get: --base-url: 'here' is not an address; "),
        (["data", "list", "--data-di", "/"], "ampnet data list: unknown option --data-di; did you mean --data-dir?"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(says) and error.count("\n") == 1


@pytest.mark.parametrize("action", [[], ["list"], ["get"], ["check"]])
def test_help(action: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["data", *action, "--help"])
    assert done.value.code == 0
    assert "usage: ampnet data" in capsys.readouterr().out
