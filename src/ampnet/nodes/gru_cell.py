"""GruCell: the gated recurrent unit, on rows ``[x, h]``.

forward    r, z = sigmoid(x Wi' + bi + h Wh' + bh)       hn = h Wh_n' + bh_n
           n = tanh(x Wi_n' + bi_n + r hn)               h' = (1 - z) n + z h
           keeps x, h, r, z, n, hn and both products
backward   through the same equations, gates first, then both products; the gradients of the products take their place
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ampnet.nodes import fused, gates
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised


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
        bi, bh = (w[2], w[3]) if self.bias else (None, None)
        if x is not None:
            span.products.set(gi, x, w[0].t(), bi)
        span.products.set(gh, h, w[1].t(), bh)
        if gi.is_cuda:
            fused.gru(span, gi, gh, n)
            return
        gates.gru(gi, gh, h, self._kept_of(span), span.y)

    def _kept_of(self, span: Span) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        n, keep = self.n_hidden, span.keep
        return keep("r", n), keep("z", n), keep("new", n), keep("hn", n)

    def back(self, span: Span) -> None:
        n, w = self.n_hidden, span.w
        di, dh = span.keep("gi", 3 * n), span.keep("gh", 3 * n)
        if di.is_cuda:
            through = fused.gru_back(span, di, dh, n)
        else:
            through = span.keep("through", n)
            gates.gru_back(span.g, span.x(1), self._kept_of(span), di, dh, through)
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
            sums.add_rows(di, 2)
            sums.add_rows(dh, 3)

    def reference(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x[:, : self.n_input], x[:, self.n_input :])
        return out

    def describe(self) -> str:
        return f"GRU cell {self.n_input}+{self.n_hidden}"
