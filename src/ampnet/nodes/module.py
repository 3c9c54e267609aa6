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
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised

_REFUSED = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Module(Parameterised):
    """Any row-wise module. Slower than a node with its own backward: the forward runs twice."""

    def __init__(self, module: nn.Module, key: Sequence[str] | None = None) -> None:
        fault = not_row_wise(module)
        if fault is not None:
            raise GraphError([fault])
        super().__init__(module, key)
        self._shapes: dict[torch.Size, Sequence[int]] = {}
        """Of output rows, by those of input rows."""
        self._checked = False

    def _call(self, x: Tensor, w: Sequence[Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, dict(zip(self.parameters, w, strict=True)), (x,))
        return out

    def check(self, x: Tensor) -> None:
        pass

    def shape_out(self, x: Tensor) -> Sequence[int]:
        known = self._shapes.get(x.shape[1:])
        if known is None:
            known = self._shapes[x.shape[1:]] = self._try(x)
        return known

    def _try(self, x: Tensor) -> Sequence[int]:
        """Run it once on a real row, to see what comes out."""
        one = x[:1]
        return check_row_wise(self._call(one, self.updater.weights), one, x._version).shape[1:]

    def run(self, span: Span) -> None:
        x = span.x(0)
        version = x._version
        y = check_row_wise(self._call(x, span.w), x, version)
        if not self._checked and len(x) > 1:
            check_alone(y, x, lambda rows: self._call(rows, span.w))
            self._checked = True
        span.y.copy_(y)

    def back(self, span: Span) -> None:
        """Both gradients need the forward again. Where a span is all there is, they are made together in `collect`."""
        if span.wants(0) and not span.alone:
            _, (dx,) = self._grad(span, False, True)
            if dx is not None:
                span.add(0, dx)

    def collect(self, span: Span) -> None:
        leaves, dx = self._grad(span, True, span.alone and span.wants(0))
        for total, piece in zip(span.sums, leaves, strict=True):
            if piece is not None:
                total.add_(piece)
        if dx and dx[0] is not None:
            span.add(0, dx[0])

    def _grad(self, span: Span, weights: bool, rows: bool) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """The gradients of the weights, and of the input rows, each if wanted."""
        with torch.enable_grad():
            x = span.x(0).detach().requires_grad_(rows)
            leaves = [t.detach().requires_grad_(weights) for t in span.w]
            y, wanted = self._call(x, leaves), [*(leaves if weights else ()), *([x] if rows else ())]
            if not y.requires_grad or not wanted:
                return [None] * len(leaves), [None]
            grads: list[Tensor | None] = list(torch.autograd.grad(y, wanted, span.g, allow_unused=True))
        return grads[: len(leaves)] if weights else [], grads[-1:] if rows else []

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
