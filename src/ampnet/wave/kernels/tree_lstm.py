"""Tree-LSTM: the cells of leaves and of branches over all rows of a wave.

Rows are ``[h, c]``. A branch reads the two rows of its parts where they lie: h of left and right side by side for the
product, c of both for the forget gates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.nodes.tree_lstm_branch import TreeLstmBranch
from ampnet.nodes.tree_lstm_leaf import TreeLstmLeaf
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.squash import tanh, tanh_
from ampnet.wave.layout import Layout, Operation, Whole

_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input


class LeafKernel(Kernel):
    """`TreeLstmLeaf` nodes."""

    def forward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, TreeLstmLeaf)
        n, w, arena = node.n_hidden, self.weights, op.reads[0].arena
        self._lifted = arena.inverse is not None and arena.data is not None and arena.data.shape[0] < len(op.reads[0])
        if self._lifted:  # each different word once
            assert arena.data is not None
            x = arena.data
        else:
            x = op.reads[0].rows()
        node.check_rows(x, node.n_input, w[0].dtype)
        rows = x.shape[0]
        y = self.out.open((2 * n,), w[0])[op.start : op.start + rows]
        gates, squashed = self.take("gates", rows, 3 * n, w[0]), self.take("squashed", rows, n, w[0])
        self.products.set(gates, x, w[0].t(), w[1])
        gates[:, : 2 * n].sigmoid_()
        tanh_(gates[:, 2 * n :])
        torch.mul(gates[:, :n], gates[:, 2 * n :], out=y[:, n:])
        tanh(y[:, n:], out=squashed)
        torch.mul(gates[:, n : 2 * n], squashed, out=y[:, :n])
        self._kept = (x, gates, squashed)
        if self._lifted:
            self.out.see_once(op.start, op.stop, op.reads[0])

    def backward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, TreeLstmLeaf)
        n = node.n_hidden
        x, gates, squashed = self._kept
        g = self.out.gradient()[op.start : op.start + x.shape[0]]
        i, o, u = gates[:, :n], gates[:, n : 2 * n], gates[:, 2 * n :]
        gh, dc = g[:, :n], g[:, n:]
        through = gh * o
        d_o = gh.mul_(squashed)
        _tanh_back(through, squashed, grad_input=squashed)
        dc += squashed
        d_u = dc * i
        d_i = dc.mul_(u)
        _sigmoid_back(d_i, i, grad_input=i)
        _sigmoid_back(d_o, o, grad_input=o)
        _tanh_back(d_u, u, grad_input=u)
        self.products.add_weight(self.sums, gates, x)
        self.sums[1].add_(gates.sum(0, dtype=self.sums[1].dtype))
        read = op.reads[0]
        if self._lifted and read.arena.moved:
            self.products.add(read.arena.gradient(), gates, self.weights[0])
        else:
            self.add_product(read, gates, self.weights[0])


class BranchKernel(Kernel):
    """`TreeLstmBranch` nodes that read two rows."""

    def begin(self, layout: Layout, whole: Whole, train: bool) -> None:
        super().begin(layout, whole, train)
        node = self.site.node
        assert isinstance(node, TreeLstmBranch)
        self._n, w, rows = node.n_hidden, self.weights, whole.stop - whole.start
        n = self._n
        self._y = self.out.open((2 * n,), w[0])
        self._h, self._c = self.take("h", rows, 2 * n, w[0]), self.take("c", rows, 2 * n, w[0])
        self._gates, self._squashed = self.take("gates", rows, 5 * n, w[0]), self.take("squashed", rows, n, w[0])
        # One product of [h_left, h_right] is quicker than two.
        self._w = torch.cat((w[0], w[2]), 1)

    def _places(self, op: Operation) -> Tensor:
        """Left and right of each row, by turns."""
        left, right = op.reads
        pair = [r.places() for r in (left, right)]
        both = [
            torch.arange(r.start, r.stop, device=self._w.device) if p is None else p
            for r, p in zip((left, right), pair, strict=True)
        ]
        return torch.stack(both, 1).flatten()

    def forward(self, op: Operation) -> None:
        n = self._n
        a, b = op.start - self.whole.start, op.stop - self.whole.start
        places = self._places(op)
        op.kept = (places,)
        data = op.reads[0].arena.data
        assert data is not None
        halves = data.view(-1, n)  # h of row i at 2 i, c at 2 i + 1
        h, c, gates, squashed = self._h[a:b], self._c[a:b], self._gates[a:b], self._squashed[a:b]
        torch.index_select(halves, 0, places * 2, out=h.view(-1, n))
        torch.index_select(halves, 0, places * 2 + 1, out=c.view(-1, n))
        self.products.set(gates, h, self._w.t(), self.weights[1])
        gates[:, : 4 * n].sigmoid_()
        u = tanh_(gates[:, 4 * n :])
        y = self._y[op.start : op.stop]
        cell = y[:, n:]
        torch.mul(gates[:, :n], u, out=cell)
        cell.addcmul_(gates[:, n : 2 * n], c[:, :n]).addcmul_(gates[:, 2 * n : 3 * n], c[:, n:])
        tanh(cell, out=squashed)
        torch.mul(gates[:, 3 * n : 4 * n], squashed, out=y[:, :n])

    def backward(self, op: Operation) -> None:
        n = self._n
        a, b = op.start - self.whole.start, op.stop - self.whole.start
        g, gates, squashed, c = self.gradient(op), self._gates[a:b], self._squashed[a:b], self._c[a:b]
        gh, dc = g[:, :n], g[:, n:]
        i, forget, o, u = gates[:, :n], gates[:, n : 3 * n], gates[:, 3 * n : 4 * n], gates[:, 4 * n :]
        through = gh * o
        d_o = gh.mul_(squashed)
        _tanh_back(through, squashed, grad_input=squashed)
        dc += squashed
        rows = b - a
        below = g.new_empty(rows, 2, 2, n)
        """Gradients of [h, c] of left and right."""
        both = dc.unsqueeze(1)
        torch.mul(both, forget.view(rows, 2, n), out=below[:, :, 1])
        d_f = both * c.view(rows, 2, n)
        _sigmoid_back(d_f.view(rows, 2 * n), forget, grad_input=forget)
        d_u = dc * i
        d_i = dc.mul_(u)
        _sigmoid_back(d_i, i, grad_input=i)
        _sigmoid_back(d_o, o, grad_input=o)
        _tanh_back(d_u, u, grad_input=u)
        below[:, :, 0] = self.products.of(gates, self._w).view(rows, 2, n)
        (places,) = op.kept
        assert places is not None
        if op.reads[0].arena.moved:
            op.reads[0].arena.gradient().index_add_(0, places, below.view(2 * rows, 2 * n))

    def finish(self) -> None:
        n, sums = self._n, self.sums
        self.products.add_weight(sums, self._gates, self._h[:, :n])
        self.products.add_weight(sums, self._gates, self._h[:, n:], 2)
        sums[1].add_(self._gates.sum(0, dtype=sums[1].dtype))
