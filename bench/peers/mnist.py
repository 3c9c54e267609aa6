"""The perceptron for MNIST."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.batch import Batch, Bucket
from bench.peers.peer import Collated, Peer


class Eager(Peer):
    """Layer after layer."""

    def build(self, model: Any) -> None:
        self.hidden = nn.ModuleList(nn.Linear(f.in_features, f.out_features) for f in model.hidden)
        self.classify = nn.Linear(model.classify.in_features, model.classify.out_features)

    def collate(self, batch: Batch) -> Collated:
        assert isinstance(batch, Bucket)
        images, labels = batch.arguments
        return Collated(batch.count, (images,), labels)

    def forward(self, h: Tensor) -> Tensor:
        for layer in self.hidden:
            h = torch.relu(layer(h))
        out: Tensor = self.classify(h)
        return out
