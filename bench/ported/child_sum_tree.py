"""Child-sum Tree-LSTM (Tai, Socher, Manning 2015) on dependency trees: a word and a label at every node.

    i, o, u = W x + U (sum of the children's h)       c = i u + sum of f_k c_k       f_k = sigmoid(F h_k)

A branch takes the sum of what its children return, so a child returns ``f_k c_k``, gated
already, beside its h. The forget gate therefore depends on the child alone, not on the parent's word. At the root it is
computed and not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet import Model, Tree
from ampnet.lang import each, fold_tree, loss, reduce
from bench.batch import Batch
from bench.peers.peer import Collated, Peer
from bench.ported.entry import Ported

WORDS, HIDDEN, CLASSES = 500, 96, 5
FEWEST, MOST = 8, 30
"""Nodes of a tree."""


def data(count: int, seed: int) -> Iterator[tuple[Tree]]:
    """A parent is one of the six nodes before its child, so trees are 5 to 9 levels deep and have 1 to 6 children."""
    rng = np.random.default_rng((seed, 21))
    for _ in range(count):
        n = int(rng.integers(FEWEST, MOST + 1))
        parents = [-1, *(int(rng.integers(max(0, i - 6), i)) for i in range(1, n))]
        words = rng.integers(0, WORDS, n)
        mood = (words % 3 - 1).astype(float)
        for i in range(n - 1, 0, -1):
            mood[parents[i]] += mood[i]
        labels = np.clip(mood, -2, 2).astype(np.int64) + 2
        yield (Tree(parents, word=torch.from_numpy(words), label=torch.from_numpy(labels)),)


class ChildSumTree(Model):
    """A `Tree` with a ``word`` and a ``label`` at every node."""

    def __init__(self, words: int = WORDS, hidden: int = HIDDEN, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.input = nn.Linear(hidden, 3 * hidden)
        self.hidden = nn.Linear(hidden, 3 * hidden, bias=False)
        self.forget = nn.Linear(hidden, hidden)
        self.classify = nn.Linear(hidden, classes)

    def cell(self, gates: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
        """(h, gated c), from the gates and the sum of what the children hand up."""
        i, o, u = gates.chunk(3, -1)
        c = torch.sigmoid(i) * torch.tanh(u)
        if kept is not None:
            c = c + kept
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, torch.sigmoid(self.forget(h)) * c

    def leaf(self, node: Any) -> tuple[Tensor, Tensor]:
        return self.cell(self.input(self.embedding(node.word)), None)

    def branch(self, children: Any, node: Any) -> tuple[Tensor, Tensor]:
        h, kept = reduce(children, "sum")
        return self.cell(self.input(self.embedding(node.word)) + self.hidden(h), kept)

    def forward(self, tree: Tree) -> None:
        (h, _), _ = fold_tree(tree, self.leaf, self.branch, children="family")
        each(lambda h, label: loss(self.classify(h), label), h, tree.label)


class ByDepth(Peer):
    """All nodes of one distance from the root, of all trees, in one operation, the deepest first.

    The children of a level are the whole level before it, so states are never gathered. Within a level, nodes with
    children come first.
    """

    def build(self, model: Any) -> None:
        words, hidden = model.embedding.num_embeddings, model.embedding.embedding_dim
        self.width = hidden
        self.embedding = nn.Embedding(words, hidden)
        self.input = nn.Linear(hidden, 3 * hidden)
        self.hidden = nn.Linear(hidden, 3 * hidden, bias=False)
        self.forget = nn.Linear(hidden, hidden)
        self.classify = nn.Linear(hidden, model.classify.out_features)

    def collate(self, batch: Batch) -> Collated:
        trees: list[Tree] = [tree for (tree,) in batch]  # type: ignore[union-attr]
        first = np.cumsum([0, *(len(tree) for tree in trees)])
        parent = np.concatenate(
            [np.where(t._parents < 0, -1, t._parents + at) for t, at in zip(trees, first, strict=False)]
        )
        depth = np.zeros(len(parent), dtype=np.int64)
        for i, above in enumerate(parent.tolist()):  # parents come before their children
            depth[i] = 0 if above < 0 else depth[above] + 1
        leaf = np.bincount(parent[parent >= 0], minlength=len(parent)) == 0
        order = np.lexsort((leaf, -depth))
        sizes = np.bincount(depth)[::-1]
        number = np.empty_like(order)  # of each node within its level
        number[order] = np.concatenate([np.arange(n) for n in sizes])
        slots = [torch.from_numpy(number[parent[level]]) for level in np.split(order, np.cumsum(sizes)[:-1])[:-1]]
        inner = [int(slot.max()) + 1 for slot in slots]
        words, labels = (
            torch.cat([tree._columns[name] for tree in trees])[torch.from_numpy(order)]  # type: ignore[misc]
            for name in ("word", "label")
        )
        return Collated(len(trees), (words, sizes.tolist(), slots, inner), labels)

    def forward(self, words: Tensor, sizes: list[int], slots: list[Tensor], inner: list[int]) -> Tensor:
        levels = self.input(self.embedding(words)).split(sizes)
        h, kept = self.cell(levels[0])
        states = [h]
        for gates, slot, count in zip(levels[1:], slots, inner, strict=True):
            below = self.hidden(h.new_zeros(count, self.width).index_add_(0, slot, h))
            gates = torch.cat((gates[:count] + below, gates[count:]))
            h, kept = self.cell(gates, slot, kept)
            states.append(h)
        out: Tensor = self.classify(torch.cat(states))
        return out

    def cell(self, gates: Tensor, slot: Tensor | None = None, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
        i, o, u = gates.chunk(3, -1)
        c = i.sigmoid() * u.tanh()
        if slot is not None and kept is not None:
            c = c.index_add(0, slot, kept)
        h = o.sigmoid() * c.tanh()
        return h, self.forget(h).sigmoid() * c


CHILD_SUM_TREE = Ported(
    name="child-sum-tree",
    about=f"child-sum Tree-LSTM, hidden {HIDDEN}, trees of {FEWEST} to {MOST} nodes, a loss at every node",
    model=ChildSumTree,
    peer=ByDepth,
    data=data,
)
