"""TreeLstmBranch: the binary Tree-LSTM cell at an inner node, on rows ``[h_left, c_left, h_right, c_right]``.

forward    i, f_left, f_right, o, u = h_left Wl' + h_right Wr' + b    (u: tanh, the others: sigmoid)
           c = i u + f_left c_left + f_right c_right      h = o tanh(c)
           keeps the input rows, the gates and tanh(c)
backward   dc = dc + dh o (1 - tanh(c)^2), then each gate, whose gradient takes its place, then both products
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.nodes.gates import Cell
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised

_CELL = Cell(i=0, u=4, o=3, f=1, children=2)


class TreeBranchCell(nn.Module):
    """The branch cell in plain torch: ``[h_left, c_left, h_right, c_right] -> [h, c]``. Forget gates start open."""

    def __init__(self, hidden_size: int, forget_bias: float = 1.0, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.left = nn.Linear(hidden_size, 5 * hidden_size, dtype=dtype)
        self.right = nn.Linear(hidden_size, 5 * hidden_size, bias=False, dtype=dtype)
        with torch.no_grad():
            self.left.bias[hidden_size : 3 * hidden_size] += forget_bias

    def forward(self, x: Tensor) -> Tensor:
        hl, cl, hr, cr = x.chunk(4, -1)
        i, fl, fr, o, u = (self.left(hl) + self.right(hr)).chunk(5, -1)
        c = i.sigmoid() * u.tanh() + fl.sigmoid() * cl + fr.sigmoid() * cr
        return torch.cat((o.sigmoid() * c.tanh(), c), -1)


class TreeLstmBranch(Parameterised):
    """`TreeBranchCell` on rows ``[h_left, c_left, h_right, c_right]``; gives ``[h, c]``."""

    def __init__(self, module: TreeBranchCell, key: Sequence[str] | None = None) -> None:
        super().__init__(module, key)
        self.n_hidden = module.hidden_size

    @property
    def parts(self) -> Sequence[Sequence[tuple[int, int]]]:
        """h of left and right; c of left and right."""
        n = self.n_hidden
        return (((0, n), (2 * n, 3 * n)), ((n, 2 * n), (3 * n, 4 * n)))

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return (2 * self.n_hidden,)

    def check(self, x: Tensor) -> None:
        self.check_rows(x, 4 * self.n_hidden, self.updater.weights[0].dtype)

    def run(self, span: Span) -> None:
        n, w, y, h, c = self.n_hidden, span.w, span.y, span.x(0), span.x(1)
        gates, squashed = span.keep("gates", 5 * n), span.keep("squashed", n)
        span.products.set(gates, h[:, :n], w[0].t(), w[1])
        span.products.add(gates, h[:, n:], w[2].t())
        _CELL.run(gates, c, y, squashed)

    def back(self, span: Span) -> None:
        n, gates, squashed = self.n_hidden, span.kept("gates"), span.kept("squashed")
        dc = span.keep("dc", 2 * n) if span.wants(1) else None
        _CELL.back(gates, span.x(1), squashed, span.g, dc)
        if dc is not None:
            span.add(1, dc)
        if span.wants(0):
            dh = span.keep("dh", 2 * n)
            span.products.set(dh[:, :n], gates, span.w[0])
            span.products.set(dh[:, n:], gates, span.w[2])
            span.add(0, dh)

    def collect(self, span: Span) -> None:
        n, sums, h = self.n_hidden, span.sums, span.x(0)
        gates = span.keep("gates", 5 * n)
        span.products.add_weight(sums, gates, h[:, :n])
        span.products.add_weight(sums, gates, h[:, n:], 2)
        sums.add_rows(gates, 1)

    def describe(self) -> str:
        return f"Tree-LSTM branch {self.n_hidden}"
