"""LayerNorm: each row brought to mean 0 and variance 1, then scaled and shifted.

forward    y = (x - mean) rstd w + b       keeps x, mean, rstd
backward   dx, dw, db by torch's own kernel
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.errors import PayloadError
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised


class LayerNorm(Parameterised):
    """`torch.nn.LayerNorm` on rows."""

    saturates = False

    def __init__(self, module: nn.LayerNorm | int, *, key: Sequence[str] | None = None) -> None:
        module = nn.LayerNorm(module) if isinstance(module, int) else module
        super().__init__(module, key)
        self.shape, self.eps = list(module.normalized_shape), module.eps

    def _affine(self, w: Sequence[Tensor]) -> tuple[Tensor | None, Tensor | None]:
        return (w[0] if w else None), (w[1] if len(w) > 1 else None)

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return x.shape[1:]

    def check(self, x: Tensor) -> None:
        w = self.updater.weights
        if list(x.shape[-len(self.shape) :]) != self.shape or x.dim() <= len(self.shape):
            raise PayloadError(f"expects rows that end in {tuple(self.shape)}, got a payload of shape {tuple(x.shape)}")
        if w and x.dtype != w[0].dtype:
            raise PayloadError(f"has {w[0].dtype} parameters, got a payload of {x.dtype}")

    def run(self, span: Span) -> None:
        x = span.x(0)
        y, mean, rstd = torch.native_layer_norm(x, self.shape, *self._affine(span.w), self.eps)
        span.y.copy_(y)
        rows = x.shape[0]
        span.keep("mean", mean[0].numel()).view(rows, -1).copy_(mean.view(rows, -1))
        span.keep("rstd", rstd[0].numel()).view(rows, -1).copy_(rstd.view(rows, -1))

    def _backward(self, span: Span, wanted: list[bool]) -> Sequence[Tensor]:
        x = span.x(0).contiguous()
        outer = x.shape[: x.dim() - len(self.shape)]
        stats = [span.kept(name).view(*outer, *[1] * len(self.shape)) for name in ("mean", "rstd")]
        weight, bias = self._affine(span.w)
        out: Sequence[Tensor] = torch.ops.aten.native_layer_norm_backward(
            span.g.contiguous(), x, self.shape, *stats, weight, bias, wanted
        )
        return out

    def back(self, span: Span) -> None:
        if span.wants(0):
            span.add(0, self._backward(span, [True, False, False])[0])

    def collect(self, span: Span) -> None:
        if span.w:
            _, dw, db = self._backward(span, [False, True, len(span.w) > 1])
            for total, piece in zip(span.sums, (dw, db), strict=False):
                total.add_(piece)

    def describe(self) -> str:
        return f"LayerNorm {'×'.join(map(str, self.shape))}"
