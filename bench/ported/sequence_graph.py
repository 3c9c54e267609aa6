"""Graph of sequences: every node of a graph carries a short text, which a GRU reads before nodes exchange messages.

    h_v = GRU over the words of v        h_v = tanh(W [h_v, sum of the neighbours' h_u])  twice       mean, class

A `Seq` inside of an element of a `Seq` cannot be expressed: an element holds rows of one shape. The nearest formulation
that keeps the number of steps ragged is used here. The words of a node are a row, padded to the longest text there may
be; the node's ``length`` is an integer, so `repeat` takes as many rounds as the node has words, and each round takes
the first word and turns the row by one. (``words[i]`` with the number of the round is refused.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ampnet import Edges, Model, Seq
from ampnet.lang import each, loss, messages, reduce, repeat
from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State
from bench.ported.entry import Ported
from bench.ported.gin import random_edges
from bench.ported.joined import joined
from bench.ported.packed import by_time

WORDS, HIDDEN, STEPS, CLASSES = 300, 64, 2, 5
FEWEST, MOST = 5, 15
"""Nodes of a graph."""
LONGEST = 8
"""Words of a node, of which it has 2 at least."""


def data(count: int, seed: int) -> Iterator[tuple[Seq, Edges, Tensor]]:
    rng = np.random.default_rng((seed, 26))
    for _ in range(count):
        n = int(rng.integers(FEWEST, MOST + 1))
        length = rng.integers(2, LONGEST + 1, n)
        words = rng.integers(1, WORDS, (n, LONGEST)) * (np.arange(LONGEST) < length[:, None])
        nodes = Seq(words=torch.from_numpy(words), length=length)
        edges = Edges(nodes, *random_edges(n, rng))
        yield nodes, edges, torch.tensor(int(words.sum()) % CLASSES)


class SequenceGraph(Model):
    """Nodes with a row of ``words`` and their number, ``length``; edges between them; and a class."""

    def __init__(self, words: int = WORDS, hidden: int = HIDDEN, steps: int = STEPS, classes: int = CLASSES) -> None:
        super().__init__()
        self.width, self.steps = hidden, steps
        self.embedding = nn.Embedding(words, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.mix = nn.Linear(2 * hidden, hidden)
        self.classify = nn.Linear(hidden, classes)

    def read(self, node: Any) -> Tensor:
        """The last state of a node's words."""

        def step(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            h, words = carry
            return self.cell(self.embedding(words[0]), h), torch.roll(words, -1)

        h, _ = repeat(step, (self.zeros(self.width), node.words), times=node.length)
        return h

    def exchange(self, edges: Edges, h: Any) -> Any:
        around = messages(lambda h: h, edges, h)
        return each(lambda h, m: torch.tanh(self.mix(torch.cat((h, m), -1))), h, around)

    def forward(self, nodes: Seq, edges: Edges, label: Tensor) -> None:
        h = each(self.read, nodes)
        h = repeat(lambda h: self.exchange(edges, h), h, times=self.steps)
        loss(self.classify(reduce(h, "mean")), label)


class Packed(Peer):
    """`nn.GRU` on the texts of all nodes packed by time; then one graph of all, with `index_add_`."""

    def build(self, model: Any) -> None:
        self.width, self.steps = model.width, model.steps
        self.embedding = nn.Embedding(model.embedding.num_embeddings, self.width)
        self.gru = nn.GRU(self.width, self.width)
        self.mix = nn.Linear(2 * self.width, self.width)
        self.classify = nn.Linear(self.width, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        return {
            f"gru.{name.removeprefix('cell.')}_l0" if name.startswith("cell.") else name: value
            for name, value in state.items()
        }

    def collate(self, batch: Batch) -> Collated:
        columns, source, target, owner = joined([(nodes, edges) for nodes, edges, _ in batch])  # type: ignore[union-attr]
        lengths = np.concatenate([nodes._columns["length"] for nodes, *_ in batch])  # type: ignore[union-attr]
        order, place, sizes = by_time(lengths.tolist())
        words = columns["words"][torch.arange(LONGEST) < torch.from_numpy(lengths).unsqueeze(1)][place]
        labels = torch.stack([label for *_, label in batch])  # type: ignore[union-attr]
        parts = torch.bincount(owner).unsqueeze(1).to(self.mix.weight.dtype)
        return Collated(len(labels), (words, sizes, torch.argsort(order), source, target, owner, parts), labels)

    def forward(
        self, words: Tensor, sizes: Tensor, back: Tensor, source: Tensor, target: Tensor, owner: Tensor, parts: Tensor
    ) -> Tensor:
        _, last = self.gru(PackedSequence(self.embedding(words), sizes))
        h = last[0].index_select(0, back)
        for _ in range(self.steps):
            around = torch.zeros_like(h).index_add_(0, target, h.index_select(0, source))
            h = self.mix(torch.cat((h, around), 1)).tanh()
        total = h.new_zeros(len(parts), self.width).index_add_(0, owner, h)
        out: Tensor = self.classify(total / parts)
        return out


SEQUENCE_GRAPH = Ported(
    name="sequence-graph",
    about=f"graphs of {FEWEST} to {MOST} nodes, each with 2 to {LONGEST} words for a GRU of {HIDDEN}, {STEPS} steps",
    model=SequenceGraph,
    peer=Packed,
    data=data,
    batch=20,
)
