"""The quick ways of computing a wave: that each is taken where it should be, and gives the gradients of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, Instance, Model, NodeError, Seq, Update, feed
from ampnet.graph import Graph
from ampnet.lang import Compiled, choose, compile, each, fold, loss, reduce
from ampnet.nodes import Cond, Linear, Loss, Phi
from ampnet.wave.kernels.choice import ChoiceKernel
from ampnet.wave.kernels.trained import TrainedKernel
from ampnet.wave.passage import Passage
from tests.wave.both import assert_same, outcome, player_of

F64 = torch.float64
WIDTH = 4


class Recurrent(Model):
    """A cell over words; few of them or many."""

    def __init__(self, cell: str, words: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.embedding = cell, nn.Embedding(words, WIDTH)
        self.gru, self.lstm = nn.GRUCell(WIDTH, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
        self.linear, self.out = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.double()

    def forward(self, tokens: Seq, label: Tensor) -> None:
        zero = torch.zeros(WIDTH, dtype=F64)
        if self.kind == "lstm":
            h, _ = fold(lambda s, t: self.lstm(self.embedding(t.word), s), tokens, (zero, zero))
        elif self.kind == "gru":
            h = fold(lambda h, t: self.gru(self.embedding(t.word), h), tokens, zero)
        else:
            h = fold(lambda h, t: torch.tanh(self.linear(torch.cat((self.embedding(t.word), h), -1))), tokens, zero)
        loss(self.out(h), label)


class Experts(Model):
    """Each token goes through one of four layers, twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 5), nn.ReLU(), nn.Linear(5, WIDTH)) for _ in range(4)
        )
        self.first, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.double()

    def forward(self, tokens: Seq, label: Tensor) -> None:
        h = each(lambda t: self.first(t.x), tokens)
        h = each(lambda h, kind: h + choose(kind, self.layers, h), h, tokens.kind_of)
        loss(self.out(reduce(h, "mean")), label)


def sentences(graph: Compiled, words: int, count: int = 7) -> list[Instance]:
    rng = np.random.default_rng(3)
    return [
        graph.instance(
            Seq(word=torch.from_numpy(rng.integers(0, words, int(rng.integers(1, 6))))), torch.tensor(int(i % 3))
        )
        for i in range(count)
    ]


def kernels_of(graph: Graph, instances: list[Instance], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """By node, the kernels that played it."""
    found: dict[str, list[Any]] = {}
    made: Callable[..., None] = Passage.__init__

    def init(self: Passage, *args: Any, **named: Any) -> None:
        made(self, *args, **named)
        for kernel in self.kernels.values():
            found.setdefault(kernel.site.name, []).append(kernel)

    monkeypatch.setattr(Passage, "__init__", init)
    with Inline(graph, max_active_keys=len(instances)) as runtime:
        runtime.train(instances)
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("words", [3, 500], ids=["few words", "many words"])
@pytest.mark.parametrize("cell", ["linear", "gru", "lstm"])
def test_words_are_multiplied_before_the_loop(cell: str, words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = compile(Recurrent(cell, words), Seq(word=torch.zeros(2, dtype=torch.int64)), torch.tensor(0))
    instances = sentences(graph, words)
    (kernel,) = kernels_of(graph, instances, monkeypatch)[cell]
    assert isinstance(kernel, TrainedKernel)
    assert list(kernel.hoisted) == [0]
    assert (kernel.hoisted[0] is not None) == (words == 3), "few different words are looked up"
    want = outcome(graph, instances, waves=False)
    for keys in (1, 3, 7):
        assert_same(outcome(graph, instances, waves=True, max_active_keys=keys), want)


def tokens(graph: Compiled, count: int = 6) -> list[Instance]:
    rng = np.random.default_rng(4)
    out = []
    for i in range(count):
        n = int(rng.integers(1, 5))
        seq = Seq(x=torch.from_numpy(rng.standard_normal((n, WIDTH))), kind_of=rng.integers(0, 4, n))
        out.append(graph.instance(seq, torch.tensor(i % 3)))
    return out


def experts() -> tuple[Compiled, list[Instance]]:
    example = Seq(x=torch.zeros(2, WIDTH, dtype=F64), kind_of=np.array([0, 1]))
    graph = compile(Experts(), example, torch.tensor(0))
    return graph, tokens(graph)


def test_layers_of_a_choice_are_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, instances = experts()
    found = kernels_of(graph, instances, monkeypatch)
    choices = [kernel for some in found.values() for kernel in some if isinstance(kernel, ChoiceKernel)]
    assert [len(kernel.members) for kernel in choices] == [4, 4]
    want = outcome(graph, instances, waves=False)
    for keys in (1, 2, 6):
        assert_same(outcome(graph, instances, waves=True, max_active_keys=keys), want)
    for schedule in ("fifo", "random"):
        how = {"max_active_keys": 6, "wave_size": 2, "schedule": schedule}
        assert_same(outcome(graph, instances, waves=True, **how), want)


def test_layers_of_a_choice_update_by_themselves() -> None:
    """Only layers that got a gradient take a step, each by its own count."""
    found = []
    for waves in (True, False):
        graph, instances = experts()
        with Inline(graph, update=Update(min_update_frequency=2, count="instances"), waves=waves) as runtime:
            runtime.train(instances)
        found.append({name: node.updater.version for name, node in graph.parameterised().items()})
    assert found[0] == found[1]


def test_a_gradient_that_overflows_in_a_choice_is_named() -> None:
    graph = Graph("overflow")
    graph.add("cond", Cond(lambda s: s.kind, ("a", "b", "c")))
    for name in "abc":
        graph.add(name, Linear(1, 1, bias=False, dtype=F64))
    graph.add("phi", Phi(("a", "b", "c")))
    graph.add("loss", Loss(lambda prediction, label: torch.sqrt(prediction).sum(1)))  # its slope at 0 is infinite
    graph.input("x", "cond", fields=("kind",))
    graph.input("label", "loss.label", fields=("kind",))
    for name in "abc":
        graph.connect(f"cond.{name}", name)
        graph.connect(name, f"phi.{name}")
    graph.connect("phi", "loss.prediction")
    one = torch.ones(1, 1, dtype=F64)
    instances = [Instance({"x": feed(one, kind=k), "label": feed(one, kind=k)}) for k in range(3)]
    for node in graph.parameterised().values():
        node.updater.weights[0].fill_(0.0 if node.name == "b" else 1.0)
    before = {name: value.clone() for name, value in graph.module().state_dict().items()}
    with Inline(graph, update=Update(), max_active_keys=3) as runtime:
        with pytest.raises(NodeError) as caught:
            runtime.train(instances)
        assert (caught.value.node, caught.value.direction) == ("b", "backward")
        assert caught.value.states is not None
        assert caught.value.states.row(0) == {"instance": 1, "kind": 1}
        assert runtime.held() == {}
    assert all(torch.equal(value, before[name]) for name, value in graph.module().state_dict().items())


def test_waves_that_come_again_keep_their_tensors() -> None:
    graph, instances = experts()
    with Inline(graph, update=Update(), max_active_keys=3) as runtime:
        for _ in range(3):
            runtime.train(instances)
        planner = player_of(runtime).planner
        kept = [layout for some in planner._layouts.values() for layout in some]
        assert len(kept) == 2
        assert all(layout.fixed and layout.kernels for layout in kept)
