"""Permuted layers: every instance applies some of M different layers, in its own order.

The case where batching by depth fails: at every depth, each instance needs another layer. Rows that need the same
layer are computed together anyway, whatever their depth.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ampnet.lang import Model, Seq, choose, fold, loss


class PermutedLayers(Model):
    """A row ``x``, the layers to apply to it (integers), and a class."""

    def __init__(self, width: int = 256, layers: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.classify = nn.Linear(width, classes)

    def forward(self, x: Tensor, order: Seq, label: Tensor) -> Tensor:
        layers = [lambda h, layer=layer: torch.relu(layer(h)) for layer in self.layers]
        h = fold(lambda h, number: choose(number, layers, h), order, x)
        scores: Tensor = self.classify(h)
        loss(scores, label)
        return scores
