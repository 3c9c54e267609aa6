"""Gates: what recurrent cells compute behind their products, element by element, forward and backward.

    Gru     r, z = sigmoid(gi + gh)    n = tanh(gi_n + r gh_n)    h' = (1 - z) n + z h
    Cell    c' = i u + sum of f_k c_k          h' = o tanh(c')        an LSTM has one c, a Tree-LSTM none or two

Natively gates are one pass over memory (`ampnet.native`), in torch some ten calls. What is kept lies apart, each
without gaps: torch is several times faster on such memory where rows are narrow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.native import calls
from ampnet.nodes.squash import tanh, tanh_

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


def gru(gi: Tensor, gh: Tensor, h: Tensor, kept: tuple[Tensor, Tensor, Tensor, Tensor], y: Tensor) -> None:
    """The new states ``y``, from the products with the input and with the states ``h``. ``kept``: r, z, n and the
    state's part of n, to be written."""
    r, z, new, hn = kept
    if calls.gru_forward(gi, gh, h, r, z, new, hn, y):
        return
    n = y.shape[1]
    torch.add(gi[:, :n], gh[:, :n], out=r).sigmoid_()
    torch.add(gi[:, n : 2 * n], gh[:, n : 2 * n], out=z).sigmoid_()
    hn.copy_(gh[:, 2 * n :])
    tanh_(torch.addcmul(gi[:, 2 * n :], r, hn, out=new))
    torch.lerp(new, h, z, out=y)


def gru_back(
    g: Tensor, h: Tensor, kept: tuple[Tensor, Tensor, Tensor, Tensor], di: Tensor, dh: Tensor, through: Tensor
) -> None:
    """The gradients ``di`` and ``dh`` of both products, and ``through``, what goes to the states directly. Writes into
    ``g`` and ``kept``."""
    r, z, new, hn = kept
    if calls.gru_backward(g, h, r, z, new, hn, di, dh, through):
        return
    n = g.shape[1]
    torch.mul(g, z, out=through)
    _sigmoid_back((h - new).mul_(g), z, grad_input=di[:, n : 2 * n])
    d_new = _tanh_back(g.sub_(through), new, grad_input=new)
    torch.mul(d_new, r, out=dh[:, 2 * n :])
    di[:, 2 * n :] = d_new
    _sigmoid_back(hn.mul_(d_new), r, grad_input=di[:, :n])
    dh[:, : 2 * n] = di[:, : 2 * n]


class Cell:
    """The gates of a cell by their places, in widths of a state."""

    __slots__ = ("_native", "children", "f", "i", "o", "u")

    def __init__(self, i: int, u: int, o: int, f: int = 0, children: int = 0) -> None:
        """``f``: the first of the forget gates, one for each of the ``children``."""
        self.i, self.u, self.o, self.f, self.children = i, u, o, f, children
        self._native = calls.CellGates(i, u, o, f, children)

    def run(self, gates: Tensor, c: Tensor | None, y: Tensor, squashed: Tensor) -> None:
        """From the products, in place, and the children's cells: ``y = [h, c]``, and tanh(c)."""
        if self._native.forward(gates, c, y, squashed):
            return
        n = squashed.shape[1]
        i, u, o = (gates[:, n * at : n * at + n] for at in (self.i, self.u, self.o))
        cell = y[:, n:]
        torch.mul(i.sigmoid_(), tanh_(u), out=cell)
        for child in range(self.children):
            assert c is not None
            cell.addcmul_(self._forget(gates, child, n).sigmoid_(), c[:, n * child : n * child + n])
        tanh(cell, out=squashed)
        torch.mul(o.sigmoid_(), squashed, out=y[:, :n])

    def back(self, gates: Tensor, c: Tensor | None, squashed: Tensor, g: Tensor, dcs: Tensor | None) -> None:
        """From the gradient ``g`` of ``y``: the gradients of the products, in their place, and in ``dcs`` those of the
        children's cells, if they are wanted. Writes into ``g`` and ``squashed``."""
        if self._native.backward(gates, c, squashed, g, dcs):
            return
        n = squashed.shape[1]
        i, u, o = (gates[:, n * at : n * at + n] for at in (self.i, self.u, self.o))
        gh, dc = g[:, :n], g[:, n:]
        through = gh * o
        _sigmoid_back(gh.mul_(squashed), o, grad_input=o)
        dc += _tanh_back(through, squashed, grad_input=squashed)
        for child in range(self.children):
            assert c is not None
            columns, f = slice(n * child, n * child + n), self._forget(gates, child, n)
            if dcs is not None:
                torch.mul(dc, f, out=dcs[:, columns])
            _sigmoid_back(dc * c[:, columns], f, grad_input=f)
        d_u = dc * i
        _sigmoid_back(dc.mul_(u), i, grad_input=i)
        _tanh_back(d_u, u, grad_input=u)

    def _forget(self, gates: Tensor, child: int, n: int) -> Tensor:
        start = n * (self.f + child)
        return gates[:, start : start + n]
