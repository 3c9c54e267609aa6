"""Waves against messages: gradients, losses, metrics, counts and predictions are the same, to rounding (P2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ampnet import Graph, Instance, feed
from ampnet.lang import Compiled, Edges, Model, Seq, compile, loss, repeat
from ampnet.models.registry import GRAPHS
from ampnet.nodes import Concat, Dropout, Function, Linear, Loss, Module, Reduce, Split, Tanh
from ampnet.testing.strategies import Example, RandomModel, examples, programs
from ampnet.testing.written import Program, WrittenModel, example, written_instances, written_programs
from tests.wave.both import NAMES, assert_same, model, outcome

F64 = torch.float64


def test_every_model_of_the_registry_is_here() -> None:
    assert set(GRAPHS) <= set(NAMES)


@pytest.mark.parametrize("keys", [1, 3, 7])
@pytest.mark.parametrize("name", NAMES)
def test_every_model(name: str, keys: int) -> None:
    graph, instances = model(name)
    want = outcome(graph, instances, waves=False, max_active_keys=keys)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=keys), want)


@settings(max_examples=60)
@given(programs(), examples(), st.integers(1, 6))
def test_random_graphs(program: list[object], drawn: list[Example], keys: int) -> None:
    random = RandomModel(program)  # type: ignore[arg-type]
    instances = [random.instance(one) for one in drawn]
    want = outcome(random.graph, instances, waves=False, max_active_keys=keys)
    assert_same(outcome(random.graph, instances, waves=True, max_active_keys=keys), want)


@settings(max_examples=60)
@given(written_programs(), written_instances(), st.integers(1, 6))
def test_random_models(program: Program, drawn: list[tuple[object, ...]], keys: int) -> None:
    written = WrittenModel(program)
    graph = compile(written, *example())
    instances = [graph.instance(*one) for one in drawn]
    want = outcome(graph, instances, waves=False, max_active_keys=keys)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=keys), want)


class Scaled(Model):
    """A weight goes to a loop that may have no round."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=F64))

    def forward(self, x: torch.Tensor, rounds: int, y: torch.Tensor) -> None:
        loss(repeat(lambda h: torch.tanh(h * self.scale), x, times=rounds), y, "squared_error")


@pytest.mark.parametrize("rounds", [(0, 0), (0, 2)])
def test_a_weight_that_goes_to_nobody_counts(rounds: tuple[int, ...]) -> None:
    """Once it was not counted where no instance of a wave had a round; by messages it gets a gradient of zero."""
    drawn = [(torch.randn(1, 3, dtype=F64), n, torch.zeros(1, 3, dtype=F64)) for n in rounds]
    graph = compile(Scaled(), *drawn[0])
    instances = [graph.instance(*one) for one in drawn]
    want = outcome(graph, instances, waves=False, max_active_keys=2)
    assert list(want.counts.values()) == [2]
    assert_same(outcome(graph, instances, waves=True, max_active_keys=2), want)


def rows_of(*sizes: int, seed: int = 0) -> list[Instance]:
    """Messages of several rows each."""
    random = torch.Generator().manual_seed(seed)
    shapes = [
        (torch.randn(n, 4, generator=random, dtype=F64), torch.randn(n, 4, generator=random, dtype=F64)) for n in sizes
    ]
    return [Instance({"x": feed(x, messages=1), "label": feed(y, messages=1)}) for x, y in shapes]


def chain(*nodes: object, loss: str = "squared_error") -> Graph:
    graph = Graph("chain")
    for i, node in enumerate(nodes):
        graph.add(f"n{i}", node)  # type: ignore[arg-type]
    graph.add("loss", Loss(loss))  # type: ignore[arg-type]
    graph.input("x", "n0")
    graph.input("label", "loss.label")
    graph.chain(*(f"n{i}" for i in range(len(nodes))), "loss.prediction")
    return graph


