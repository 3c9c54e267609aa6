"""The binary Tree-LSTM for sentiment: separate cells for leaves and branches, and a loss at every node of the tree.

Tai, Socher, Manning 2015 (the binary, constituency form); the paper trains it on the Stanford Sentiment Treebank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ampnet.lang import Model, Tree, each, fold_tree, loss
from ampnet.nodes import TreeBranchCell, TreeLeafCell


class TreeLstm(Model):
    """A `Tree` with a ``word`` at every leaf and a ``label`` at every node."""

    def __init__(
        self, vocabulary: int, embedding: int = 300, hidden: int = 300, classes: int = 5, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.width = hidden
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.leaf_cell = TreeLeafCell(embedding, hidden)
        self.branch_cell = TreeBranchCell(hidden)
        self.dropout = nn.Dropout(dropout)
        self.classify = nn.Linear(hidden, classes)

    def leaf(self, node: Any) -> Tensor:
        """[h, c] of a word."""
        out: Tensor = self.leaf_cell(self.embedding(node.word))
        return out

    def branch(self, left: Tensor, right: Tensor) -> Tensor:
        """[h, c] of two parts."""
        out: Tensor = self.branch_cell(torch.cat((left, right), -1))
        return out

    def judge_node(self, state: Tensor, label: Tensor) -> Tensor:
        scores: Tensor = self.classify(self.dropout(state[: self.width]))
        loss(scores, label)
        return scores

    def forward(self, tree: Tree) -> Any:
        states, _ = fold_tree(tree, self.leaf, self.branch)
        return each(self.judge_node, states, tree.label)
