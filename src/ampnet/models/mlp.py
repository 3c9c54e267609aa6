"""The paper's multi-layer perceptron for MNIST: four layers, 784 wide, ReLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ampnet.lang import Model, loss


class Mlp(Model):
    """An image (784 numbers) and its class."""

    def __init__(self, width: int = 784, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(layers - 1))
        self.classify = nn.Linear(width, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        h = image
        for layer in self.hidden:
            h = torch.relu(layer(h))
        scores: Tensor = self.classify(h)
        loss(scores, label)
        return scores
