"""explain(): every node and input, with the scope, state and key that its messages really have, and its line."""

from __future__ import annotations

import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline
from ampnet.lang import Compiled, Model, Seq, compile, fold, loss, repeat
from ampnet.nodes.node import Report
from ampnet.state import States
from ampnet.testing.written import WrittenModel, example
from tests.lang.test_passes import MODELS


def states_seen(graph: Compiled, data: list[tuple[Any, ...]]) -> dict[tuple[str, int], States]:
    """What every node sent out of every port, in a run of inference."""
    seen: dict[tuple[str, int], list[States]] = defaultdict(list)

    def listen(name: str, forward: Any) -> Any:
        def heard(port: int, messages: Any) -> Any:
            outputs = forward(port, messages)
            for output in outputs:
                if not isinstance(output, Report):
                    seen[name, output[1]].append(output[2].states)
            return outputs

        return heard

    with Inline(graph, max_active_keys=3) as runtime:
        for name, node in graph.nodes.items():
            node.forward = listen(name, node.forward)  # type: ignore[method-assign]
        runtime.infer(graph.instances(data))
    return {where: States.merge(some) for where, some in seen.items()}


def nested() -> tuple[Model, list[tuple[Any, ...]]]:
    program: Any = [
        (
            "tree",
            "cat",
            "x",
            [("repeat", 2, "plain", ["linear", "outer"])],
            [("choose", 2, [["tanh"], ["scale"]])],
            "both",
        ),
        ("graph", [("choose", 3, [["linear"], ["other"]])], "gru", [("while", ["softmax"])], 2, "mean"),
        (
            "scan",
            "tokens",
            "lstm",
            [("each", "tree", ["relu", "outer"], "logsumexp")],
            [("loss", "squared_error", 0.5), "linear"],
            "mean",
        ),
    ]
    return WrittenModel(program), [example(i) for i in range(3)]


@pytest.mark.parametrize("name", [*MODELS, "nested"])
def test_messages_have_the_states_and_keys_that_are_said(name: str) -> None:
    torch.manual_seed(0)
    if name == "nested":
        model, data = nested()
    else:
        make, given = MODELS[name]
        model, data = make().double(), given()
    graph = compile(model, *data[0])
    sites: dict[str, int] = defaultdict(int)
    said = {}
    for note in graph.origins:
        if not note.pumped:
            ports = len(graph.nodes[note.name].outputs)
            several = sum(other.name == note.name and not other.pumped for other in graph.origins) > 1
            for port in [sites[note.name]] if several else range(ports):
                said[note.name, port] = note
            sites[note.name] += 1
    for where, states in states_seen(graph, data).items():
        note = said[where]
        assert set(states.fields) == set(note.fields), where
        key = list(zip(*(states.column(field).tolist() for field in note.scope.key), strict=True))
        assert len(set(key)) == len(key), f"{where}: two messages of one key"


@pytest.mark.parametrize("name", MODELS)
def test_every_node_and_input_has_a_line_of_the_model(name: str) -> None:
    make, given = MODELS[name]
    model = make().double()
    graph = compile(model, *given()[0])
    notes = {note.name: note for note in graph.origins}
    assert notes.keys() == {*graph.nodes, *(i.name for i in graph.inputs)}
    file = inspect.getsourcefile(type(model))
    assert file is not None
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    table = graph.explain(width=None).splitlines()[3:]
    for note in notes.values():
        assert note.line.file == file
        assert note.line.text == lines[note.line.number - 1].strip() != ""
        rows = [r for r in table if r.split()[0] == note.name]
        assert all(f"{note.line}  {note.line.text}" in row for row in rows)
        assert any(str(note.scope) in row and ", ".join(note.scope.key) in row for row in rows)


class Small(Model):
    """A loop over tokens, then a loop as often as the instance says."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.out = nn.Embedding(5, 2), nn.GRUCell(2, 2), nn.Linear(2, 3)

    def forward(self, tokens: Seq, steps: int, label: Tensor) -> None:
        h = fold(lambda h, token: self.cell(self.embed(token), h), tokens, self.zeros(2))
        h = repeat(torch.tanh, h, times=steps)
        loss(self.out(h), label)


def test_scopes_states_and_keys_of_a_small_model() -> None:
    graph = compile(Small(), Seq(torch.tensor([1, 2])), 2, torch.tensor(0))
    notes = {note.name: note for note in graph.origins}
    said = {name: (str(notes[name].scope), notes[name].scope.key) for name in notes}
    tokens = ("instance × tokens", ("instance", "tokens"))
    rounds = ("instance × round", ("instance", "round"))
    whole = ("instance", ("instance",))
    assert said["tokens"] == said["embed"] == said["cell"] == said["tokens_loop"] == tokens
    assert said["out"] == said["loss"] == said["label"] == whole
    assert said["tanh"] == said["round_loop"] == rounds
    ends = [note.scope.key for note in graph.origins if note.name == "tokens_loop"]
    assert ends == [("instance",), ("instance", "tokens")]  # done, again
    assert set(notes["cell"].fields) == {"instance", "tokens", "tokens_length", "steps"}
    title = graph.explain().splitlines()[0]
    assert title.startswith("Small: 3 inputs,")
    assert title.endswith("in every state, besides the key: tokens_length, steps")


def test_a_state_carries_only_what_control_flow_asks_for() -> None:
    class Unasked(Model):
        def forward(self, tokens: Seq, steps: int, label: Tensor) -> None:
            loss(fold(lambda h, t: h + t, tokens, torch.zeros(3)), label)

    graph = compile(Unasked(), Seq(torch.zeros(2, 3)), 2, torch.tensor(0))
    assert all("steps" not in note.fields for note in graph.origins)
