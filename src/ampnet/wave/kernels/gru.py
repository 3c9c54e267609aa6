"""GruCell: the gated recurrent unit over all rows of a wave; ``x`` and ``h`` are read where they lie.

    forward    gates = x Wi' + b      gates_rz += h Wh_rz'      hn = h Wh_n' + bh_n
               r, z = sigmoid(gates_rz)     n = tanh(gates_n + r hn)     h' = n + z (h - n)
    backward   through the same equations; both products once for each operation, the weights' at the end
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.nodes.gru_cell import GruCell
from ampnet.wave.arena import Read
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.linear import add_product
from ampnet.wave.kernels.squash import tanh_
from ampnet.wave.layout import Layout, Operation, Whole

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


class GruKernel(Kernel):
    """`GruCell` nodes behind a Concat."""

    def begin(self, layout: Layout, whole: Whole, train: bool) -> None:
        super().begin(layout, whole, train)
        node = self.site.node
        assert isinstance(node, GruCell)
        n, w = node.n_hidden, self.weights
        self._n, rows = n, whole.stop - whole.start
        self._y = self.out.open((n,), w[0])
        self._gates = self.take("gates", rows, 3 * n, w[0])
        """r, z and n."""
        self._hn = self.take("hn", rows, n, w[0])
        bias = None
        if node.bias:
            bias = w[2].clone()
            bias[: 2 * n] += w[3][: 2 * n]
        self._bias, self._bias_n = bias, w[3][2 * n :] if node.bias else None
        self._copies: dict[int, Tensor] = {}

    def _x(self, i: int, op: Operation) -> Tensor:
        """The rows of a part; copied together where they do not all lie in one slice."""
        if self.whole.reads[i].places() is None:
            return op.reads[i].rows()
        copies = self._copies.get(i)
        if copies is None:
            data = op.reads[i].arena.data
            assert data is not None
            copies = self._copies[i] = self.take(f"x{i}", self.whole.stop - self.whole.start, data.shape[1], data)
        at = copies[op.start - self.whole.start : op.stop - self.whole.start]
        return at.copy_(op.reads[i].rows())

    def _all(self, i: int) -> Tensor:
        read: Read = self.whole.reads[i]
        return self._copies[i] if i in self._copies else read.rows()

    def forward(self, op: Operation) -> None:
        n, w = self._n, self.weights
        x, h = self._x(0, op), self._x(1, op)
        a, b = op.start - self.whole.start, op.stop - self.whole.start
        gates, hn = self._gates[a:b], self._hn[a:b]
        if self._bias is not None:
            torch.addmm(self._bias, x, w[0].t(), out=gates)
            torch.addmm(self._bias_n, h, w[1][2 * n :].t(), out=hn)  # type: ignore[arg-type]
        else:
            torch.mm(x, w[0].t(), out=gates)
            torch.mm(h, w[1][2 * n :].t(), out=hn)
        rz, new = gates[:, : 2 * n], gates[:, 2 * n :]
        rz.addmm_(h, w[1][: 2 * n].t())
        rz.sigmoid_()
        tanh_(new.addcmul_(rz[:, :n], hn))
        torch.lerp(new, h, rz[:, n:], out=self._y[op.start : op.stop])

    def backward(self, op: Operation) -> None:
        n, w = self._n, self.weights
        a, b = op.start - self.whole.start, op.stop - self.whole.start
        g, gates, hn = self.gradient(op), self._gates[a:b], self._hn[a:b]
        r, z, new = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n :]
        h = self._copies[1][a:b] if 1 in self._copies else op.reads[1].rows()
        # What is kept is no longer needed once its gradient is there, and makes room for it.
        d_z = (h - new).mul_(g)
        through = g * z
        _sigmoid_back(d_z, z, grad_input=z)
        d_new = g.sub_(through)
        _tanh_back(d_new, new, grad_input=new)
        d_r = new * hn
        torch.mul(new, r, out=hn)
        _sigmoid_back(d_r, r, grad_input=r)
        if op.reads[1].moved:
            through.addmm_(gates[:, : 2 * n], w[1][: 2 * n]).addmm_(hn, w[1][2 * n :])
            op.reads[1].add(through)
        op.reads[0].add_product(gates, w[0])

    def finish(self) -> None:
        n, sums = self._n, self.sums
        d, dn, h = self._gates, self._hn, self._all(1)
        sums.add_whole(d, self._all(0))
        add_product(sums[1][: 2 * n], d[:, : 2 * n], h)
        add_product(sums[1][2 * n :], dn, h)
        if len(sums) > 2:
            total = d.sum(0, dtype=sums[2].dtype)
            sums[2].add_(total)
            sums[3][: 2 * n].add_(total[: 2 * n])
            sums[3][2 * n :].add_(dn.sum(0, dtype=sums[3].dtype))
