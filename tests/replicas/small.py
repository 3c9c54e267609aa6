"""What the tests of replicas run: every model of the package in small and in float64, and a chain to be taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, Update, feed
from ampnet.data import generated
from ampnet.data.list_reduction import generate
from ampnet.lang import Compiled, Model, compile
from ampnet.models import AdaptiveDepth, Babi15, ListReduction, Mlp, PermutedLayers, Qm9, TreeLstm, by_hand
from ampnet.models.list_reduction import arguments
from ampnet.nodes import Linear, Loss, Tanh
from ampnet.testing import model_gradients


def doubled(given: Any) -> Any:
    if isinstance(given, Tensor):
        return given.double() if given.is_floating_point() else given
    if hasattr(given, "_columns"):
        given._columns = {name: doubled(column) for name, column in given._columns.items()}
    return given


@dataclass(frozen=True)
class Case:
    """A model, its data, and plain autograd's gradients of all of it."""

    model: Model
    data: list[tuple[Any, ...]]
    want: dict[str, Tensor]

    def graph(self, **settings: Any) -> Compiled:
        """A graph of its own, over the same parameters."""
        return compile(self.model, *self.data[-1], **settings)

    def instances(self, graph: Compiled) -> list[Instance]:
        return [graph.instance(*row) for row in self.data]

    def found(self, graph: Graph) -> dict[str, Tensor]:
        """The gradients that have added up, by the model's own names; the sums are left at zero."""
        names = {id(p): name for name, p in self.model.named_parameters()}
        out = {name: torch.zeros_like(value) for name, value in self.want.items()}
        for label, total in taken(graph).items():
            node, _, parameter = label.partition(".")
            first = f"{node}#1" if f"{node}#1" in graph.nodes else node
            out[names[id(graph.parameterised()[first].parameters[parameter])]] += total
        return out


def taken(graph: Graph) -> dict[str, Tensor]:
    """The gradients that have added up, of replicas together. Leaves the sums at zero."""
    out = {name: total.clone() for name, total in graph.gradients().items()}
    for node in graph.parameterised().values():
        for total in node.updater.sums:
            total.zero_()
    return out


MODELS: dict[str, tuple[Callable[[], Model], Callable[[], Any]]] = {
    "list-reduction": (lambda: ListReduction(4), lambda: _lists(9)),
    "list-reduction-gru": (lambda: ListReduction(3, "gru"), lambda: _lists(6)),
    "list-reduction-lstm": (lambda: ListReduction(3, "lstm"), lambda: _lists(6)),
    "mnist": (lambda: Mlp(6, 3, 3), lambda: generated.images(9, 0, 6, 3)),
    "sentiment": (lambda: TreeLstm(9, 3, 4), lambda: generated.trees(7, 0, 9, 5)),
    "babi15": (lambda: Babi15(5, 2), lambda: generated.deductions(3, 0, 12, 2)),
    "qm9": (lambda: Qm9(3, 5, 2, 2), lambda: generated.molecules(7, 0, 3, 2, 5)),
    "permuted-layers": (lambda: PermutedLayers(5, 3, 3), lambda: generated.permutations(7, 0, 5, 3, 3, 3)),
    "adaptive-depth": (lambda: AdaptiveDepth(2, 4, 2), lambda: generated.rotations(9, 0, 3)),
}
"""Those of the registry that are written for one instance, with every cell."""


def _lists(count: int) -> list[tuple[Any, ...]]:
    data = generate(count, 0)
    return [arguments(data, i) for i in range(count)]


@cache
def case(name: str) -> Case:
    make, data = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().double()
    rows = [tuple(map(doubled, row)) for row in data()]
    return Case(model, rows, model_gradients(model, rows))


def hand(count: int = 9) -> tuple[Graph, list[Instance]]:
    """The RNN that is wired by hand."""
    graph = by_hand.build(4, dtype=torch.float64)
    return graph, list(by_hand.instances(generate(count, 0), 1, hidden=4, dtype=torch.float64))


WIDTH = 3


def both_ways(size: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings for waves of so many instances, and for batches of so many messages."""
    return {"wave_size": size}, {"max_batch": size, "waves": False}


def chain(*nodes: str, loss: str = "squared_error", seed: int = 0) -> Graph:
    """``chain("linear", "tanh", "linear")``: x -> linear1 -> tanh2 -> linear3 -> loss. States: (instance, t)."""
    graph = Graph("chain")
    names = [f"{node}{i}" for i, node in enumerate(nodes, start=1)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, node in zip(names, nodes, strict=True):
            graph.add(name, Linear(WIDTH, WIDTH, dtype=torch.float64) if node == "linear" else Tanh())
    graph.add("loss", Loss(loss))  # type: ignore[arg-type]
    graph.input("x", names[0], ("t",))
    graph.input("y", "loss.label", ("t",))
    graph.chain(*names)
    graph.connect(names[-1], "loss.prediction")
    return graph


def rows(*sizes: int, seed: int = 0) -> list[Instance]:
    """Instances of so many messages each, for a `chain`."""
    random = torch.Generator().manual_seed(seed)
    out = []
    for size in sizes:
        x, y = torch.randn(2, size, WIDTH, generator=random, dtype=torch.float64)
        out.append(Instance({"x": feed(x, t=list(range(size))), "y": feed(y, t=list(range(size)))}))
    return out


SGD = partial(torch.optim.SGD, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAM = partial(torch.optim.Adam, lr=0.01)
FUSED = partial(torch.optim.Adam, lr=0.01, fused=True)
ADAGRAD = partial(torch.optim.Adagrad, lr=0.05)
OPTIMIZERS: dict[str, Any] = {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM, "fused": FUSED, "adagrad": ADAGRAD}


def weights(graph: Graph) -> dict[str, list[Tensor]]:
    """The weights of every node."""
    return {name: [w.clone() for w in node.updater.weights] for name, node in graph.parameterised().items()}


def copies(graph: Graph, group: str) -> list[list[Tensor]]:
    """The weights of the replicas of a node."""
    return [graph.parameterised()[name].updater.weights for name in graph.replicas[group].members]


def assert_equal(graph: Graph) -> None:
    """All replicas have the same weights, to the bit."""
    for group in graph.replicas:
        first, *others = copies(graph, group)
        for number, other in enumerate(others, start=2):
            for mine, theirs in zip(first, other, strict=True):
                assert torch.equal(mine, theirs), f"{group}#{number}"


def remembered(graph: Graph, name: str) -> list[dict[str, Tensor]]:
    """What the optimizer of a node remembers of each parameter."""
    updater = graph.parameterised()[name].updater
    assert updater.optimizer is not None
    return [dict(updater.optimizer.state.get(p, {})) for p in updater.parameters]


def assert_alike(a: Sequence[dict[str, Tensor]], b: Sequence[dict[str, Tensor]]) -> None:
    """Two optimizers remember the same, to the bit."""
    for mine, theirs in zip(a, b, strict=True):
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def trained(graph: Graph, instances: Sequence[Instance], update: Update | None, **settings: Any) -> Inline:
    """One epoch inline."""
    runtime = Inline(graph, update=update, **settings)
    runtime.train(instances)
    return runtime
