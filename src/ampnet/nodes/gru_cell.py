"""GruCell: the gated recurrent unit, on rows ``[x, h]``.

forward    r, z = sigmoid(x Wi' + bi + h Wh' + bh)       hn = h Wh_n' + bh_n
           n = tanh(x Wi_n' + bi_n + r hn)               h' = (1 - z) n + z h
           keeps [x, h], r, z, n, hn
backward   through the same equations, gates first, then both products
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


class GruCell(Parameterised):
    """`torch.nn.GRUCell` on rows ``[x, h]`` (put a Concat in front); gives ``h'``."""

    def __init__(self, module: nn.GRUCell, key: Sequence[str] | None = None) -> None:
        super().__init__(module, key)
        self.n_input, self.n_hidden, self.bias = module.input_size, module.hidden_size, module.bias

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        self.check_rows(x, self.n_input + self.n_hidden, w[0].dtype)
        n = self.n_hidden
        value, h = x[:, : self.n_input], x[:, self.n_input :]
        bi, bh = (w[2], w[3]) if self.bias else (None, None)
        gi, gh = nn.functional.linear(value, w[0], bi), nn.functional.linear(h, w[1], bh)
        rz = (gi[:, : 2 * n] + gh[:, : 2 * n]).sigmoid_()
        hn = gh[:, 2 * n :]
        new = torch.addcmul(gi[:, 2 * n :], rz[:, :n], hn).tanh_()
        out = torch.lerp(new, h, rz[:, n:])
        return out, (x, rz, new, hn)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sums) -> Tensor:
        x, rz, new, hn = kept[0], kept[1], kept[2], kept[3]
        n = self.n_hidden
        value, h, r, z = x[:, : self.n_input], x[:, self.n_input :], rz[:, :n], rz[:, n:]
        d_new = g * (1 - z) * (1 - new * new)
        d_in = g.new_empty(g.shape[0], 3 * n)
        d_in[:, :n] = d_new * hn * r * (1 - r)
        d_in[:, n : 2 * n] = g * (h - new) * z * (1 - z)
        d_in[:, 2 * n :] = d_new
        d_hidden = d_in.clone()
        d_hidden[:, 2 * n :] *= r
        add_linear(sums, d_in, value, 0, 2)
        add_linear(sums, d_hidden, h, 1, 3)
        return torch.cat((d_in @ w[0], torch.addcmul(d_hidden @ w[1], g, z)), 1)

    def reference(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x[:, : self.n_input], x[:, self.n_input :])
        return out

    def describe(self) -> str:
        return f"GRU cell {self.n_input}+{self.n_hidden}"
