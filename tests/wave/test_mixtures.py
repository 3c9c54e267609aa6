"""Sums of products of any shape: once, gradients of Linears that are not square were written over their neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet.lang import Edges, Model, Seq, choose, compile, each, loss, messages, reduce
from tests.wave.both import assert_same, outcome

F64 = torch.float64


class Uneven(Model):
    """Messages of another width than the nodes have."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4, dtype=F64)
        self.along = nn.ModuleList(nn.Linear(4, wide, bias=False, dtype=F64) for _ in range(2))
        self.out = nn.Linear(wide, 1, dtype=F64)

    def forward(self, nodes: Seq, edges: Edges, value: Tensor) -> None:
        h = each(self.first, nodes.x)
        arriving = messages(lambda h, edge: choose(edge.kind, self.along, h), edges, h)
        loss(self.out(reduce(arriving, "sum")), value, "squared_error")


def example(nodes: int, rng: np.random.Generator) -> tuple[Seq, Edges, Tensor]:
    a, b, kind = rng.integers(0, nodes, 6), rng.integers(0, nodes, 6), rng.integers(0, 2, 6)
    given = Seq(x=torch.from_numpy(rng.normal(size=(nodes, 3))))
    return given, Edges(given, a, b, kind=kind), torch.ones(1, dtype=F64)


@pytest.mark.parametrize("wide", [1, 2, 6])
def test_linears_that_are_not_square(wide: int) -> None:
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    graph = compile(Uneven(wide), *example(3, rng))
    instances = [graph.instance(*example(n, rng)) for n in (2, 3, 5)]
    want = outcome(graph, instances, waves=False, max_active_keys=3)
    assert_same(outcome(graph, instances, waves=True, max_active_keys=3), want)
