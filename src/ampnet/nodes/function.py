"""Function: any differentiable function of rows as a node without parameters.

    forward    y = f(x)                                keeps x
    backward   recomputes y under autograd, from the kept x, and takes its gradient

Like `Module`, it must be row-wise and repeatable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.module import check_alone, check_row_wise
from ampnet.nodes.transform import Residuals, Transform


class Function(Transform):
    """``Function(lambda x: x.clamp(min=0) ** 2)``."""

    def __init__(self, function: Callable[[Tensor], Tensor], key: Sequence[str] | None = None) -> None:
        super().__init__(key)
        self.function = function
        self._checked = False

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        version = x._version
        y = check_row_wise(self.function(x), x)
        if x._version != version:
            raise PayloadError("writes into its input, which other nodes share: use the version that is not in place")
        if not self._checked and len(x) > 1:
            check_alone(y, x, self.function)
            self._checked = True
        return y, (x,)

    def gradient(self, g: Tensor, kept: Kept) -> Tensor | None:
        x = kept[0]
        if not x.is_floating_point():
            return None
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.function(x)
            if not y.requires_grad:
                return None
            (dx,) = torch.autograd.grad(y, x, g, allow_unused=True)
        return dx

    def reference(self, x: Tensor) -> Tensor:
        return self.function(x)

    def describe(self) -> str:
        name = getattr(self.function, "__name__", "function")
        return "f(x)" if name == "<lambda>" else name
