"""Linear: the fully connected layer.

forward    y = x W' + b                    keeps x
backward   dx = dy W     dW += dy' x     db += sum of dy
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Parameterised, Residuals


class Linear(Parameterised):
    """`torch.nn.Linear` on rows. ``Linear(256, 128)`` makes its own; ``Linear(module)`` uses yours."""

    def __init__(
        self,
        module: nn.Linear | int,
        out_features: int | None = None,
        *,
        bias: bool = True,
        dtype: torch.dtype | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        if isinstance(module, int):
            if out_features is None:
                raise TypeError("Linear(in_features, out_features) needs both, or an nn.Linear")
            module = nn.Linear(module, out_features, bias=bias, dtype=dtype)
        super().__init__(module, key)
        self.width = module.in_features

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, self.width, w[0].dtype)
        return nn.functional.linear(x, w[0], w[1] if len(w) > 1 else None), (x,)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sequence[Tensor]) -> Tensor:
        add_linear(sums, g, kept[0])
        return g @ w[0]

    def describe(self) -> str:
        weight = self.updater.weights[0]
        return f"Linear {weight.shape[1]}→{weight.shape[0]}"


def add_linear(sums: Sequence[Tensor], g: Tensor, x: Tensor) -> None:
    """Add the gradient of ``x W' + b`` to the sums of W and, if there is one, b."""
    if g.dim() > 2:
        g, x = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    add_product(sums[0], g, x)
    if len(sums) > 1:
        sums[1].add_(g.sum(0, dtype=sums[1].dtype))


def add_product(total: Tensor, g: Tensor, x: Tensor) -> None:
    """``total += g' x``, also where the sum is wider than the rows (bfloat16)."""
    if total.dtype == g.dtype:
        total.addmm_(g.t(), x)
    else:
        total.add_(g.t() @ x)
