"""Tied weights: parameters that several modules share are in one node, and updated by one updater."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ampnet import GraphError, Inline, Model, Processes, Replicate, Seq, Update, compile
from ampnet.lang import each, loss, scan
from ampnet.nodes import Tied
from ampnet.testing import assert_compiled

WORDS, WIDTH = 7, 4


class Language(Model):
    """Predicts the next token; the table of tokens is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell = nn.Embedding(WORDS, WIDTH), nn.GRUCell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)
        self.out.weight = self.embedding.weight

    def scores(self, h: Tensor) -> Tensor:
        made: Tensor = self.out(h)
        return made

    def forward(self, text: Any) -> None:
        states, _ = scan(lambda h, token: self.cell(self.embedding(token), h), text.token, self.zeros(WIDTH))
        each(lambda h, following: loss(self.scores(h), following), states, text.following)


class Functional(Language):
    """The same by functions of the bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(WORDS))
        del self.out

    def scores(self, h: Tensor) -> Tensor:
        return F.linear(h, self.embedding.weight, self.bias) + h @ self.embedding.weight.T


class Scaled(Language):
    """A parameter is shared by a layer and by arithmetic."""

    def scores(self, h: Tensor) -> Tensor:
        made: Tensor = self.out(h) * self.out.bias
        return made


def texts(count: int, seed: int = 0) -> list[tuple[Seq]]:
    g = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        row = torch.randint(WORDS, (2 + i % 4,), generator=g)
        made.append((Seq(token=row[:-1], following=row[1:]),))
    return made


@pytest.mark.parametrize("kind", [Language, Functional, Scaled])
def test_a_shared_parameter_gets_the_gradients_of_all_its_uses(kind: type[Model]) -> None:
    torch.manual_seed(0)
    graph = assert_compiled(kind().double(), texts(5), max_active_keys=3)
    assert sum(isinstance(node, Tied) for node in graph.nodes.values()) == 1


def test_one_updater_makes_the_updates_of_plain_torch() -> None:
    torch.manual_seed(1)
    model, data = Language().double(), texts(12)
    plain = Language().double()
    plain.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.05)
    graph = compile(model, *data[0])
    update = Update(partial(torch.optim.Adam, lr=0.05), min_update_frequency=4, count="instances")
    with Inline(graph, update=update, max_active_keys=4) as runtime:
        runtime.train(graph.instances(data))
        assert runtime.stats().engine == "waves"
    for start in range(0, 12, 4):
        optimizer.zero_grad()
        (sum(plain.loss(*one) for one in data[start : start + 4]) / 4).backward()  # type: ignore[union-attr]
        optimizer.step()
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
    assert model.out.weight is model.embedding.weight


@pytest.mark.parametrize("stale", ["current", "stash"])
def test_it_trains_while_waves_take_turns(stale: Any) -> None:
    torch.manual_seed(2)
    model = Language()
    graph = compile(model, *texts(1)[0])
    update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=2, weights=stale)
    with Inline(graph, update=update, max_active_keys=8, wave_size=2, schedule="fifo") as runtime:
        first, *_, last = [runtime.train(graph.instances(texts(40))).loss for _ in range(5)]
    assert last < first


def test_all_uses_are_on_one_worker() -> None:
    torch.manual_seed(3)
    model = Language()
    graph = compile(model, *texts(1)[0])
    update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=4)
    places = {"cell": 1, "embedding_out": 0}
    with Processes(graph, workers=2, update=update, max_active_keys=20, affinity=places) as runtime:
        first, *_, last = [runtime.train(graph.instances(texts(20))).loss for _ in range(3)]
        assert runtime.stats().engine == "waves"
    assert last < first
    assert model.out.weight is model.embedding.weight


@pytest.mark.parametrize("sync", ["shared", "epoch", "gradients"])
def test_replicas_have_a_tied_node_each(sync: str) -> None:
    torch.manual_seed(4)
    model = Language()
    graph = compile(model, *texts(1)[0], replicas=Replicate(2, sync=sync))
    update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=4)
    with Inline(graph, update=update, max_active_keys=8) as runtime:
        first, *_, last = [runtime.train(graph.instances(texts(40))).loss for _ in range(4)]
    assert last < first
    copies = [graph.nodes[f"embedding_out#{i}"] for i in (1, 2)]
    for a, b in zip(*(node.parameters.values() for node in copies if isinstance(node, Tied)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_faces_of_a_copied_node_compute_with_one_copy() -> None:
    """Where replicas share weights, a wave computes with a copy. Once each face made one of its own, in memory that was
    given back while the tape still knew it: numbers of other tensors came, and were not even finite at times."""
    losses = []
    for taped in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not taped:
                patch.setattr("ampnet.wave.passage.Passage._find_tape", lambda self: None)
            torch.manual_seed(4)
            graph = compile(Language(), *texts(1)[0], replicas=Replicate(2, sync="shared"))
            update = Update(partial(torch.optim.Adam, lr=0.02), min_update_frequency=4)
            with Inline(graph, update=update, max_active_keys=8) as runtime:
                losses.append([runtime.train(graph.instances(texts(40))).loss for _ in range(4)])
    assert losses[0] == losses[1]


def test_a_tied_layer_cannot_be_tiled() -> None:
    with pytest.raises(GraphError, match="tied"):
        compile(Language(), *texts(1)[0], tiles={"out": 2})


class Named(Model):
    """Layers called like methods of a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.values.weight = self.keys.weight

    def forward(self, x: Tensor, y: Tensor) -> None:
        loss(self.values(torch.tanh(self.keys(x))), y, "squared_error")


def test_layers_of_any_name() -> None:
    """Once "keys" and "values" could not be tied, nor shown by ``graph.module()``: `nn.ModuleDict` refuses them."""
    torch.manual_seed(6)
    data = [(torch.randn(WIDTH).double(), torch.randn(WIDTH).double()) for _ in range(3)]
    graph = assert_compiled(Named().double(), data)
    assert [name for name, _ in graph.module().named_parameters()] == [
        f"keys_values.{name}" for name in ("keys.weight", "keys.bias", "values.bias")
    ]


def test_frozen_parameters_stay_as_they_are() -> None:
    torch.manual_seed(5)
    model = Language()
    model.embedding.weight.requires_grad_(False)
    before, bias = model.embedding.weight.clone(), model.out.bias.clone()
    graph = compile(model, *texts(1)[0])
    update = Update(partial(torch.optim.SGD, lr=0.1), min_update_frequency=4)
    with Inline(graph, update=update, max_active_keys=8) as runtime:
        runtime.train(graph.instances(texts(40)))
    assert torch.equal(before, model.embedding.weight)
    assert not torch.equal(model.out.bias, bias)
