"""Linear: the fully connected layer over all rows of a wave, of one part or of several side by side.

    y = act(W_1 x_1 + W_2 x_2 + ... + b)         nothing is put side by side: each part has its columns of W

A part of which there are fewer different rows than rows (words of a small vocabulary) is multiplied first, and the
products are looked up:

    P = X W_1' + b      one row for every different x       y_i = P[i] + W_2 x_2
    backward            the gradients that belong to one row of P are added up before they are multiplied
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ampnet.nodes.linear import ACTIVATIONS, Linear
from ampnet.wave.arena import Read
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.squash import tanh_
from ampnet.wave.layout import Operation

_relu_back = torch.ops.aten.threshold_backward.grad_input
_tanh_back = torch.ops.aten.tanh_backward.grad_input
_sigmoid_back = torch.ops.aten.sigmoid_backward.grad_input


@dataclass(slots=True, eq=False)
class _Part:
    """One of the rows side by side."""

    number: int
    columns: tuple[int, int] | None
    """Of the rows that are read."""
    start: int
    stop: int
    """Its columns of the weights."""
    weight: Tensor
    turned: Tensor
    """The same, transposed."""
    copies: Tensor | None = None
    """The rows of all operations one after the other, where they had to be copied together."""


@dataclass(slots=True, eq=False)
class _Ready:
    """What is known of a layout once the rows that are read have been made."""

    y: Tensor
    dense: list[_Part] = field(default_factory=list)
    looked_up: _Part | None = None
    places: Tensor | None = None
    """Which product each row has."""


class LinearKernel(Kernel):
    """`Linear` nodes."""

    taped = True

    def _get_ready(self) -> _Ready:
        node = self.site.node
        assert isinstance(node, Linear)
        w, whole = self.weights, self.whole
        rows, start = whole.stop - whole.start, 0
        parts: list[_Part] = []
        for i, given in enumerate(self.site.parts):
            data = whole.reads[i].arena.data
            assert data is not None
            width = data.shape[-1] if given.columns is None else given.columns[1] - given.columns[0]
            weight = w[0][:, start : start + width]
            parts.append(_Part(i, given.columns, start, start + width, weight, weight.t()))
            start += width
            if data.dtype != w[0].dtype or data.dim() != 2:
                node.check_rows(data, -1, w[0].dtype)
        node.check_rows(w[0].new_empty(0, start), node.width, w[0].dtype)
        ready = _Ready(self.out.open((w[0].shape[0],), w[0]))
        for part in parts:
            arena = whole.reads[part.number].arena
            assert arena.data is not None
            if arena.table and arena.inverse is not None and ready.looked_up is None and 2 * len(arena.data) <= rows:
                ready.looked_up = part
                continue
            ready.dense.append(part)
            if whole.reads[part.number].places() is not None:
                part.copies = self.take(f"x{part.number}", rows, part.stop - part.start, w[0])
        return ready

    def forward(self, op: Operation) -> None:
        ready = self.whole.state
        if not isinstance(ready, _Ready):
            ready = self.whole.state = self._get_ready()
        do, w = self.do, self.weights
        bias = w[1] if len(w) > 1 else None
        if ready.looked_up is not None and op.first:
            self._look_up(ready, bias)
        y = ready.y[op.start : op.stop]
        begun = ready.looked_up is not None
        for part in ready.dense:
            read = op.reads[part.number]
            if begun and part.copies is None and read.blank:
                continue
            x = self._rows(part, read, op)
            if begun:
                do(self.products.add, y, x, part.turned)
            else:
                do(self.products.set, y, x, part.turned, bias)
            begun = True
        node = self.site.node
        assert isinstance(node, Linear)
        if node.activation is not None:
            do(tanh_ if node.activation == "tanh" else ACTIVATIONS[node.activation][0], y)

    def _look_up(self, ready: _Ready, bias: Tensor | None) -> None:
        """The products of all different rows, then those of all rows."""
        part, do = ready.looked_up, self.do
        assert part is not None
        table = self._table(part)
        products = self.take("products", len(table), ready.y.shape[1], ready.y)
        do(self.products.set, products, table, part.turned, bias)
        do(self._fetch, ready, products, self.whole.reads[part.number], ready.y[self.whole.start : self.whole.stop])

    @staticmethod
    def _fetch(ready: _Ready, products: Tensor, read: Read, y: Tensor) -> None:
        ready.places = read.places()
        assert ready.places is not None
        torch.index_select(products, 0, ready.places, out=y)

    def _table(self, part: _Part) -> Tensor:
        data = self.whole.reads[part.number].arena.data
        assert data is not None
        return data if part.columns is None else data[:, part.columns[0] : part.columns[1]]

    def _rows(self, part: _Part, read: Read, op: Operation) -> Tensor:
        data = self._table(part)
        if part.copies is None:
            return data[read.start : read.stop]
        into = part.copies[op.start - self.whole.start : op.stop - self.whole.start]
        self.do(self._copy, data, read, into)
        return into

    @staticmethod
    def _copy(data: Tensor, read: Read, into: Tensor) -> None:
        places = read.places()
        if places is None:  # others of the site's operations do not read neighbours
            into.copy_(data[read.start : read.stop])
        else:
            torch.index_select(data, 0, places, out=into)

    def backward(self, op: Operation) -> None:
        ready, g, node = self.whole.state, self.gradient(op), self.site.node
        assert isinstance(ready, _Ready)
        assert isinstance(node, Linear)
        y = ready.y[op.start : op.stop]
        if node.activation == "relu":
            self.do(_relu_back, g, y, 0, grad_input=g)
        elif node.activation == "tanh":
            self.do(_tanh_back, g, y, grad_input=g)
        elif node.activation == "sigmoid":
            self.do(_sigmoid_back, g, y, grad_input=g)
        for part in ready.dense:
            self.add_product(op.reads[part.number], g, part.weight, part.columns)

    def finish(self) -> None:
        ready, sums = self.whole.state, self.sums
        assert isinstance(ready, _Ready)
        g = self.out.gradient()[self.whole.start : self.whole.stop]
        if self._go_direct(ready, g):
            return
        only = ready.looked_up is None and len(ready.dense) == 1
        for part in ready.dense:
            x = part.copies
            if x is None:
                read = self.whole.reads[part.number]
                x = self._table(part)[read.start : read.stop]
            if only:
                self.products.add_weight(sums, g, x)
            else:
                self.products.add_part(sums[0][:, part.start : part.stop], g, x)
        if ready.looked_up is not None:
            g = self._finish_looked_up(ready, ready.looked_up, g)
        if len(sums) > 1:
            sums[1].add_(g.sum(0, dtype=sums[1].dtype))

    def _go_direct(self, ready: _Ready, g: Tensor) -> bool:
        """Add to the weights themselves, where the updater lets us and all of it is one product."""
        node = self.site.node
        assert isinstance(node, Linear)
        rate = node.updater.direct
        if rate is None or self.products.narrow or node.sites > 1:
            return False
        if ready.looked_up is not None or len(ready.dense) > 1:
            return False
        (part,), w = ready.dense, self.weights
        x, read = part.copies, self.whole.reads[part.number]
        w[0].addmm_(g.t(), self._table(part)[read.start : read.stop] if x is None else x, alpha=rate)
        if len(w) > 1:
            w[1].add_(g.sum(0), alpha=rate)
        node.updater.went_direct()
        return True

    def _finish_looked_up(self, ready: _Ready, part: _Part, g: Tensor) -> Tensor:
        """Returns the gradients of the products."""
        table = self._table(part)
        assert ready.places is not None
        by_row = self.take("by row", len(table), g.shape[1], g).zero_().index_add_(0, ready.places, g)
        self.products.add_part(self.sums[0][:, part.start : part.stop], by_row, table)
        arena, columns = self.whole.reads[part.number].arena, part.columns
        if arena.moved:
            into = arena.gradient()
            (into if columns is None else into[:, columns[0] : columns[1]]).addmm_(by_row, part.weight)
        return by_row
