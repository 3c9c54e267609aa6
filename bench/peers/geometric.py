"""Gated graph networks with torch_geometric: `MessagePassing` carries the messages, as its GatedGraphConv does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.peers.ggsnn import BabiSparse, GraphPeer, Qm9Sparse


class Geometric(GraphPeer):
    """The steps, with the package's message passing."""

    needs = "torch_geometric"

    def build(self, model: Any) -> None:
        super().build(model)
        self.carry = _carrier()

    def propagate(self, h: Tensor, source: Tensor, picked: Tensor, target: Tensor) -> Tensor:
        edges = torch.stack((source, target))
        for _ in range(self.steps):
            h = self.cell(self.carry(edges, self.along(h).view(-1, self.width), picked, len(h)), h)
        return h


def _carrier() -> Any:
    """Adds up at its target what every edge has picked. (Made here: the package may not be installed.)"""
    from torch_geometric.nn import MessagePassing

    class Carrier(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="add")

        def forward(self, edges: Tensor, sent: Tensor, picked: Tensor, nodes: int) -> Tensor:
            out: Tensor = self.propagate(edges, sent=sent, picked=picked, size=(nodes, nodes))
            return out

        def message(self, sent: Tensor, picked: Tensor) -> Tensor:
            return sent.index_select(0, picked)

    carrier: nn.Module = Carrier()
    return carrier


class BabiGeometric(Geometric, BabiSparse):
    """A score for every node."""


class Qm9Geometric(Geometric, Qm9Sparse):
    """A gated sum over the atoms of each molecule, with the package's pooling."""

    def pool(self, atoms: Tensor, owner: Tensor, graphs: int) -> Tensor:
        from torch_geometric.nn import global_add_pool

        out: Tensor = global_add_pool(atoms, owner, graphs)
        return out
