"""TreeLstmBranch: the binary Tree-LSTM cell at an inner node, on rows ``[h_left, c_left, h_right, c_right]``.

forward    i, f_left, f_right, o, u = h_left Wl' + h_right Wr' + b    (u: tanh, the others: sigmoid)
           c = i u + f_left c_left + f_right c_right      h = o tanh(c)
           keeps the input rows, the gates and tanh(c)
backward   dc = dc + dh o (1 - tanh(c)^2), then each gate, then both products
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.linear import add_linear
from ampnet.nodes.transform import Parameterised, Residuals
from ampnet.update.sums import Sums


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

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, 4 * self.n_hidden, w[0].dtype)
        n = self.n_hidden
        hl, cl, hr, cr = x.split(n, 1)
        gates = nn.functional.linear(hl, w[0], w[1]).addmm_(hr, w[2].t())
        gates[:, : 4 * n].sigmoid_()
        gates[:, 4 * n :].tanh_()
        i, fl, fr, o, u = gates.split(n, 1)
        out = x.new_empty(x.shape[0], 2 * n)
        cell = out[:, n:]
        torch.mul(i, u, out=cell)
        cell.addcmul_(fl, cl).addcmul_(fr, cr)
        squashed = cell.tanh()
        torch.mul(o, squashed, out=out[:, :n])
        return out, (x, gates, squashed)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sums) -> Tensor:
        x, gates, squashed = kept[0], kept[1], kept[2]
        n = self.n_hidden
        hl, cl, hr, cr = x.split(n, 1)
        i, fl, fr, o, u = gates.split(n, 1)
        gh, gc = g[:, :n], g[:, n:]
        dc = gc + gh * o * (1 - squashed * squashed)
        d = g.new_empty(g.shape[0], 5 * n)
        d[:, :n] = dc * u * i * (1 - i)
        d[:, n : 2 * n] = dc * cl * fl * (1 - fl)
        d[:, 2 * n : 3 * n] = dc * cr * fr * (1 - fr)
        d[:, 3 * n : 4 * n] = gh * squashed * o * (1 - o)
        d[:, 4 * n :] = dc * i * (1 - u * u)
        add_linear(sums, d, hl)
        add_linear(sums, d, hr, 2, None)
        return torch.cat((d @ w[0], dc * fl, d @ w[2], dc * fr), 1)

    def describe(self) -> str:
        return f"Tree-LSTM branch {self.n_hidden}"
