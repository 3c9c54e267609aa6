"""One source, two executions: the compiled graph and the eager model are one thing, whatever is done to either."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, Update
from ampnet.lang import Model, Seq, compile, fold, loss, repeat
from ampnet.models import AdaptiveDepth, ListReduction, PermutedLayers, TreeLstm
from ampnet.testing import assert_close, assert_compiled, model_gradients
from tests.lang.test_passes import MODELS


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_has_the_models_own_parameters(name: str) -> None:
    make, data = MODELS[name]
    model = make().double()
    graph = compile(model, *data()[0])
    mine = {id(p) for p in model.parameters()}
    theirs = [p for node in graph.parameterised().values() for p in node.parameters.values()]
    assert {id(p) for p in theirs} == mine
    assert len(theirs) == len(mine)
    assert {id(p) for p in graph.module().parameters()} == mine


class Bare(Model):
    """Parameters of every kind: in modules, by themselves, in a module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.cell = nn.Linear(3, 3), nn.GRUCell(3, 3)
        self.start, self.scale = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(()))
        self.slope = nn.PReLU()
        self.register_buffer("shift", torch.randn(3))

    def forward(self, xs: Seq, y: Tensor) -> None:
        h = fold(lambda h, x: self.cell(x, h), xs, torch.tanh(self.start))
        h = repeat(lambda h: self.slope(self.a(h)), h + self.get_buffer("shift"), times=2)
        loss(h * self.scale + self.zeros(3), y, "squared_error")


def sequences(dtype: torch.dtype = torch.float64) -> list[tuple[Any, ...]]:
    return [(Seq(torch.randn(n, 3, dtype=dtype)), torch.randn(3, dtype=dtype)) for n in (2, 1, 4)]


def test_a_state_dict_goes_from_one_model_into_the_graph_of_another() -> None:
    torch.manual_seed(0)
    data = sequences()
    first, second = Bare().double(), Bare().double()
    graph = compile(second, *data[0])
    second.load_state_dict(first.state_dict())
    assert_compiled(second, data, graph=graph, max_active_keys=2)
    with Inline(graph) as runtime:
        got = runtime.infer(graph.instances(data)).loss
    assert got == pytest.approx(sum(float(first.loss(*d).detach()) for d in data) / len(data), rel=1e-12)


def test_a_model_may_be_cast_before_it_is_compiled_and_the_graph_after() -> None:
    torch.manual_seed(0)
    before, after = Bare(), Bare()
    after.load_state_dict(before.state_dict())
    assert_compiled(before.to(torch.float64), sequences(), max_active_keys=2)
    graph = compile(after, *sequences(torch.float32)[0])
    graph.to(torch.float64)
    assert {p.dtype for p in after.parameters()} == {torch.float64}
    assert_close(values(after), values(before))


def test_a_graph_that_was_cast_takes_data_of_its_new_dtype() -> None:
    torch.manual_seed(0)
    model = Bare()
    graph = compile(model, *sequences(torch.float32)[0])
    graph.to(torch.float64)
    assert_compiled(model, sequences(), graph=graph, max_active_keys=2)


TRAINED: dict[str, tuple[Any, Any]] = {
    **{name: MODELS[name] for name in ("ListReduction lstm", "TreeLstm", "Qm9", "PermutedLayers", "AdaptiveDepth")},
    "Bare": (Bare, sequences),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_the_graph_one_instance_at_a_time_is_training_the_model(name: str) -> None:
    make, data = TRAINED[name]
    torch.manual_seed(0)
    given = data()
    compiled = make().double()
    eager, before = copy.deepcopy(compiled), values(compiled)
    graph = compile(compiled, *given[0])
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1, momentum=0.5)
    losses = []
    for _ in range(3):
        for arguments in given:
            optimizer.zero_grad()
            judged = eager.judge(*arguments)
            torch.stack([j.value for j in judged]).sum().backward()
            losses += [float(j.value.detach()) for j in judged]
            optimizer.step()
    update = Update(partial(torch.optim.SGD, lr=0.1, momentum=0.5), 1, "instances")
    with Inline(graph, update=update, max_active_keys=1) as runtime:
        stats = [runtime.train(graph.instances(given)) for _ in range(3)]
    assert sum(s.loss for s in stats) / 3 == pytest.approx(sum(losses) / len(losses), rel=1e-9)
    assert any(not torch.equal(a, b) for a, b in zip(values(compiled).values(), before.values(), strict=True))
    assert_close(values(compiled), values(eager), 1e-9)


