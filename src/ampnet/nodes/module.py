"""Module: any row-wise `nn.Module` as a parameterised node, without a hand-written backward.

    forward    y = module(x)                                keeps x
    backward   recomputes y under autograd, from the kept x, and takes its gradient

Row-wise means: each output row depends on the same input row only, and always in the same way. A batch of messages has
rows of many instances in an order of its own, so BatchNorm (mixes rows) and Dropout (draws anew at the recomputation)
cannot work here; they are refused. Use the Dropout node instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, PayloadError
from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Parameterised, Residuals

_REFUSED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Module(Parameterised):
    """Any row-wise module. Slower than a node with its own backward: the forward runs twice."""

    def __init__(self, module: nn.Module, key: Sequence[str] | None = None) -> None:
        fault = not_row_wise(module)
        if fault is not None:
            raise GraphError([fault])
        super().__init__(module, key)
        self._checked = False

    def _call(self, x: Tensor, w: Sequence[Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, dict(zip(self.parameters, w, strict=True)), (x,))
        return out

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        version = x._version
        y = check_row_wise(self._call(x, w), x, version)
        if not self._checked and len(x) > 1:
            check_alone(y, x, lambda rows: self._call(rows, w))
            self._checked = True
        return y, (x,)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sequence[Tensor]) -> Tensor | None:
        x = kept[0]
        with torch.enable_grad():
            x = x.detach().requires_grad_(x.is_floating_point())
            leaves = [t.detach().requires_grad_() for t in w]
            y = self._call(x, leaves)
            if not y.requires_grad:
                return None
            wanted = [*leaves, x] if x.requires_grad else leaves
            grads = torch.autograd.grad(y, wanted, g, allow_unused=True)
        for total, piece in zip(sums, grads, strict=False):
            if piece is not None:
                total.add_(piece)
        return grads[-1] if x.requires_grad else None

    def describe(self) -> str:
        return type(self.module).__name__


def not_row_wise(module: nn.Module) -> str | None:
    """What is known to be wrong with a module, from its kind alone."""
    for name, inner in module.named_modules():
        if isinstance(inner, _REFUSED):
            return (
                f"{type(inner).__name__} ('{name or 'itself'}') is not row-wise and repeatable; put a Dropout node or "
                f"a LayerNorm in its place"
            )
    return None


def check_row_wise(y: object, x: Tensor, version: int) -> Tensor:
    """The output, if it is a tensor with a row per input row and the input was left as it is."""
    if not isinstance(y, Tensor) or y.dim() == 0 or y.shape[0] != x.shape[0]:
        shape = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
        raise PayloadError(f"must give one output row per input row: {x.shape[0]} rows in, {shape} out")
    if x._version != version:
        raise PayloadError("writes into its input, which other nodes share: use the version that is not in place")
    return y


def check_alone(y: Tensor, x: Tensor, call: Callable[[Tensor], Tensor]) -> None:
    """The first and the last row must come out alone as they do among others."""
    tolerance = 1e-2 if y.dtype in (torch.bfloat16, torch.float16) else 1e-4
    for row in (slice(0, 1), slice(len(x) - 1, len(x))):
        if not torch.allclose(call(x[row]), y[row], rtol=tolerance, atol=tolerance, equal_nan=True):
            raise PayloadError(
                "is not row-wise: a row comes out differently alone and among others. Messages are batched in any "
                "composition, so a function that mixes rows, or draws random numbers, has no meaning here"
            )
