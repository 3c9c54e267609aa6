"""GruCell: the gated recurrent unit, on rows ``[x, h]``.

forward    r, z = sigmoid(x Wi' + bi + h Wh' + bh)       hn = h Wh_n' + bh_n
           n = tanh(x Wi_n' + bi_n + r hn)               h' = (1 - z) n + z h
           keeps x, h, r, z, n, hn and both products
backward   through the same equations, gates first, then both products; the gradients of the products take their place

What is kept lies apart, each without gaps: what runs element by element is several times faster on such memory where
rows are narrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.nodes.products import add_rows
from ampnet.nodes.span import Span
from ampnet.nodes.squash import tanh_
from ampnet.nodes.transform import Parameterised

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


class GruCell(Parameterised):
    """`torch.nn.GRUCell` on rows ``[x, h]`` (put a Concat in front); gives ``h'``."""

    def __init__(self, module: nn.GRUCell, key: Sequence[str] | None = None) -> None:
        super().__init__(module, key)
        self.n_input, self.n_hidden, self.bias = module.input_size, module.hidden_size, module.bias

    @property
    def parts(self) -> Sequence[Sequence[tuple[int, int]]]:
        return (((0, self.n_input),), ((self.n_input, self.n_input + self.n_hidden),))

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return (self.n_hidden,)

    def check(self, x: Tensor) -> None:
        self.check_rows(x, self.n_input + self.n_hidden, self.updater.weights[0].dtype)

    def may_hoist(self, part: int) -> bool:
        return part == 0

    def hoist(self, span: Span, part: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return span.keep("gi", 3 * self.n_hidden), span.w[0], span.w[2] if self.bias else None

    def run(self, span: Span) -> None:
        n, w, keep = self.n_hidden, span.w, span.keep
        x, h = span.xs[0], span.x(1)
        gi, gh = keep("gi", 3 * n), keep("gh", 3 * n)
        r, z, new, hn = keep("r", n), keep("z", n), keep("new", n), keep("hn", n)
        bi, bh = (w[2], w[3]) if self.bias else (None, None)
        if x is not None:
            span.products.set(gi, x, w[0].t(), bi)
        span.products.set(gh, h, w[1].t(), bh)
        torch.add(gi[:, :n], gh[:, :n], out=r).sigmoid_()
        torch.add(gi[:, n : 2 * n], gh[:, n : 2 * n], out=z).sigmoid_()
        hn.copy_(gh[:, 2 * n :])
        tanh_(torch.addcmul(gi[:, 2 * n :], r, hn, out=new))
        torch.lerp(new, h, z, out=span.y)

    def back(self, span: Span) -> None:
        n, w, keep, g = self.n_hidden, span.w, span.keep, span.g
        di, dh = keep("gi", 3 * n), keep("gh", 3 * n)
        r, z, new, hn = keep("r", n), keep("z", n), keep("new", n), keep("hn", n)
        through = g * z
        _sigmoid_back((span.x(1) - new).mul_(g), z, grad_input=di[:, n : 2 * n])
        d_new = _tanh_back(g.sub_(through), new, grad_input=new)
        torch.mul(d_new, r, out=dh[:, 2 * n :])
        di[:, 2 * n :] = d_new
        _sigmoid_back(hn.mul_(d_new), r, grad_input=di[:, :n])
        dh[:, : 2 * n] = di[:, : 2 * n]
        if span.wants(1):
            span.products.add(through, dh, w[1])
            span.add(1, through)
        span.add_product(0, di, w[0])

    def collect(self, span: Span) -> None:
        n, sums = self.n_hidden, span.sums
        di, dh = span.keep("gi", 3 * n), span.keep("gh", 3 * n)
        if span.xs[0] is not None:
            span.products.add_weight(sums, di, span.xs[0])
        span.products.add_weight(sums, dh, span.x(1), 1)
        if self.bias:
            add_rows(sums[2], di)
            add_rows(sums[3], dh)

    def reference(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x[:, : self.n_input], x[:, self.n_input :])
        return out

    def describe(self) -> str:
        return f"GRU cell {self.n_input}+{self.n_hidden}"
