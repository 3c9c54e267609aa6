"""Squash: tanh in place, by the quickest way this machine has.

``tanh(x) = 2 sigmoid(2 x) - 1``. Torch's tanh is several times slower than its sigmoid on some processors; in float32
the difference in the result is a rounding error. Wider numbers, few of them, and other devices use tanh
itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FEW = 4096
"""Below this many numbers, one call of tanh is faster than four other calls."""


def tanh_(x: Tensor) -> Tensor:
    """In place."""
    if x.dtype != torch.float32 or x.is_cuda or x.numel() < _FEW:
        return x.tanh_()
    return x.mul_(2).sigmoid_().mul_(2).sub_(1)


def tanh(x: Tensor, out: Tensor) -> Tensor:
    """Into ``out``."""
    if x.dtype != torch.float32 or x.is_cuda or x.numel() < _FEW:
        return torch.tanh(x, out=out)
    return torch.mul(x, 2, out=out).sigmoid_().mul_(2).sub_(1)
