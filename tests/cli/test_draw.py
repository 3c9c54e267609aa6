"""``ampnet draw``: a picture where it is asked for, else text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampnet.cli import main
from ampnet.models import registry


def test_mermaid_text_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "list-reduction"]) == 0
    text = capsys.readouterr().out
    assert "flowchart" in text
    for node in ("embedding", "tokens_loop", "cell", "classify", "loss"):
        assert node in text


@pytest.mark.parametrize("model", registry.GRAPHS)
def test_every_model_can_be_drawn(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", model]) == 0
    text = capsys.readouterr().out
    graph = registry.build(model)
    for name in graph.nodes:
        assert f'"{name}<br/>' in text


@pytest.mark.parametrize(("cell", "node"), [("relu", "Linear 256→128"), ("gru", "GRU cell"), ("lstm", "LSTM cell")])
def test_the_cell_of_list_reduction(cell: str, node: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["draw", "list-reduction", "--cell", cell]) == 0
    assert node in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF"), ("mmd", b"---")]
)
def test_a_picture_in_the_format_of_its_ending(
    ending: str, start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"graph.{ending}"
    assert main(["draw", "list-reduction", "-o", str(path)]) == 0
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["list-reduction", "-o", "graph.gif"], "the ending of graph.gif says no format; use one of .svg, .png"),
        (["list-reduction", "-o", "none/graph.svg"], "there is no folder none"),
        (["chess"], "invalid choice: 'chess'"),
        ([], "the following arguments are required: WORKLOAD"),
        (["qm9", "--cell", "gru"], "--cell: only list-reduction has cells to choose from, not qm9"),
        (["list-reduction", "--cell", "elman"], "--cell: invalid choice: 'elman'; there are: relu, gru, lstm"),
    ],
)
def test_a_bad_request_is_one_line(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["draw", *argv]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
