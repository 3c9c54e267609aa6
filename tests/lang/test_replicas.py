"""``compile(..., replicas=...)``: copies of a whole model, or of what its modules do, by their names in the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import GraphError, Inline, Replicate, Sync, Update
from ampnet.events.check import assert_kept
from ampnet.events.log import EventLog
from ampnet.lang import Model, compile, loss
from ampnet.testing import assert_compiled
from tests.replicas.small import SGD, assert_equal, case


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(torch.tanh(self.up(x)))
        return out


class Nested(Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = Inner(), nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> None:
        loss(self.last(torch.relu(self.inner(x))), y, "squared_error")


def made() -> tuple[Nested, list[tuple[Tensor, Tensor]]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Nested().double()
        data = [(torch.randn(3, dtype=torch.float64), torch.randn(2, dtype=torch.float64)) for _ in range(7)]
    return model, data


@pytest.mark.parametrize(
    ("replicas", "groups"),
    [
        (3, {"inner_up": 3, "inner_down": 3, "last": 3}),
        (Replicate(2, "shortest", "ring"), {"inner_up": 2, "inner_down": 2, "last": 2}),
        ({"last": 2}, {"last": 2}),
        ({"inner.up": 2, "last": 3}, {"inner_up": 2, "last": 3}),
        ({"inner.*": Replicate(4, "position")}, {"inner_up": 4, "inner_down": 4}),
        ({"inner.down": Replicate(2, lambda s: s.instance % 2, Sync("gradients"))}, {"inner_down": 2}),
        ({}, {}),
        (1, {}),
    ],
)
def test_any_way_of_saying_it(replicas: Any, groups: dict[str, int]) -> None:
    model, data = made()
    graph = compile(model, *data[0], replicas=replicas)
    assert {name: len(group.members) for name, group in graph.replicas.items()} == groups
    assert_compiled(model, data, graph=graph, max_active_keys=3, schedule="random")
    log = EventLog()
    with Inline(graph, update=Update(SGD), max_active_keys=3, listeners=[log]) as runtime:
        runtime.train(graph.instances(data))
    assert_equal(graph)
    assert_kept(log)


@pytest.mark.parametrize("switch", ["fuse_linear", "fuse_loops", "fuse_rows", "remove_dead"])
@pytest.mark.parametrize("name", ["list-reduction-lstm", "qm9", "permuted-layers"])
def test_with_any_pass_left_out(name: str, switch: str) -> None:
    of = case(name)
    graph = of.graph(replicas=2, **{switch: False})
    assert_compiled(of.model, of.data, graph=graph, max_active_keys=4)


def test_a_trained_model_is_the_mean_and_runs_eagerly() -> None:
    """The first copy has the model's own parameters, and after a training stream they are the mean of all."""
    model, data = made()
    graph = compile(model, *data[0], replicas=2)
    with Inline(graph, update=Update(SGD), max_active_keys=2) as runtime:
        runtime.train(graph.instances(data))
        known = runtime.infer(graph.instances(data)).loss
    eager = torch.stack([model.loss(*row) for row in data]).mean()
    assert known == pytest.approx(float(eager.detach()), abs=1e-12)
    assert model.last.weight is graph.parameterised()["last#1"].parameters["weight"]


@pytest.mark.parametrize(
    ("replicas", "kind", "said"),
    [
        (0, ValueError, "the number of replicas must be 1 or more, got 0"),
        ({"last": 0}, ValueError, "the number of replicas must be 1 or more, got 0"),
        ({"innner": 2}, GraphError, "replicate names 'innner', but no node is called that; did you mean 'inner"),
        ({"inner.up": 2, "inner.*": 2}, GraphError, "node 'inner_up#1' is a replica already"),
        (Replicate(2, "widest"), ValueError, "route must be one of"),  # type: ignore[arg-type]
        (Replicate(2, sync="weekly"), ValueError, "sync must be one of"),
    ],
)
def test_what_cannot_be(replicas: Any, kind: type[Exception], said: str) -> None:
    model, data = made()
    with pytest.raises(kind, match=said):
        compile(model, *data[0], replicas=replicas)


def test_explain_shows_a_value_once() -> None:
    model, data = made()
    text = compile(model, *data[0], replicas=3).explain()
    assert "#2" not in text
    assert len(text.splitlines()) == len(compile(model, *data[0]).explain().splitlines())
