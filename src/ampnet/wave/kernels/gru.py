"""GruCell: the gated recurrent unit over all rows of a wave; ``x`` and ``h`` are read where they lie.

    forward    gi = x Wi' + bi     gh = h Wh' + bh     r, z = sigmoid(gi + gh)     hn = gh_n
               n = tanh(gi_n + r hn)     h' = n + z (h - n)
    backward   through the same equations; both products once for each operation, the weights' at the end

Products have the gates side by side, as the weights have them; r, z, n and hn are kept apart, each without gaps: what
runs element by element is several times faster on such memory where rows are narrow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.nodes.gru_cell import GruCell
from ampnet.wave.arena import Read
from ampnet.wave.kernels.kernel import Kernel
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
        self._rz = self.take("rz", 2 * rows, n, w[0]).view(2, rows, n)
        self._new, self._hn = self.take("new", rows, n, w[0]), self.take("hn", rows, n, w[0])
        self._gi, self._gh = self.take("gi", rows, 3 * n, w[0]), self.take("gh", rows, 3 * n, w[0])
        """The products; in the backward, their gradients."""
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
        gi, gh = self._gi[a:b], self._gh[a:b]
        r, z, new, hn = self._rz[0, a:b], self._rz[1, a:b], self._new[a:b], self._hn[a:b]
        bi, bh = (w[2], w[3]) if len(w) > 2 else (None, None)
        self.products.set(gi, x, w[0].t(), bi)
        self.products.set(gh, h, w[1].t(), bh)
        torch.add(gi[:, :n], gh[:, :n], out=r).sigmoid_()
        torch.add(gi[:, n : 2 * n], gh[:, n : 2 * n], out=z).sigmoid_()
        hn.copy_(gh[:, 2 * n :])
        tanh_(torch.addcmul(gi[:, 2 * n :], r, hn, out=new))
        torch.lerp(new, h, z, out=self._y[op.start : op.stop])

    def backward(self, op: Operation) -> None:
        n, w = self._n, self.weights
        a, b = op.start - self.whole.start, op.stop - self.whole.start
        g, di, dh = self.gradient(op), self._gi[a:b], self._gh[a:b]
        r, z, new, hn = self._rz[0, a:b], self._rz[1, a:b], self._new[a:b], self._hn[a:b]
        h = self._copies[1][a:b] if 1 in self._copies else op.reads[1].rows()
        through = g * z
        _sigmoid_back((h - new).mul_(g), z, grad_input=di[:, n : 2 * n])
        d_new = _tanh_back(g.sub_(through), new, grad_input=new)
        torch.mul(d_new, r, out=dh[:, 2 * n :])
        di[:, 2 * n :] = d_new
        _sigmoid_back(hn.mul_(d_new), r, grad_input=di[:, :n])
        dh[:, : 2 * n] = di[:, : 2 * n]
        if op.reads[1].moved:
            self.products.add(through, dh, w[1])
            op.reads[1].add(through)
        self.add_product(op.reads[0], di, w[0])

    def finish(self) -> None:
        sums, di, dh = self.sums, self._gi, self._gh
        self.products.add_weight(sums, di, self._all(0))
        self.products.add_weight(sums, dh, self._all(1), 1)
        if len(sums) > 2:
            sums[2].add_(di.sum(0, dtype=sums[2].dtype))
            sums[3].add_(dh.sum(0, dtype=sums[3].dtype))
