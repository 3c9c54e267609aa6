"""Sigmoid: ``y = 1 / (1 + exp(-x))``; keeps y, and ``dx = dy y (1 - y)``."""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Residuals, Transform

_backward = torch.ops.aten.sigmoid_backward.default


class Sigmoid(Transform):
    """The logistic function."""

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        y = torch.sigmoid(x)
        return y, (y,)

    def gradient(self, g: Tensor, kept: Kept) -> Tensor:
        y = kept[0]
        dx: Tensor = _backward(g, y)
        return dx

    def reference(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)
