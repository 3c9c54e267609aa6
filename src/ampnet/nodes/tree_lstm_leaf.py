"""TreeLstmLeaf: the Tree-LSTM cell at a leaf, where there are no children and hence no forget gates.

forward    i, o, u = x W' + b   (sigmoid, sigmoid, tanh)      c = i u      h = o tanh(c)
           keeps x, the gates and tanh(c)
backward   dc = dc + dh o (1 - tanh(c)^2), then each gate, then the product
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


class TreeLeafCell(nn.Module):
    """The leaf cell in plain torch: ``x -> [h, c]``."""

    def __init__(self, input_size: int, hidden_size: int, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        self.gates = nn.Linear(input_size, 3 * hidden_size, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        i, o, u = self.gates(x).chunk(3, -1)
        c = i.sigmoid() * u.tanh()
        return torch.cat((o.sigmoid() * c.tanh(), c), -1)


class TreeLstmLeaf(Parameterised):
    """`TreeLeafCell` on rows ``x``; gives ``[h, c]``."""

    def __init__(self, module: TreeLeafCell, key: Sequence[str] | None = None) -> None:
        super().__init__(module, key)
        self.n_input, self.n_hidden = module.input_size, module.hidden_size

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, self.n_input, w[0].dtype)
        n = self.n_hidden
        gates = nn.functional.linear(x, w[0], w[1])
        gates[:, : 2 * n].sigmoid_()
        gates[:, 2 * n :].tanh_()
        i, o, u = gates.split(n, 1)
        out = x.new_empty(x.shape[0], 2 * n)
        torch.mul(i, u, out=out[:, n:])
        squashed = out[:, n:].tanh()
        torch.mul(o, squashed, out=out[:, :n])
        return out, (x, gates, squashed)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sums) -> Tensor:
        x, gates, squashed = kept[0], kept[1], kept[2]
        n = self.n_hidden
        i, o, u = gates.split(n, 1)
        gh, gc = g[:, :n], g[:, n:]
        dc = gc + gh * o * (1 - squashed * squashed)
        d = g.new_empty(g.shape[0], 3 * n)
        d[:, :n] = dc * u * i * (1 - i)
        d[:, n : 2 * n] = gh * squashed * o * (1 - o)
        d[:, 2 * n :] = dc * i * (1 - u * u)
        add_linear(sums, d, x)
        return d @ w[0]

    def describe(self) -> str:
        return f"Tree-LSTM leaf {self.n_input}→{self.n_hidden}"
