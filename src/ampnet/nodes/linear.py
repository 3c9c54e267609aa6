"""Linear: the fully connected layer, with an activation behind it if wanted.

forward    y = x W' + b                    keeps x
backward   dx = dy W     dW += dy' x     db += sum of dy

forward    y = act(x W' + b)               keeps x, y
backward   the same from dz = dy act'      which relu, tanh and sigmoid tell from y

A row that comes in pieces x_1, x_2 is not concatenated: y = x_1 W_1' + x_2 W_2' + b, each with its columns of W.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ampnet.native import calls
from ampnet.native.calls import ACTIVATIONS
from ampnet.nodes.span import Span
from ampnet.nodes.squash import squash, unsquash
from ampnet.nodes.transform import Parameterised


class Linear(Parameterised):
    """`torch.nn.Linear` on rows. ``Linear(256, 128)`` makes its own; ``Linear(module)`` uses yours.

    ``activation``: one invocation instead of two, and one tensor less to keep.
    """

    takes_pieces = True

    def __init__(
        self,
        module: nn.Linear | int,
        out_features: int | None = None,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        key: Sequence[str] | None = None,
        activation: Literal["relu", "tanh", "sigmoid"] | None = None,
    ) -> None:
        if activation not in ACTIVATIONS:
            known = ", ".join(name for name in ACTIVATIONS if name)
            raise ValueError(f"Linear knows the activations {known}; got {activation!r}")
        if isinstance(module, int):
            if out_features is None:
                raise TypeError("Linear(in_features, out_features) needs both, or an nn.Linear")
            module = nn.Linear(module, out_features, bias=bias, dtype=dtype)
        super().__init__(module, key)
        self.width, self.activation = module.in_features, activation
        self._active = ACTIVATIONS[activation]
        self.keeps_y = activation is not None

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return (*x.shape[1:-1], self.updater.weights[0].shape[0])

    def check(self, x: Tensor) -> None:
        self.check_rows(x, self.width, self.updater.weights[0].dtype)

    def _weights(self, span: Span) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """The columns of the weight that each part is multiplied with, and the same transposed."""
        if span.memo is None or span.memo[0] is not span.w:
            w = span.w[0]
            parts = [w] if len(span.widths) == 1 else w.split(list(span.widths), 1)
            span.memo = span.w, (parts, [part.t() for part in parts])
        return span.memo[1]  # type: ignore[return-value]

    def may_hoist(self, part: int) -> bool:
        return True

    def hoist(self, span: Span, part: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return span.y, self._weights(span)[0][part], span.w[1] if len(span.w) > 1 else None

    def delta(self, span: Span, part: int) -> Tensor:
        return span.g

    def squash(self, y: Tensor) -> None:
        """Apply the activation, in place."""
        squash(y, self._active)

    def unsquash(self, g: Tensor, y: Tensor) -> None:
        """From the gradient of the output to that before the activation, in place."""
        unsquash(g, y, self._active)

    def run(self, span: Span) -> None:
        y, w, products, begun = span.y, span.w, span.products, span.begun
        bias, given = w[1] if len(w) > 1 else None, sum(x is not None for x in span.xs)
        if not given:  # nothing but zeros came in, or all products are made
            if not begun:
                y.zero_() if bias is None else y.copy_(bias)
            self.squash(y)
        for x, turned in zip(span.xs, self._weights(span)[1], strict=True):
            if x is None:
                continue
            given -= 1
            activation = calls.NONE if given else self._active
            if begun:
                products.add(y, x, turned, activation)
            else:
                products.set(y, x, turned, bias, activation)
            begun = True

    def back(self, span: Span) -> None:
        g = span.g
        self.unsquash(g, span.y)
        for part, weight in enumerate(self._weights(span)[0]):
            span.add_product(part, g, weight)

    def collect(self, span: Span) -> None:
        g, sums, start = span.g, span.sums, 0
        for x, width in zip(span.xs, span.widths, strict=True):
            if x is not None and len(span.xs) == 1:
                span.products.add_weight(sums, g, x)
            elif x is not None:
                span.products.add_part(sums[0][:, start : start + width], g, x)
            start += width
        if len(sums) > 1:
            sums.add_rows(g, 1)

    def reference(self, x: Tensor) -> Tensor:
        y = super().reference(x)
        return y if self.activation is None else getattr(torch, self.activation)(y)

    def describe(self) -> str:
        weight = self.updater.weights[0]
        shown = f"Linear {weight.shape[1]}→{weight.shape[0]}"
        return shown if self.activation is None else f"{shown} + {self.activation}"