def test_what_a_runtime_has_trained_is_in_the_model() -> None:
    torch.manual_seed(0)
    data = sequences()
    model = Bare().double()
    graph = compile(model, *data[0])
    before = sum(float(model.loss(*d).detach()) for d in data)
    with Inline(graph, update=Update(partial(torch.optim.SGD, lr=0.05), 1, "instances"), max_active_keys=2) as runtime:
        for _ in range(20):
            runtime.train(graph.instances(data))
    assert sum(float(model.loss(*d).detach()) for d in data) < before
    assert_compiled(model, data, graph=graph, max_active_keys=2)


def test_what_is_frozen_stays_as_it_is() -> None:
    torch.manual_seed(0)
    data = sequences()
    model = Bare().double()
    for frozen in (model.cell.weight_hh, model.start, model.slope.weight):
        frozen.requires_grad_(False)
    graph, before = compile(model, *data[0]), values(model)
    with Inline(graph, update=Update(partial(torch.optim.SGD, lr=0.05), 1, "instances")) as runtime:
        runtime.train(graph.instances(data))
    same = {name for name, value in values(model).items() if torch.equal(value, before[name])}
    assert same == {"cell.weight_hh", "start", "slope.weight"}


def test_a_model_trained_eagerly_is_the_graph_that_was_compiled_before() -> None:
    torch.manual_seed(0)
    data = sequences()
    model = Bare().double()
    graph = compile(model, *data[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for arguments in data:
        optimizer.zero_grad()
        model.loss(*arguments).backward()
        optimizer.step()
    assert_compiled(model, data, graph=graph, max_active_keys=2)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("make", [Bare, lambda: ListReduction(4), lambda: TreeLstm(9, 3, 4), lambda: PermutedLayers(4)])
def test_a_model_is_copied_and_pickled_as_any_module(make: Any, copied: Any) -> None:
    model = make()
    other = copied(model)
    assert_close(values(other), values(model), 0)
    assert all(a is not b for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_copy_of_a_compiled_model_is_a_model_of_its_own() -> None:
    torch.manual_seed(0)
    data = sequences()
    model = Bare().double()
    graph = compile(model, *data[0])
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.a.weight.zero_()
    assert_compiled(model, data, graph=graph)
    assert_compiled(other, data)


def test_a_model_may_be_compiled_several_times() -> None:
    torch.manual_seed(0)
    data = sequences()
    model = Bare().double()
    first, second = compile(model, *data[0]), compile(model, *data[1])
    assert_compiled(model, data, graph=first)
    assert_compiled(model, data, graph=second)
    assert list(first.nodes) == list(second.nodes)


def test_eager_gradients_are_torchs_own() -> None:
    torch.manual_seed(0)
    model = AdaptiveDepth(2, 4, 2).double()
    x, y = torch.randn(2, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    h = torch.tanh(model.first(x))
    for _ in range(3):
        h = torch.tanh(model.middle(h))
    wanted = torch.autograd.grad(((model.last(h) - y) ** 2).mean(), list(model.parameters()))
    want = dict(zip(dict(model.named_parameters()), wanted, strict=True))
    assert_close(model_gradients(model, [(x, 3, y)]), want)


def test_losses_can_be_looked_at_one_by_one() -> None:
    class Two(Model):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            h: Tensor = self.a(x)
            loss(h, x, "squared_error", name="near", weight=2)
            loss(h, torch.tensor(1), name="class")
            return h

    model, x = Two(), torch.ones(2)
    near, kind = model.judge(x)
    assert (near.name, kind.name) == ("near", "class")
    torch.testing.assert_close(near.value, 2 * ((model(x) - x) ** 2).mean())
    torch.testing.assert_close(model.loss(x), near.value + kind.value)
