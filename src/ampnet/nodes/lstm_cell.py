"""LstmCell: the long short-term memory cell, on rows ``[x, h, c]``, giving rows ``[h', c']``.

forward    i, f, g, o = x Wi' + bi + h Wh' + bh   (sigmoid, sigmoid, tanh, sigmoid)
           c' = f c + i g                         h' = o tanh(c')
           keeps x, h, c, the gates and tanh(c')
backward   dc = dc' + dh' o (1 - tanh(c')^2), then each gate, whose gradient takes its place, then both products
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.nodes.gates import Cell
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised

_CELL = Cell(i=0, u=2, o=3, f=1, children=1)


class LstmCell(Parameterised):
    """`torch.nn.LSTMCell` on rows ``[x, h, c]``; gives ``[h', c']`` (a Split behind takes them apart)."""

    def __init__(self, module: nn.LSTMCell, key: Sequence[str] | None = None) -> None:
        super().__init__(module, key)
        self.n_input, self.n_hidden, self.bias = module.input_size, module.hidden_size, module.bias

    @property
    def parts(self) -> Sequence[Sequence[tuple[int, int]]]:
        k, n = self.n_input, self.n_hidden
        return (((0, k),), ((k, k + n),), ((k + n, k + 2 * n),))

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return (2 * self.n_hidden,)

    def check(self, x: Tensor) -> None:
        self.check_rows(x, self.n_input + 2 * self.n_hidden, self.updater.weights[0].dtype)

    def may_hoist(self, part: int) -> bool:
        return part == 0

    def hoist(self, span: Span, part: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return span.keep("gates", 4 * self.n_hidden), span.w[0], span.w[2] if self.bias else None

    def run(self, span: Span) -> None:
        n, w, y = self.n_hidden, span.w, span.y
        gates, squashed = span.keep("gates", 4 * n), span.keep("squashed", n)
        bi, bh = (w[2], w[3]) if self.bias else (None, None)
        if span.xs[0] is not None:
            span.products.set(gates, span.xs[0], w[0].t(), bi)
        span.products.add(gates, span.x(1), w[1].t(), bias=bh)
        _CELL.run(gates, span.x(2), y, squashed)

    def back(self, span: Span) -> None:
        n, w = self.n_hidden, span.w
        gates, squashed = span.keep("gates", 4 * n), span.keep("squashed", n)
        dc = span.keep("dc", n) if span.wants(2) else None
        _CELL.back(gates, span.x(2), squashed, span.g, dc)
        if dc is not None:
            span.add(2, dc)
        span.add_product(0, gates, w[0])
        span.add_product(1, gates, w[1])

    def collect(self, span: Span) -> None:
        sums, gates = span.sums, span.keep("gates", 4 * self.n_hidden)
        if span.xs[0] is not None:
            span.products.add_weight(sums, gates, span.xs[0])
        span.products.add_weight(sums, gates, span.x(1), 1)
        if self.bias:
            sums.add_rows(gates, 2)
            sums.add_rows(gates, 3)

    def reference(self, x: Tensor) -> Tensor:
        value, h, c = x.split([self.n_input, self.n_hidden, self.n_hidden], 1)
        return torch.cat(self.module(value, (h, c)), 1)

    def describe(self) -> str:
        return f"LSTM cell {self.n_input}+{self.n_hidden}"