@pytest.mark.parametrize("keys", [1, 4])
@pytest.mark.parametrize(
    "nodes",
    [
        [Linear(4, 4, dtype=F64), Tanh(), Linear(4, 4, dtype=F64, activation="relu")],
        [Linear(4, 4, dtype=F64, bias=False), Module(nn.Sequential(nn.Linear(4, 4), nn.Softplus()).double())],
        [Module(nn.PReLU().double()), Linear(4, 4, dtype=F64), Function(lambda x: x * x)],
        [Linear(4, 4, dtype=F64), Dropout(0.4, seed=3), Linear(4, 4, dtype=F64)],
    ],
    ids=["linear", "module", "function", "dropout"],
)
def test_messages_of_many_rows(nodes: list[object], keys: int) -> None:
    graph, instances = chain(*nodes), rows_of(3, 1, 5, 2)
    want = outcome(graph, instances, waves=False, max_active_keys=keys)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=keys), want)


@pytest.mark.parametrize("kind", ["squared_error", "absolute_error"])
def test_errors(kind: str) -> None:
    graph, instances = chain(Linear(4, 4, dtype=F64), loss=kind), rows_of(3, 1, 5, 2)
    want = outcome(graph, instances, waves=False, max_active_keys=4)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=4), want)


def test_masks_of_a_dropout_are_those_of_the_same_instance_numbers() -> None:
    """A mask is a function of state and seed, so it is the same, whoever computes it."""
    graph, instances = chain(Dropout(0.5, seed=7), Linear(4, 4, dtype=F64), Dropout(0.5, seed=8)), rows_of(2, 2, 3)
    found = [outcome(graph, instances, waves=waves, max_active_keys=2) for waves in (True, False)]
    assert_same(*found)
    other = outcome(graph, instances[1:], waves=True, max_active_keys=2)
    assert not torch.allclose(other.gradients["n1.weight"], found[0].gradients["n1.weight"])


def test_columns_that_are_read_apart_and_put_together() -> None:
    graph = Graph("columns")
    graph.add("first", Linear(4, 6, dtype=F64))
    graph.add("split", Split({"a": 1, "b": 3, "c": 2}))
    graph.add("both", Concat(("a", "b")))
    graph.add("all", Concat(("a", "b")))
    graph.add("tanh", Tanh())
    graph.add("last", Linear(6, 4, dtype=F64))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "first")
    graph.input("label", "loss.label")
    graph.chain("first", "split")
    for source, target in (("split.c", "both.a"), ("split.a", "tanh"), ("tanh", "both.b"), ("both", "all.a")):
        graph.connect(source, target)
    graph.connect("split.b", "all.b")
    graph.chain("all", "last", "loss.prediction")
    instances = rows_of(3, 1, 2)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=3), outcome(graph, instances, waves=False))


@pytest.mark.parametrize("how", ["sum", "mean", "max", "logsumexp"])
def test_reductions_of_messages_of_any_size(how: str) -> None:
    graph = Graph("reduce")
    graph.add("first", Linear(4, 4, dtype=F64))
    graph.add("reduce", Reduce(how))  # type: ignore[arg-type]
    graph.add("last", Linear(4, 4, dtype=F64))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "first")
    graph.input("label", "loss.label")
    graph.chain("first", "reduce", "last", "loss.prediction")
    instances = [
        Instance({"x": one.feeds["x"], "label": feed(torch.ones(1, 4, dtype=F64))}) for one in rows_of(3, 1, 5, 2)
    ]
    for keys in (1, 4):
        want = outcome(graph, instances, waves=False, max_active_keys=keys)
        assert_same(outcome(graph, instances, waves=True, max_active_keys=keys), want)


@pytest.mark.parametrize("count", [1, 3])
def test_nodes_without_any_edge(count: int) -> None:
    """A sum of products of nothing: all of a wave's instances have no edges."""
    graph, instances = model("qm9")
    assert isinstance(graph, Compiled)
    lonely = []
    for i in range(count):
        atoms = Seq(x=torch.randn(1 + i, 3, dtype=F64))
        none = np.zeros(0, dtype=np.int64)
        lonely.append(graph.instance(atoms, Edges(atoms, none, none, kind=none), torch.randn(1, dtype=F64)))
    want = outcome(graph, lonely, waves=False, max_active_keys=count)
    assert_same(outcome(graph, lonely, waves=True, max_active_keys=count), want)
    mixed = [*lonely, *instances[:2]]
    want = outcome(graph, mixed, waves=False, max_active_keys=9)
    assert_same(outcome(graph, mixed, waves=True, max_active_keys=9), want)
