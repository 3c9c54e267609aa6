"""explain: the table of a compiled model, and the notes that drawings show."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from ampnet.lang import Compiled, Model, Seq, compile, fold, loss, repeat


class Halves(Model):
    """A layer in a loop whose rounds are counted by integers, and once more after it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.gate = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)

    def forward(self, x: Tensor, n: int, y: Tensor) -> Tensor:
        h, _ = repeat(lambda c: (self.layer(c[0]), c[1] // 2), (x, n), while_=lambda c: c[1] > 1)
        h = torch.sigmoid(self.gate(h)) * self.layer(h) + 1
        loss(self.out(h), y, "squared_error")
        return h


def line_of(text: str) -> str:
    """The line of the model that has this text, as the table names it."""
    lines, first = inspect.getsourcelines(Halves)
    return f"test_explain.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


def halves() -> Compiled:
    return compile(Halves(), torch.zeros(4), 5, torch.zeros(1))


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("  ") if cell.strip()]


def test_a_table_of_inputs_and_then_nodes_in_the_order_of_messages() -> None:
    graph = halves()
    title, _, rule, *rows = graph.explain(width=None).splitlines()
    assert title == f"Halves: 2 inputs, {len(graph.nodes)} nodes; in every state, besides the key: n"
    assert set(rule) == {"-", " "}
    table = [cells(row) for row in rows]
    names = list(dict.fromkeys(row[0] for row in table))
    assert names == ["x", "y", *graph.order()]
    assert table[0][1:] == ["input", "4", "instance", "instance", line_of("def forward"), inspect_text("def forward")]


def inspect_text(start: str) -> str:
    return next(line.strip() for line in inspect.getsource(Halves).splitlines() if line.strip().startswith(start))


def test_a_module_called_twice_has_a_row_for_each_call() -> None:
    rows = [cells(row) for row in halves().explain(None).splitlines() if row.startswith("layer ")]
    assert sorted(row[3] for row in rows) == ["instance", "instance × round"]
    assert {row[5] for row in rows} == {line_of("repeat("), line_of("torch.sigmoid")}


def test_what_passes_have_put_together_shows() -> None:
    does = {cells(row)[0]: cells(row)[1] for row in halves().explain(None).splitlines()[3:]}
    assert does["gate"] == "Linear 4→4 + sigmoid"
    assert "mul·add" in does.values()
    apart = compile(Halves(), torch.zeros(4), 5, torch.zeros(1), fuse_linear=False, fuse_rows=False)
    assert {"Linear 4→4", "sigmoid", "mul", "add"} <= {cells(row)[1] for row in apart.explain(None).splitlines()[3:]}


def test_a_number_of_rounds_that_is_worked_out_stands_beside_the_key() -> None:
    rows = {cells(row)[0]: cells(row) for row in halves().explain(None).splitlines()[3:]}
    assert rows["round_cond"][1:5] == [
        "Cond: round < round_count",
        "4",
        "instance × round",
        "instance, round + round_count",
    ]
    assert rows["round_leave"][4] == "instance"


def test_the_text_of_lines_is_cut_to_the_width_and_the_place_never() -> None:
    graph = halves()
    whole = graph.explain(None)
    assert inspect_text("h = torch.sigmoid") in whole
    for width in (160, 140, 120):
        table = graph.explain(width).splitlines()
        assert max(map(len, table[1:])) <= width
    narrow = graph.explain(20).splitlines()[3:]
    assert all("test_explain.py:" in row for row in narrow)
    assert not any(row.endswith("…") for row in narrow)


def test_every_node_and_input_has_a_note_also_those_that_no_line_asked_for() -> None:
    class Twice(Model):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(8, 4)

        def forward(self, tokens: Seq, y: Tensor) -> None:
            h = fold(lambda h, x: torch.tanh(self.cell(torch.cat((h, x), -1))) + h, tokens, self.zeros(4))
            loss(h, y, "squared_error")

    graph = compile(Twice(), Seq(torch.zeros(3, 4)), torch.zeros(4))
    assert any(name.endswith("_bcast") for name in graph.nodes)
    assert set(graph.notes) == {*graph.nodes, *(i.name for i in graph.inputs)}
    for note in graph.notes.values():
        *_, scope, place = note.splitlines()
        assert scope.startswith("instance")
        assert place.startswith("test_explain.py:")
