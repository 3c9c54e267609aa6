"""GIN (Xu, Hu, Leskovec, Jegelka 2019): a graph classifier with a sum over neighbours and an MLP in every layer.

    h_v = relu(MLP((1 + eps) h_v + sum of the neighbours' h_u))         the class of the sum over all nodes

Every layer has weights of its own, and eps is learnt. There is no batch normalisation, since the rows of a batch are
no part of a model that is written for one instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet import Edges, Model, Seq
from ampnet.lang import each, loss, messages, reduce
from bench.batch import Batch
from bench.peers.peer import Collated, Peer
from bench.ported.entry import Ported
from bench.ported.joined import joined

KINDS, HIDDEN, LAYERS, CLASSES = 20, 64, 4, 6
FEWEST, MOST = 10, 30
"""Nodes of a graph."""


def random_edges(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Both directions of a random tree with a third as many further edges: sources and targets."""
    a = np.arange(1, n)
    b = rng.integers(np.maximum(0, a - 4), a)
    extra = rng.integers(0, n, (2, n // 3))
    a, b = np.concatenate((a, extra[0])), np.concatenate((b, extra[1]))
    return np.concatenate((a, b)), np.concatenate((b, a))


def data(count: int, seed: int) -> Iterator[tuple[Seq, Edges, Tensor]]:
    rng = np.random.default_rng((seed, 23))
    for _ in range(count):
        n = int(rng.integers(FEWEST, MOST + 1))
        kinds = rng.integers(0, KINDS, n)
        source, target = random_edges(n, rng)
        nodes = Seq(atom=torch.from_numpy(kinds))
        label = int((kinds[source] == kinds[target]).sum()) % CLASSES
        yield nodes, Edges(nodes, source, target), torch.tensor(label)


def mlp(hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


class Gin(Model):
    """Nodes with an ``atom``, edges between them, and a class."""

    def __init__(self, kinds: int = KINDS, hidden: int = HIDDEN, layers: int = LAYERS, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(kinds, hidden)
        self.mlps = nn.ModuleList(mlp(hidden) for _ in range(layers))
        self.eps = nn.ParameterList(torch.zeros(1) for _ in range(layers))
        self.classify = nn.Linear(hidden, classes)

    def forward(self, nodes: Seq, edges: Edges, label: Tensor) -> None:
        h = each(self.embedding, nodes.atom)
        for layer, eps in zip(self.mlps, self.eps, strict=True):
            around = messages(lambda h: h, edges, h)
            h = each(lambda h, m, layer=layer, eps=eps: layer((1 + eps) * h + m), h, around)
        loss(self.classify(reduce(h, "sum")), label)


class Sparse(Peer):
    """All graphs of a batch as one graph, with `index_select` and `index_add_`."""

    def build(self, model: Any) -> None:
        hidden = model.embedding.embedding_dim
        self.embedding = nn.Embedding(model.embedding.num_embeddings, hidden)
        self.mlps = nn.ModuleList(mlp(hidden) for _ in model.mlps)
        self.eps = nn.ParameterList(torch.zeros(1) for _ in model.mlps)
        self.classify = nn.Linear(hidden, model.classify.out_features)

    def collate(self, batch: Batch) -> Collated:
        graphs = joined([(nodes, edges) for nodes, edges, _ in batch])  # type: ignore[union-attr]
        labels = torch.stack([label for *_, label in batch])  # type: ignore[union-attr]
        return Collated(len(labels), (*graphs, len(labels)), labels)

    def forward(self, columns: dict[str, Tensor], source: Tensor, target: Tensor, owner: Tensor, count: int) -> Tensor:
        h = self.embedding(columns["atom"])
        for layer, eps in zip(self.mlps, self.eps, strict=True):
            h = layer(((1 + eps) * h).index_add_(0, target, h.index_select(0, source)))
        out: Tensor = self.classify(h.new_zeros(count, h.shape[1]).index_add_(0, owner, h))
        return out


GIN = Ported(
    name="gin",
    about=f"GIN, {LAYERS} layers of {HIDDEN}, graphs of {FEWEST} to {MOST} nodes, sum readout",
    model=Gin,
    peer=Sparse,
    data=data,
)
