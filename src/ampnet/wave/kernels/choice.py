"""Choice: Linear layers of one shape, of which each row goes through one (`choose` among experts), as one operation.

    rows by layer    [ layer 0 | layer 1 | layer 2 ]       neighbours in the arena they are made in
    forward          all rows are brought together once; a product for each layer; the activation once
    backward         the same way back: one product for each layer, and their gradients are handed on once

Each layer keeps its own weights, sums, counts and updates. An operation for each layer would compute the same; with few
rows a layer it would take several times as long.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from ampnet.native import calls
from ampnet.nodes.linear import Linear
from ampnet.plan.layout import Operation
from ampnet.wave.arena import add_back, fetch, through
from ampnet.wave.kernels.kernel import Kernel


class ChoiceKernel(Kernel):
    """The Linears of a choice. The site is that of the first of them in the wave."""

    tapes = True

    def begin(self) -> None:
        members = self.whole.operations[0].members
        self.members = [(op, node) for op in members if isinstance(node := op.site.node, Linear)]
        self.playing = members[0]
        """The operation that is being computed, for error messages."""
        self.start, self.stop = members[0].start, members[-1].stop
        self._spans = [(op.start - self.start, op.stop - self.start) for op in members]
        self._index: Tensor | None = None
        self._places: Tensor | None = None
        reads = [op.reads[0] for op in members]
        neighbours = all(a.stop == b.start for a, b in itertools.pairwise(reads))
        self._straight = neighbours and all(read.index is None for read in reads)
        """Whether the rows that are read lie one after the other."""
        self._checked = False

    def _where(self) -> Tensor:
        """The indices of the rows that are read."""
        reads = [op.reads[0] for op, _ in self.members]
        inverse = reads[0].arena.inverse
        if self._index is None or self.layout.padded:
            like = reads[0].arena.rows_made
            places = [torch.arange(r.start, r.stop, device=like.device) if r.index is None else r.index for r in reads]
            self._index = torch.cat(places)
        if inverse is None:
            return self._index
        self._places = through(inverse, self._index, self._places)
        return self._places

    def forward(self, op: Operation) -> None:
        arena = op.reads[0].arena
        data, rows = arena.rows_made, self.stop - self.start
        for member, node in () if self._checked else self.members:
            self.playing = member
            node.check(torch.empty(len(member.reads[0]), *data.shape[1:], dtype=data.dtype, device="meta"))
        self._checked = True
        ws = [self.passage.weights(node) for _, node in self.members]
        y = self.out.open((*data.shape[1:-1], ws[0][0].shape[0]), ws[0][0])[self.start : self.stop]
        if self._straight and arena.inverse is None:
            first = op.reads[0].start
            x = data[first : first + rows]
        else:
            x = self.layout.pool.take((self.site.number, "x", "site"), (rows, *data.shape[1:]), data)
            fetch(x, data, self._where())
        for (a, b), w in zip(self._spans, ws, strict=True):
            self.passage.products.set(y[a:b], x[a:b], w[0].t(), w[1] if len(w) > 1 else None)
        self.members[0][1].squash(y)
        self._x, self._y = x, y

    def backward(self, op: Operation) -> None:
        g, read = self.out.gradient()[self.start : self.stop], op.reads[0]
        self.members[0][1].unsquash(g, self._y)
        self._g = g
        if not any(member.reads[0].moved for member, _ in self.members):
            return
        dx = self.layout.pool.take((self.site.number, "dx", "site"), self._x.shape, g)
        for (a, b), (_, node) in zip(self._spans, self.members, strict=True):
            self.passage.products.set(dx[a:b], g[a:b], self.passage.weights(node)[0])
        total = read.arena.gradient()
        if self._straight and read.arena.inverse is None:
            into = total[read.start : read.start + len(dx)]
            if not calls.add_back(into, dx, None):
                into.add_(dx)
        else:
            add_back(total, dx, self._where())

    def collect(self) -> None:
        for (a, b), (_, node) in zip(self._spans, self.members, strict=True):
            sums = self.passage.sums(node)
            self.passage.products.add_weight(sums, self._g[a:b], self._x[a:b])
            if len(sums) > 1:
                sums.add_rows(self._g[a:b], 1)
