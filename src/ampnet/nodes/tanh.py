"""Tanh: ``y = tanh(x)``; keeps y, and ``dx = dy (1 - y^2)``."""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Residuals, Transform

_backward = torch.ops.aten.tanh_backward.default


class Tanh(Transform):
    """The hyperbolic tangent."""

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        y = torch.tanh(x)
        return y, (y,)

    def gradient(self, g: Tensor, kept: Kept) -> Tensor:
        y = kept[0]
        dx: Tensor = _backward(g, y)
        return dx

    def reference(self, x: Tensor) -> Tensor:
        return torch.tanh(x)
