"""Gated graph networks on sparse graphs: a batch is one graph of many parts.

m = (W_0 h | W_1 h | ...)                        every kind's product for every node, in one
h = GRU(sum over edges (u -t-> v) of m[u, t], h)     picked by (source, kind), added up at the targets
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State


class GraphPeer(Peer):
    """The steps, which bAbI and QM9 have in common."""

    def build(self, model: Any) -> None:
        inner = model.propagate
        self.width, self.kinds, self.steps = inner.cell.hidden_size, len(inner.along), inner.steps
        self.along = nn.Linear(self.width, self.kinds * self.width, bias=False)
        self.cell = nn.GRUCell(self.width, self.width)

    @staticmethod
    def weights(state: State) -> State:
        ours = {name: value for name, value in state.items() if not name.startswith("propagate.")}
        along = [value for name, value in state.items() if name.startswith("propagate.along.")]
        cell = {name.removeprefix("propagate."): v for name, v in state.items() if name.startswith("propagate.cell.")}
        return ours | cell | {"along.weight": torch.cat(along)}

    def propagate(self, h: Tensor, source: Tensor, picked: Tensor, target: Tensor) -> Tensor:
        """All steps. ``picked``: for each edge, where its message is among those of all nodes and kinds."""
        for _ in range(self.steps):
            sent = self.along(h).view(-1, self.width).index_select(0, picked)
            h = self.cell(torch.zeros_like(h).index_add_(0, target, sent), h)
        return h

    def joined(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """One graph of all: rows, sources, (source, kind) as one number, targets, and which graph a node is of."""
        graphs = [(nodes._columns["x"], edges) for nodes, edges, _ in batch]  # type: ignore[union-attr]
        sizes = np.array([len(x) for x, _ in graphs])
        first = np.concatenate(([0], np.cumsum(sizes)[:-1]))
        shift = np.repeat(first, [len(edges) for _, edges in graphs])
        source = np.concatenate([edges._source for _, edges in graphs]) + shift
        target = np.concatenate([edges._target for _, edges in graphs]) + shift
        kind = np.concatenate([edges._columns["kind"] for _, edges in graphs])
        owner = np.repeat(np.arange(len(graphs)), sizes)
        arrays = (source, source * self.kinds + kind, target, owner)
        x = torch.cat([x for x, _ in graphs])
        source, picked, target, owner = map(torch.from_numpy, arrays)
        return x.to(self.along.weight.dtype), source, picked, target, owner


class BabiSparse(GraphPeer):
    """A score for every node; all graphs have as many nodes."""

    def build(self, model: Any) -> None:
        super().build(model)
        self.mix, self.score_node = nn.Linear(2 * self.width, self.width), nn.Linear(self.width, 1)

    @staticmethod
    def weights(state: State) -> State:
        return {name.replace("score.", "score_node."): value for name, value in GraphPeer.weights(state).items()}

    def collate(self, batch: Batch) -> Collated:
        x, source, picked, target, _ = self.joined(batch)
        labels = torch.stack([answer for *_, answer in batch])  # type: ignore[union-attr]
        return Collated(len(batch), (x, source, picked, target, len(batch)), labels)

    def forward(self, x: Tensor, source: Tensor, picked: Tensor, target: Tensor, graphs: int) -> Tensor:
        h = self.propagate(x, source, picked, target)
        out: Tensor = self.score_node(torch.tanh(self.mix(torch.cat((h, x), 1)))).view(graphs, -1)
        return out


class Qm9Sparse(GraphPeer):
    """A gated sum over the atoms of each molecule."""

    squared = True

    def build(self, model: Any) -> None:
        super().build(model)
        self.gate, self.value = (nn.Linear(2 * self.width, self.width) for _ in range(2))
        self.out = nn.Linear(self.width, 1)

    def collate(self, batch: Batch) -> Collated:
        x, source, picked, target, owner = self.joined(batch)
        x = functional.pad(x, (0, self.width - x.shape[1]))
        labels = torch.stack([value for *_, value in batch]).to(x.dtype)  # type: ignore[union-attr]
        return Collated(len(batch), (x, source, picked, target, owner, len(batch)), labels)

    def forward(self, x: Tensor, source: Tensor, picked: Tensor, target: Tensor, owner: Tensor, graphs: int) -> Tensor:
        h = self.propagate(x, source, picked, target)
        both = torch.cat((h, x), 1)
        atoms = self.gate(both).sigmoid() * self.value(both).tanh()
        out: Tensor = self.out(self.pool(atoms, owner, graphs).tanh())
        return out

    def pool(self, atoms: Tensor, owner: Tensor, graphs: int) -> Tensor:
        """The sum of each molecule's atoms."""
        return atoms.new_zeros(graphs, self.width).index_add_(0, owner, atoms)
