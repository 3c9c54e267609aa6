"""Squash: activations in place, forward and backward, by the quickest way this machine has.

In torch ``tanh(x) = 2 sigmoid(2 x) - 1``: its tanh is several times slower than its sigmoid on some processors; in
float32 the difference in the result is a rounding error. Wider numbers, few of them, and other devices use tanh itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ampnet.native import calls

_FEW = 4096
"""Below this many numbers, one call of tanh is faster than four other calls."""
_relu_back = torch.ops.aten.threshold_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input
_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input


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


_BY_TORCH: dict[int, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    calls.RELU: (torch.relu_, lambda g, y: _relu_back(g, y, 0, grad_input=g)),
    calls.TANH: (tanh_, lambda g, y: _tanh_back(g, y, grad_input=g)),
    calls.SIGMOID: (torch.sigmoid_, lambda g, y: _sigmoid_back(g, y, grad_input=g)),
}


def squash(y: Tensor, activation: int) -> None:
    """Apply an activation (`calls.ACTIVATIONS`) in place."""
    if activation != calls.NONE and not calls.activate(y, activation):
        _BY_TORCH[activation][0](y)


def unsquash(g: Tensor, y: Tensor, activation: int) -> None:
    """From the gradient behind an activation to that before it, in place. ``y``: what came out."""
    if activation != calls.NONE and not calls.activate_back(g, y, activation):
        _BY_TORCH[activation][1](g, y)
