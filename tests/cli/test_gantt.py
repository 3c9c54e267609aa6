"""``ampnet gantt`` and ``ampnet report``: from a file that ``ampnet train`` wrote to a picture or a page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.events.run_file import read_run

TRAIN = ("train", "list-reduction", "--train-size", "400", "--valid-size", "100", "--hidden", "8", "--epochs", "2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace and a log of one run."""
    folder = tmp_path_factory.mktemp("run")
    files = ("--trace", str(folder / "run.json"), "--log", str(folder / "run.jsonl"))
    assert main([*TRAIN, "--quiet", *files]) == 0
    assert sorted(p.name for p in folder.iterdir()) == ["run.json", "run.jsonl"]
    return folder


def test_the_trace_holds_the_run_and_its_graph(folder: Path) -> None:
    json.loads((folder / "run.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    trace, log = read_run(folder / "run.json"), read_run(folder / "run.jsonl")
    assert sorted(s.name for s in trace.streams) == ["train 1", "train 2", "valid 1", "valid 2"]
    assert trace.totals == log.totals
    for record in (trace, log):
        assert record.settings["workload"] == "list-reduction"
        assert "cell" in [item["name"] for item in record.settings["graph"]["items"]]


@pytest.mark.parametrize("source", ["run.json", "run.jsonl"])
@pytest.mark.parametrize(
    ("ending", "how"),
    [("png", []), ("svg", ["--from", "0", "--to", "0.02"]), ("html", ["--instances", "1:2", "--rows", "nodes"])],
)
def test_a_picture_of_a_run(
    source: str, ending: str, how: list[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"run.{ending}"
    assert main(["gantt", str(folder / source), "-o", str(path), *how]) == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("list-reduction: ")
    assert "; busy: inline " in line


@pytest.mark.parametrize("source", ["run.json", "run.jsonl"])
def test_a_report_of_a_run(source: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.html"
    assert main(["report", str(folder / source), "-o", str(path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("valid 2: loss ")
    assert "<h1>list-reduction</h1>" in path.read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["gantt", "{run}"], "the following arguments are required: -o/--output"),
        (["gantt", "{run}", "-o", "{tmp}/x.gif"], "says no format; use one of .png, .svg, .html"),
        (["gantt", "{tmp}/none", "-o", "{tmp}/x.png"], "RUN: there is no file"),
        (["gantt", "{run}", "-o", "{tmp}/x.png", "--instances", "9:4"], "--instances: 9:4 is empty"),
        (["gantt", "{run}", "-o", "{tmp}/x.png", "--instances", "few"], "'few' is no range of instances"),
        (["gantt", "{run}", "-o", "{tmp}/x.png", "--instances", "1", "--to", "2"], "either instances or seconds"),
        (["gantt", "{run}", "-o", "{tmp}/x.png", "--from", "-1"], "-1 is no second of a run"),
        (["gantt", "{run}", "-o", "{tmp}/x.png", "--from", "soon"], "'soon' is not a number of seconds"),
        (["report", "{run}", "-o", "{tmp}/x.pdf"], "let it end in .html"),
        (["report", "{run}", "-o", "{tmp}/none/x.html"], "there is no folder"),
    ],
)
def test_a_bad_request_is_one_line(
    argv: list[str], said: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(run=folder / "run.json", tmp=tmp_path) for part in argv]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.html"
    run.write_text("{}")
    for command in ("gantt", "report"):
        assert main([command, str(run), "-o", str(run)]) == 2
        assert "this is the run itself" in capsys.readouterr().err
    assert run.read_text() == "{}"


@pytest.mark.parametrize("command", ["gantt", "report"])
def test_a_file_that_is_no_run_is_one_line(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.json"
    run.write_bytes(b"\xff\xfe\x00\n")
    assert main([command, str(run), "-o", str(tmp_path / "x.html")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"ampnet: {run}, line 1: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [run]


def test_an_error_leaves_no_trace(tmp_path: Path) -> None:
    fatal = ("--optimizer", "sgd", "--learning-rate", "1e30")
    assert main([*TRAIN, *fatal, "--quiet", "--trace", str(tmp_path / "run.json")]) == 1
    assert list(tmp_path.iterdir()) == []
