"""Products: matrix products in the configured precision.

    float32     as the rows are
    bfloat16    factors are rounded to eight bits of mantissa, products are added up in float32 by the processor, and
                what comes out is rounded once more before it is put where it belongs, in float32

Weights, rows, gradients, sums and updates stay in float32 either way; only the factors of products are narrow. On
processors with instructions for bfloat16 a product takes about half the time.

Rows of several dimensions ``[rows, k, width]`` count as ``rows * k`` rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ampnet.native import calls
from ampnet.nodes.squash import squash
from ampnet.update.sums import Sums

Precision = Literal["float32", "bfloat16"]


class Products:
    """Makes matrix products. ``narrow``: of factors in bfloat16. ``steady``: weights do not change within a wave."""

    def __init__(self, narrow: bool = False, steady: bool = False) -> None:
        self.narrow, self.steady = narrow, steady

    def set(self, out: Tensor, x: Tensor, w: Tensor, bias: Tensor | None = None, activation: int = calls.NONE) -> None:
        """``out = act(x w + bias)``."""
        if out.dim() > 2:
            out, x = _flat(out), _flat(x)
        if not self.narrow and calls.product(out, x, w, bias, activation=activation, steady=self.steady):
            return
        if self.narrow:
            out.copy_(_narrow(x, w))
            if bias is not None:
                out.add_(bias)
        elif bias is not None:
            torch.addmm(bias, x, w, out=out)
        else:
            torch.mm(x, w, out=out)
        squash(out, activation)

    def add(
        self, out: Tensor, x: Tensor, w: Tensor, activation: int = calls.NONE, *, bias: Tensor | None = None
    ) -> None:
        """``out = act(out + x w + bias)``."""
        if out.dim() > 2:
            if not out.is_contiguous():
                out.add_(self.of(x, w))
                squash(out if bias is None else out.add_(bias), activation)
                return
            out, x = _flat(out), _flat(x)
        if not self.narrow and calls.product(out, x, w, bias, add=True, activation=activation, steady=self.steady):
            return
        if self.narrow:
            out.add_(_narrow(x, w))
        else:
            out.addmm_(x, w)
        if bias is not None:
            out.add_(bias)
        squash(out, activation)

    def of(self, x: Tensor, w: Tensor) -> Tensor:
        """``x w``."""
        if self.narrow or not calls.takes(x):
            return _narrow(x, w).to(x.dtype) if self.narrow else x @ w
        out = x.new_empty(*x.shape[:-1], w.shape[1])
        self.set(out, x, w)
        return out

    def add_weight(self, sums: Sums, g: Tensor, x: Tensor, weight: int = 0) -> None:
        """``sums[weight] += g' x``."""
        g, x = _flat(g), _flat(x)
        if self.narrow:
            g, x = g.to(torch.bfloat16), x.to(torch.bfloat16)
        sums.add_whole(g, x, weight)

    def add_part(self, total: Tensor, g: Tensor, x: Tensor) -> None:
        """``total += g' x``, of some columns of a sum."""
        g, x = _flat(g), _flat(x)
        if self.narrow or total.dtype != g.dtype:  # or the sum is wider than the rows
            total.add_(_narrow(g.t(), x) if self.narrow else g.t() @ x)
        elif not calls.product(total, g.t(), x, add=True):
            total.addmm_(g.t(), x)


def _flat(rows: Tensor) -> Tensor:
    return rows if rows.dim() == 2 else rows.reshape(-1, rows.shape[-1])


def _narrow(x: Tensor, w: Tensor) -> Tensor:
    return x.to(torch.bfloat16) @ w.to(torch.bfloat16)
