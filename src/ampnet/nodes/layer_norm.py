"""LayerNorm: each row brought to mean 0 and variance 1, then scaled and shifted.

forward    y = (x - mean) rstd w + b       keeps x, mean, rstd
backward   dx, dw, db by torch's own kernel
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.errors import PayloadError
from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Parameterised, Residuals


class LayerNorm(Parameterised):
    """`torch.nn.LayerNorm` on rows."""

    saturates = False

    def __init__(self, module: nn.LayerNorm | int, *, key: Sequence[str] | None = None) -> None:
        module = nn.LayerNorm(module) if isinstance(module, int) else module
        super().__init__(module, key)
        self.shape, self.eps = list(module.normalized_shape), module.eps

    def _affine(self, w: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        return (w[0] if w else None), (w[1] if len(w) > 1 else None)

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        if list(x.shape[-len(self.shape) :]) != self.shape or x.dim() <= len(self.shape):
            raise PayloadError(f"expects rows that end in {tuple(self.shape)}, got a payload of shape {tuple(x.shape)}")
        if w and x.dtype != w[0].dtype:
            raise PayloadError(f"has {w[0].dtype} parameters, got a payload of {x.dtype}")
        y, mean, rstd = torch.native_layer_norm(x, self.shape, *self._affine(w), self.eps)
        return y, (x, mean, rstd)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sequence[Tensor]) -> Tensor:
        x, mean, rstd = kept[0], kept[1], kept[2]
        weight, bias = self._affine(w)
        wanted = [True, weight is not None, bias is not None]
        backward = torch.ops.aten.native_layer_norm_backward
        dx, *rest = backward(g.contiguous(), x.contiguous(), self.shape, mean, rstd, weight, bias, wanted)
        for total, piece in zip(sums, rest, strict=False):
            total.add_(piece)
        out: Tensor = dx
        return out

    def describe(self) -> str:
        return f"LayerNorm {'×'.join(map(str, self.shape))}"
