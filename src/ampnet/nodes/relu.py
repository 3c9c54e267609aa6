"""Relu: ``y = max(x, 0)``; keeps y, and lets the gradient through where y > 0."""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Residuals, Transform

_backward = torch.ops.aten.threshold_backward.default


class Relu(Transform):
    """The rectifier."""

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        y = torch.relu(x)
        return y, (y,)

    def gradient(self, g: Tensor, kept: Kept) -> Tensor:
        dx: Tensor = _backward(g, kept[0], 0)
        return dx

    def reference(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def describe(self) -> str:
        return "ReLU"
