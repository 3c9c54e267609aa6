"""Linear: the fully connected layer, with an activation behind it if wanted.

forward    y = x W' + b                    keeps x
backward   dx = dy W     dW += dy' x     db += sum of dy

forward    y = act(x W' + b)               keeps x, y
backward   the same from dz = dy act'      which relu, tanh and sigmoid tell from y
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Parameterised, Residuals
from ampnet.update.sums import Sums

_threshold = torch.ops.aten.threshold_backward.default
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (torch.relu_, lambda g, y: _threshold(g, y, 0)),
    "tanh": (torch.tanh_, torch.ops.aten.tanh_backward.default),
    "sigmoid": (torch.sigmoid_, torch.ops.aten.sigmoid_backward.default),
}
"""In place, and the gradient from (g, y)."""


class Linear(Parameterised):
    """`torch.nn.Linear` on rows. ``Linear(256, 128)`` makes its own; ``Linear(module)`` uses yours.

    ``activation``: one invocation instead of two, and one tensor less to keep.
    """

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
        if activation is not None and activation not in ACTIVATIONS:
            raise ValueError(f"Linear knows the activations {', '.join(ACTIVATIONS)}; got {activation!r}")
        if isinstance(module, int):
            if out_features is None:
                raise TypeError("Linear(in_features, out_features) needs both, or an nn.Linear")
            module = nn.Linear(module, out_features, bias=bias, dtype=dtype)
        super().__init__(module, key)
        self.width, self.activation = module.in_features, activation
        self._active = None if activation is None else ACTIVATIONS[activation]

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, self.width, w[0].dtype)
        y = nn.functional.linear(x, w[0], w[1] if len(w) > 1 else None)
        if self._active is None:
            return y, (x,)
        y = self._active[0](y)  # in place: nobody has seen it yet
        return y, (x, y)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sums) -> Tensor | None:
        if self._active is not None:
            g = self._active[1](g, kept[1])
        add_linear(sums, g, kept[0])
        return None if self.input_is_data else g @ w[0]

    def reference(self, x: Tensor) -> Tensor:
        y = super().reference(x)
        return y if self.activation is None else getattr(torch, self.activation)(y)

    def describe(self) -> str:
        weight = self.updater.weights[0]
        shown = f"Linear {weight.shape[1]}→{weight.shape[0]}"
        return shown if self.activation is None else f"{shown} + {self.activation}"


def add_linear(sums: Sums, g: Tensor, x: Tensor, weight: int = 0, bias: int | None = 1) -> None:
    """Add the gradient of ``x W' + b`` to the sums of W and, if there is one, b. Neither g nor x may change later."""
    if g.dim() > 2:
        g, x = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
    sums.add_product(g, x, weight, bias if bias is not None and bias < len(sums) else None)
