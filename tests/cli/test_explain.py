"""``ampnet explain``: a table of every value, with the line that it comes from."""

from __future__ import annotations

import pytest

from ampnet.cli import main
from ampnet.models import registry


@pytest.mark.parametrize("model", registry.COMPILED)
def test_every_node_and_input_has_a_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", model]) == 0
    out = capsys.readouterr().out
    graph = registry.COMPILED[model]()
    assert out == f"{graph.explain()}\n"
    title, head, _, *rows = out.splitlines()
    assert title.startswith(f"{graph.name}: {len(graph.inputs)} inputs, {len(graph.nodes)} nodes")
    assert head.split() == ["value", "does", "row", "scope", "key", "made", "at"]
    values = [row.split()[0] for row in rows]
    names = [*(i.name for i in graph.inputs), *graph.order()]
    assert list(dict.fromkeys(values)) == names  # a module called in several places has a row for each
    assert all(".py:" in row for row in rows)
    assert max(map(len, rows)) <= 160


def test_the_table_can_be_had_whole_and_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "qm9", "--width", "0"]) == 0
    whole = capsys.readouterr().out
    assert "arriving = messages(lambda h, edge: choose(edge.kind, self.along, h), edges, h)" in whole
    assert main(["explain", "qm9", "--width", "140"]) == 0
    narrow = capsys.readouterr().out
    assert max(map(len, narrow.splitlines())) <= 140
    assert len(narrow.splitlines()) == len(whole.splitlines())


def test_cells_of_list_reduction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "list-reduction", "--cell", "lstm"]) == 0
    assert "LSTM cell 128+128" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["by-hand"], "by-hand is wired node by node, so there are no lines of a model to explain it by"),
        (["chess"], "invalid choice: 'chess'"),
        (["mnist", "--cell", "gru"], "--cell: only list-reduction has cells to choose from, not mnist"),
        (["mnist", "--width", "wide"], "--width: 'wide' is not a whole number"),
        ([], "the following arguments are required: WORKLOAD"),
    ],
)
def test_a_bad_request_is_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *argv]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
