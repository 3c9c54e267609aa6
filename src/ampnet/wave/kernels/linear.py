"""Linear: the fully connected layer over all rows of a wave, of one part or of several side by side.

    y = act(W_1 x_1 + W_2 x_2 + ... + b)         nothing is put side by side: each part has its columns of W

A part of which there are fewer different rows than rows (words of a small vocabulary) is multiplied first, and the
products are looked up:

    P = X W_1' + b      one row for every different x       y_i = P[i] + W_2 x_2
    backward            the gradients that belong to one row of P are added up before they are multiplied
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.nodes.linear import ACTIVATIONS, Linear
from ampnet.wave.arena import Read
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.layout import Layout, Operation, Whole

_relu_back = torch.ops.aten.threshold_backward.grad_input
_BACK = {
    "relu": lambda g, y: _relu_back(g, y, 0, grad_input=g),
    "tanh": lambda g, y: torch.ops.aten.tanh_backward.grad_input(g, y, grad_input=g),
    "sigmoid": lambda g, y: torch.ops.aten.sigmoid_backward.grad_input(g, y, grad_input=g),
}
"""From (g, y), in place of g."""


class LinearKernel(Kernel):
    """`Linear` nodes."""

    def begin(self, layout: Layout, whole: Whole, train: bool) -> None:
        super().begin(layout, whole, train)
        self._ready = False

    def _get_ready(self) -> None:
        """When what it reads has been made for the first time, and so widths are known."""
        node = self.site.node
        assert isinstance(node, Linear)
        self._ready = True
        w = self.weights
        self._act = None if node.activation is None else (ACTIVATIONS[node.activation][0], _BACK[node.activation])
        bias = w[1] if len(w) > 1 else None
        self._parts: list[tuple[int, tuple[int, int] | None, Tensor]] = []
        """Number, columns read, and its columns of the weights."""
        self._looked_up: int | None = None
        start = 0
        for i, part in enumerate(self.site.parts):
            data = self.whole.reads[i].arena.data
            assert data is not None
            width = data.shape[-1] if part.columns is None else part.columns[1] - part.columns[0]
            self._parts.append((i, part.columns, w[0][:, start : start + width]))
            start += width
        node.check_rows(self._some_rows(start), start, w[0].dtype)
        self._y = self.out.open((w[0].shape[0],), w[0])
        rows = self.whole.stop - self.whole.start
        for i, columns, weight in self._parts:
            arena = self.whole.reads[i].arena
            if arena.inverse is not None and arena.data is not None and 2 * len(arena.data) <= rows:
                self._looked_up = i
                table = arena.data if columns is None else arena.data[:, columns[0] : columns[1]]
                products = table @ weight.t() if bias is None else torch.addmm(bias, table, weight.t())
                self._places = self.whole.reads[i].places()
                assert self._places is not None
                torch.index_select(products, 0, self._places, out=self._y[self.whole.start : self.whole.stop])
                break
        self._dense = [(i, c, weight) for i, c, weight in self._parts if i != self._looked_up]
        self._bias = bias if self._looked_up is None else None
        self._x: list[Tensor | None] = [None] * len(self._parts)
        """The rows of each part, one operation after the other, where they had to be copied together."""
        for i, columns, weight in self._dense:
            read = self.whole.reads[i]
            if read.places() is not None:
                width = weight.shape[1]
                self._x[i] = self.take(f"x{i}", len(read), width, w[0])

    def _some_rows(self, width: int) -> Tensor:
        data = self.whole.reads[0].arena.data
        assert data is not None
        return data.new_empty(0, width)

    def forward(self, op: Operation) -> None:
        if not self._ready:
            self._get_ready()
        y = self._y[op.start : op.stop]
        begun = self._looked_up is not None
        for i, columns, weight in self._dense:
            if begun and self._x[i] is None and op.reads[i].blank:
                continue
            x = self._rows(i, columns, op)
            if begun:
                y.addmm_(x, weight.t())
            elif self._bias is not None:
                torch.addmm(self._bias, x, weight.t(), out=y)
            else:
                torch.mm(x, weight.t(), out=y)
            begun = True
        if self._act is not None:
            self._act[0](y)

    def _rows(self, i: int, columns: tuple[int, int] | None, op: Operation) -> Tensor:
        read, kept = op.reads[i], self._x[i]
        data = read.arena.data
        assert data is not None
        if columns is not None:
            data = data[:, columns[0] : columns[1]]
        places = read.places()
        if places is None:
            x = data[read.start : read.stop]
            if kept is not None:  # others of the site's operations do not read neighbours
                kept[op.start - self.whole.start : op.stop - self.whole.start].copy_(x)
            return x
        assert kept is not None
        into = kept[op.start - self.whole.start : op.stop - self.whole.start]
        return torch.index_select(data, 0, places, out=into)

    def backward(self, op: Operation) -> None:
        g = self.gradient(op)
        if self._act is not None:
            self._act[1](g, self._y[op.start : op.stop])
        for i, columns, weight in self._dense:
            op.reads[i].add_product(g, weight, columns)

    def finish(self) -> None:
        if not self._ready:
            return
        sums = self.sums
        g = self.out.gradient()[self.whole.start : self.whole.stop]
        start = 0
        summed = False
        for i, columns, weight in self._parts:
            width = weight.shape[1]
            start += width
            if i == self._looked_up:
                self._finish_looked_up(i, columns, weight, g, sums[0][:, start - width : start])
                summed = True
                continue
            x = self._x[i]
            if x is None:
                x = self._slice(self.whole.reads[i], columns)
            if len(self._parts) == 1:
                sums.add_whole(g, x)
            else:
                add_product(sums[0][:, start - width : start], g, x)
        if len(sums) > 1 and not summed:
            sums[1].add_(g.sum(0, dtype=sums[1].dtype))

    def _slice(self, read: Read, columns: tuple[int, int] | None) -> Tensor:
        data = read.arena.data
        assert data is not None
        x = data[read.start : read.stop]
        return x if columns is None else x[:, columns[0] : columns[1]]

    def _finish_looked_up(
        self, i: int, columns: tuple[int, int] | None, weight: Tensor, g: Tensor, total: Tensor
    ) -> None:
        arena = self.whole.reads[i].arena
        assert arena.data is not None
        assert self._places is not None
        by_row = g.new_zeros(len(arena.data), g.shape[1]).index_add_(0, self._places, g)
        table = arena.data if columns is None else arena.data[:, columns[0] : columns[1]]
        add_product(total, by_row, table)
        if len(self.sums) > 1:
            self.sums[1].add_(by_row.sum(0, dtype=self.sums[1].dtype))
        if arena.moved:
            into = arena.gradient()
            (into if columns is None else into[:, columns[0] : columns[1]]).addmm_(by_row, weight)


def add_product(total: Tensor, g: Tensor, x: Tensor) -> None:
    """``total += g' x``."""
    if total.dtype == g.dtype:
        total.addmm_(g.t(), x)
    else:  # the sum is wider than the rows (bfloat16)
        total.add_(g.t() @ x)
