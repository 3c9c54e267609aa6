"""LstmCell: the long short-term memory cell, on rows ``[x, h, c]``, giving rows ``[h', c']``.

forward    i, f, g, o = x Wi' + bi + h Wh' + bh   (sigmoid, sigmoid, tanh, sigmoid)
           c' = f c + i g                         h' = o tanh(c')
           keeps [x, h, c], the gates and tanh(c')
backward   dc = dc' + dh' o (1 - tanh(c')^2), then each gate, then both products
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


class LstmCell(Parameterised):
    """`torch.nn.LSTMCell` on rows ``[x, h, c]``; gives ``[h', c']`` (a Split behind takes them apart)."""

    def __init__(self, module: nn.LSTMCell, key: Sequence[str] | None = None) -> None:
        super().__init__(module, key)
        self.n_input, self.n_hidden, self.bias = module.input_size, module.hidden_size, module.bias

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, n = self.n_input, self.n_hidden
        return x[:, :k], x[:, k : k + n], x[:, k + n :]

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, self.n_input + 2 * self.n_hidden, w[0].dtype)
        n = self.n_hidden
        value, h, c = self._parts(x)
        bi, bh = (w[2], w[3]) if self.bias else (None, None)
        gates = nn.functional.linear(value, w[0], bi) + nn.functional.linear(h, w[1], bh)
        gates[:, : 2 * n].sigmoid_()
        gates[:, 2 * n : 3 * n].tanh_()
        gates[:, 3 * n :].sigmoid_()
        i, f, u, o = gates.split(n, 1)
        out = x.new_empty(x.shape[0], 2 * n)
        cell = out[:, n:]
        torch.addcmul(i * u, f, c, out=cell)
        squashed = cell.tanh()
        torch.mul(o, squashed, out=out[:, :n])
        return out, (x, gates, squashed)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sums) -> Tensor:
        x, gates, squashed = kept[0], kept[1], kept[2]
        n = self.n_hidden
        value, h, c = self._parts(x)
        i, f, u, o = gates.split(n, 1)
        gh, gc = g[:, :n], g[:, n:]
        dc = gc + gh * o * (1 - squashed * squashed)
        d = g.new_empty(g.shape[0], 4 * n)
        d[:, :n] = dc * u * i * (1 - i)
        d[:, n : 2 * n] = dc * c * f * (1 - f)
        d[:, 2 * n : 3 * n] = dc * i * (1 - u * u)
        d[:, 3 * n :] = gh * squashed * o * (1 - o)
        add_linear(sums, d, value, 0, 2)
        add_linear(sums, d, h, 1, 3)
        return torch.cat((d @ w[0], d @ w[1], dc * f), 1)

    def reference(self, x: Tensor) -> Tensor:
        value, h, c = self._parts(x)
        return torch.cat(self.module(value, (h, c)), 1)

    def describe(self) -> str:
        return f"LSTM cell {self.n_input}+{self.n_hidden}"
