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

from ampnet.nodes.products import add_rows
from ampnet.nodes.span import Span
from ampnet.nodes.squash import tanh, tanh_
from ampnet.nodes.transform import Parameterised

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


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
        gates[:, : 4 * n].sigmoid_()
        u = tanh_(gates[:, 4 * n :])
        cell = y[:, n:]
        torch.mul(gates[:, :n], u, out=cell)
        cell.addcmul_(gates[:, n : 2 * n], c[:, :n]).addcmul_(gates[:, 2 * n : 3 * n], c[:, n:])
        tanh(cell, out=squashed)
        torch.mul(gates[:, 3 * n : 4 * n], squashed, out=y[:, :n])

    def back(self, span: Span) -> None:
        n, g, c = self.n_hidden, span.g, span.x(1)
        gates, squashed = span.keep("gates", 5 * n), span.keep("squashed", n)
        gh, dc = g[:, :n], g[:, n:]
        i, forget, o, u = gates[:, :n], gates[:, n : 3 * n], gates[:, 3 * n : 4 * n], gates[:, 4 * n :]
        through = gh * o
        d_o = gh.mul_(squashed)
        dc += _tanh_back(through, squashed, grad_input=squashed)
        rows, both = len(g), dc.unsqueeze(1)
        if span.wants(1):
            span.add(1, torch.mul(both, forget.unflatten(1, (2, n))).view(rows, 2 * n))
        d_f = both * c.unflatten(1, (2, n))
        _sigmoid_back(d_f.view(rows, 2 * n), forget, grad_input=forget)
        d_u = dc * i
        _sigmoid_back(dc.mul_(u), i, grad_input=i)
        _sigmoid_back(d_o, o, grad_input=o)
        _tanh_back(d_u, u, grad_input=u)
        if span.wants(0):
            span.add(0, span.products.of(gates, torch.cat((span.w[0], span.w[2]), 1)))

    def collect(self, span: Span) -> None:
        n, sums, h = self.n_hidden, span.sums, span.x(0)
        gates = span.keep("gates", 5 * n)
        span.products.add_weight(sums, gates, h[:, :n])
        span.products.add_weight(sums, gates, h[:, n:], 2)
        add_rows(sums[1], gates)

    def describe(self) -> str:
        return f"Tree-LSTM branch {self.n_hidden}"
