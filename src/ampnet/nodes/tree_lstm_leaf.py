"""TreeLstmLeaf: the Tree-LSTM cell at a leaf, where there are no children and hence no forget gates.

forward    i, o, u = x W' + b   (sigmoid, sigmoid, tanh)      c = i u      h = o tanh(c)
           keeps x, the gates and tanh(c)
backward   dc = dc + dh o (1 - tanh(c)^2), then each gate, whose gradient takes its place, then the product
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.nodes.gates import Cell
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised

_CELL = Cell(i=0, u=2, o=1)


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

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return (2 * self.n_hidden,)

    def check(self, x: Tensor) -> None:
        self.check_rows(x, self.n_input, self.updater.weights[0].dtype)

    def run(self, span: Span) -> None:
        n, w, y = self.n_hidden, span.w, span.y
        gates, squashed = span.keep("gates", 3 * n), span.keep("squashed", n)
        span.products.set(gates, span.x(0), w[0].t(), w[1])
        _CELL.run(gates, None, y, squashed)

    def back(self, span: Span) -> None:
        gates, squashed = span.kept("gates"), span.kept("squashed")
        _CELL.back(gates, None, squashed, span.g, None)
        span.add_product(0, gates, span.w[0])

    def collect(self, span: Span) -> None:
        gates = span.keep("gates", 3 * self.n_hidden)
        span.products.add_weight(span.sums, gates, span.x(0))
        span.sums.add_rows(gates, 1)

    def describe(self) -> str:
        return f"Tree-LSTM leaf {self.n_input}→{self.n_hidden}"
