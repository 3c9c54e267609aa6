"""The binary Tree-LSTM, level by level and by recursion.

    leaf      i, o, u = W x + b                                  c = i u                           h = o tanh(c)
    branch    i, f_left, f_right, o, u = W [h_left, h_right] + b    c = i u + f_left c_left + f_right c_right

Word vectors have sparse gradients, as one would do it: an update moves some hundred of seventeen thousand rows. Where
the model has dropout, the classifier sees a part of h only, in training mode; cells see all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet import Tree
from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State


class TreePeer(Peer):
    """The cells."""

    def build(self, model: Any) -> None:
        width = self.width = model.width
        torch.sparse.check_sparse_tensor_invariants.disable()  # as it is by default, but torch wants to be told
        self.embedding = nn.Embedding(model.embedding.num_embeddings, model.embedding.embedding_dim, sparse=True)
        self.leaf = nn.Linear(model.embedding.embedding_dim, 3 * width)
        self.branch = nn.Linear(2 * width, 5 * width)
        self.dropout = nn.Dropout(model.dropout.p)
        self.classify = nn.Linear(width, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        ours = {name: value for name, value in state.items() if "_cell." not in name}
        return ours | {
            "leaf.weight": state["leaf_cell.gates.weight"],
            "leaf.bias": state["leaf_cell.gates.bias"],
            "branch.weight": torch.cat((state["branch_cell.left.weight"], state["branch_cell.right.weight"]), 1),
            "branch.bias": state["branch_cell.left.bias"],
        }

    def leaf_state(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(h, c) of words."""
        i, o, u = self.leaf(x).chunk(3, -1)
        c = i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def branch_state(self, h: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """(h, c) of branches, from both children's h side by side, and the c of each."""
        i, f_left, f_right, o, u = self.branch(h).chunk(5, -1)
        c = i.sigmoid() * u.tanh() + f_left.sigmoid() * left + f_right.sigmoid() * right
        return o.sigmoid() * c.tanh(), c


class Level(TreePeer):
    """All nodes of one height, of all trees, in one operation.

    Nodes are numbered anew: leaves, then branches of height 1, of height 2 and so on. The children of a height have
    smaller numbers, and are picked from all that was computed so far.
    """

    def collate(self, batch: Batch) -> Collated:
        trees: list[Tree] = [tree for (tree,) in batch]  # type: ignore[union-attr]
        parents, heights, first = [], [], 0
        for tree in trees:
            own = tree._parents
            parents.append(np.where(own < 0, -1, own + first))
            heights.append(heights_of(own))
            first += len(own)
        parent, height = np.concatenate(parents), np.concatenate(heights)
        order = np.argsort(height, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        children = np.argsort(parent, kind="stable")[len(trees) :].reshape(-1, 2)  # roots come first
        of_branch = dict(zip(parent[children[:, 0]].tolist(), children, strict=True))
        levels = []
        for h in range(1, int(height.max()) + 1):
            both = np.stack([of_branch[i] for i in order[height[order] == h].tolist()])
            levels.append(torch.from_numpy(number[both].reshape(-1)))
        words = torch.cat([tree._columns["word"] for tree in trees])  # type: ignore[misc]
        labels = torch.cat([tree._columns["label"] for tree in trees])[torch.from_numpy(order)]  # type: ignore[misc]
        return Collated(len(trees), (words, levels), labels)

    def forward(self, words: Tensor, levels: list[Tensor]) -> Tensor:
        h, c = self.leaf_state(self.embedding(words))
        for pairs in levels:
            given = h.index_select(0, pairs).view(-1, 2 * self.width)
            left, right = c.index_select(0, pairs).view(-1, 2 * self.width).chunk(2, 1)
            upper, cell = self.branch_state(given, left, right)
            h, c = torch.cat((h, upper)), torch.cat((c, cell))
        out: Tensor = self.classify(self.dropout(h))
        return out


class Recursive(TreePeer):
    """One tree after the other, node by node, as the model is written down."""

    def collate(self, batch: Batch) -> Collated:
        trees = [self._tree(tree) for (tree,) in batch]  # type: ignore[union-attr]
        return Collated(len(trees), (trees,), torch.empty(0))

    @staticmethod
    def _tree(tree: Tree) -> tuple[Any, ...]:
        word: Tensor = tree._columns["word"]  # type: ignore[assignment]
        label: Tensor = tree._columns["label"]  # type: ignore[assignment]
        children: list[list[int]] = [[] for _ in tree._parents]
        for i, parent in enumerate(tree._parents.tolist()):
            if parent >= 0:
                children[parent].append(i)
        words = iter(word.split(1))
        return [two or next(words) for two in children], tree._root, label

    def score(self, batch: Collated) -> Iterator[tuple[Tensor, Tensor]]:
        for nodes, root, label in batch.inputs[0]:
            states: dict[int, Tensor] = {}
            self.visit(nodes, root, states)
            h = torch.cat([states[i] for i in range(len(nodes))])
            yield self.classify(self.dropout(h)), label

    def visit(self, nodes: list[Any], i: int, states: dict[int, Tensor]) -> tuple[Tensor, Tensor]:
        """(h, c) of a node; ``states`` gets the h of all nodes below it."""
        if isinstance(nodes[i], Tensor):
            h, c = self.leaf_state(self.embedding(nodes[i]))
        else:
            (h_left, left), (h_right, right) = (self.visit(nodes, child, states) for child in nodes[i])
            h, c = self.branch_state(torch.cat((h_left, h_right), 1), left, right)
        states[i] = h
        return h, c


def heights_of(parents: np.ndarray) -> np.ndarray:
    """How far above its lowest leaf every node is. Children have smaller numbers than their parents."""
    heights = [0] * len(parents)
    for i, parent in enumerate(parents.tolist()):
        if parent >= 0:
            heights[parent] = max(heights[parent], heights[i] + 1)
    return np.array(heights)
