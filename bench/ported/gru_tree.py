"""A binary tree whose branch is an `nn.GRUCell`: the left child is its input, the right child its state.

h = embedding(word) at a leaf          h = GRU(h_left, h_right) at a branch          the class of the root
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet import Model, Tree
from ampnet.data.generated import random_tree
from ampnet.lang import fold_tree, loss
from bench.batch import Batch
from bench.peers.peer import Collated, Peer
from bench.ported.entry import Ported

WORDS, HIDDEN, CLASSES = 500, 96, 5
FEWEST, MOST = 4, 20
"""Leaves of a tree."""


def data(count: int, seed: int) -> Iterator[tuple[Tree, Tensor]]:
    rng = np.random.default_rng((seed, 22))
    for _ in range(count):
        leaves = int(rng.integers(FEWEST, MOST + 1))
        words = rng.integers(0, WORDS, leaves)
        tree = Tree(random_tree(leaves, rng), leaves={"word": torch.from_numpy(words)})
        yield tree, torch.tensor(int(words.sum()) % CLASSES)


class GruTree(Model):
    """A binary `Tree` with a ``word`` at every leaf, and a class."""

    def __init__(self, words: int = WORDS, hidden: int = HIDDEN, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.classify = nn.Linear(hidden, classes)

    def forward(self, tree: Tree, label: Tensor) -> None:
        _, root = fold_tree(
            tree, leaf=lambda node: self.embedding(node.word), branch=lambda left, right: self.cell(left, right)
        )
        loss(self.classify(root), label)


class ByDepth(Peer):
    """All nodes of one distance from the root, of all trees, in one operation, the deepest first.

    A level holds the left children of the level above it, then the right ones, so its two halves go into the cell as
    they are. ``places`` says where in a level its branches and then its leaves belong.
    """

    def build(self, model: Any) -> None:
        words, hidden = model.embedding.num_embeddings, model.embedding.embedding_dim
        self.embedding = nn.Embedding(words, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.classify = nn.Linear(hidden, model.classify.out_features)

    def collate(self, batch: Batch) -> Collated:
        trees: list[Tree] = [tree for tree, _ in batch]  # type: ignore[union-attr]
        children: list[list[int]] = []
        words: list[int] = []
        level: list[int] = []
        for tree in trees:
            first, word = len(children), iter(tree._columns["word"].tolist())
            level.append(first + tree._root)
            children += [(own + first).tolist() for own in tree._children]
            words += [-1 if len(own) else next(word) for own in tree._children]
        steps = []
        while level:
            branches = [place for place, node in enumerate(level) if children[node]]
            leaves = [place for place, node in enumerate(level) if not children[node]]
            found = torch.tensor([words[level[place]] for place in leaves], dtype=torch.int64)
            steps.append((found, torch.from_numpy(np.argsort(branches + leaves))))
            level = [children[level[place]][side] for side in (0, 1) for place in branches]
        steps.reverse()
        flat = torch.cat([found for found, _ in steps])
        sizes, places = [len(found) for found, _ in steps], [place for _, place in steps]
        labels = torch.stack([label for _, label in batch])  # type: ignore[union-attr]
        return Collated(len(trees), (flat, sizes, places), labels)

    def forward(self, words: Tensor, sizes: list[int], places: list[Tensor]) -> Tensor:
        leaves = self.embedding(words).split(sizes)
        state = leaves[0]
        for new, place in zip(leaves[1:], places[1:], strict=True):
            left, right = state.chunk(2)
            state = self.cell(left, right)
            if len(new):
                state = torch.cat((state, new)).index_select(0, place)
        out: Tensor = self.classify(state)
        return out


GRU_TREE = Ported(
    name="gru-tree",
    about=f"binary tree with a GRU cell as branch, hidden {HIDDEN}, {FEWEST} to {MOST} leaves, a loss at the root",
    model=GruTree,
    peer=ByDepth,
    data=data,
)
