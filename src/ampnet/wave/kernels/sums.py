"""Sums: rows added up, products of sums added up, and other reductions.

    bag        y_t = sum of x_i over the rows of t
    mixture    y_t = sum over k of W_k (sum of x_i over the rows of t and k)         one Linear for each k

A sum reads rows where they are and adds them where they belong, forwards and, by the links the other way round,
backwards: natively, or by torch's `embedding_bag`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.native import calls
from ampnet.nodes.pointwise import as_rows
from ampnet.nodes.reduce import Reduce, segment_logsumexp, segment_max
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Bag, Operation
from ampnet.state import States
from ampnet.wave.arena import fetch
from ampnet.wave.kernels.kernel import Kernel


def add_up(out: Tensor, rows: Tensor, index: Tensor, offsets: Tensor) -> None:
    """``out``: the sum of the rows of each target."""
    if not calls.sum_up(out, rows, index, offsets):
        out.copy_(_summed(rows, index, offsets))


def add_more(out: Tensor, rows: Tensor, index: Tensor, offsets: Tensor) -> None:
    """``out += the sum of the rows of each target``."""
    if not calls.sum_up(out, rows, index, offsets, add=True):
        out.add_(_summed(rows, index, offsets))


def _summed(rows: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """The sum of the rows of each target."""
    if rows.dim() == 2 and rows.is_floating_point() and rows.dtype != torch.bfloat16:
        return torch.embedding_bag(rows, index, offsets, False, 0, False, None, True)[0]
    targets = torch.repeat_interleave(offsets[1:] - offsets[:-1], output_size=index.shape[0])
    return rows.new_zeros(offsets.shape[0] - 1, *rows.shape[1:]).index_add_(0, targets, rows.index_select(0, index))


class BagKernel(Kernel):
    """`Reduce("sum")`."""

    tapes = True

    def forward(self, op: Operation) -> None:
        bag = op.bags[0]
        assert bag.arena.data is not None
        out = self.out.open(bag.arena.data.shape[1:], bag.arena.data)
        add_up(out[op.start : op.stop], bag.arena.data, bag.found(), bag.offsets)

    def backward(self, op: Operation) -> None:
        bag, read, g = op.bags[0], op.reads[0], self.gradient(op)
        if read.arena.inverse is not None or g.is_cuda or self.layout.padded or not read.moved:
            read.add(_spread(g, bag))
            return
        index, offsets, low, high = bag.turn()
        if low < high:
            add_more(read.arena.gradient()[low:high], g, index, offsets)


class MixtureKernel(Kernel):
    """A sum of products with plain Linears."""

    tapes = True

    def begin(self) -> None:
        self.nodes = [node for term in self.site.terms if isinstance(node := term.node, Parameterised)]
        like, rows = self.nodes[0].updater.weights[0], self.layout.arenas[self.site.parts[1].arena].rows
        self._pairs = self.take("pairs", rows, like.shape[1], like)
        """The sums of each Linear and target."""
        self._products = self.take("products", rows, like.shape[0], like)
        self._g = self.take("gradients", rows, like.shape[0], like)
        self._below = self.take("below", rows, like.shape[1], like)

    @property
    def _w(self) -> list[Tensor]:
        return [self.passage.weights(node)[0] for node in self.nodes]

    def forward(self, op: Operation) -> None:
        pairs, products, cuts, ws = op.bags[0], op.bags[1], op.cuts, self._w
        if pairs.arena.data is None:  # there is nothing to add up, anywhere
            self.out.put(op.start, op.stop, ws[0].new_zeros(op.stop - op.start, ws[0].shape[0]))
            return
        add_up(self._pairs[cuts[0] : cuts[-1]], pairs.arena.data, pairs.found(), pairs.offsets)
        for k, w in enumerate(ws):
            a, b = cuts[k], cuts[k + 1]
            if a < b:
                self.passage.products.set(self._products[a:b], self._pairs[a:b], w.t())
        out = self.out.open(self._products.shape[1:], self._products)
        add_up(out[op.start : op.stop], self._products, products.index, products.offsets)

    def backward(self, op: Operation) -> None:
        g, cuts = self.gradient(op), op.cuts
        back = op.bags[2]
        assert op.targets is not None
        fetch(self._g[cuts[0] : cuts[-1]], g, op.targets)
        arena = op.bags[0].arena
        low, high = op.back
        if not arena.moved or high <= arena.pumped:
            return
        below = self._below
        for k, w in enumerate(self._w):
            a, b = cuts[k], cuts[k + 1]
            if a < b:
                self.passage.products.set(below[a:b], self._g[a:b], w)
        total = arena.gradient()
        if arena.inverse is None:
            add_more(total[low:high], below, back.index, back.offsets)
        else:
            total.index_add_(0, arena.inverse[low:high], _summed(below, back.index, back.offsets))

    def collect(self) -> None:
        operations = self.whole.operations
        for k, node in enumerate(self.nodes):
            spans = [(op.cuts[k], op.cuts[k + 1]) for op in operations if op.cuts[k] < op.cuts[k + 1]]
            if len(spans) > 1 and calls.takes(self._g):
                for a, b in spans:  # without bringing them together
                    self.passage.products.add_weight(self.passage.sums(node), self._g[a:b], self._pairs[a:b])
                continue
            if not spans:
                continue
            g, x = (
                torch.cat([whole[a:b] for a, b in spans]) if len(spans) > 1 else whole[spans[0][0] : spans[0][1]]
                for whole in (self._g, self._pairs)
            )
            self.passage.products.add_weight(self.passage.sums(node), g, x)


class SegmentsKernel(Kernel):
    """Other reductions. Means and logs of sums are native calls on rows where they are."""

    tapes = True

    def begin(self) -> None:
        assert isinstance(self.site.node, Reduce)
        self.node = self.site.node
        sizes = (op.bags[0].offsets for op in self.whole.operations)
        full = all(bool((offsets[1:] > offsets[:-1]).all()) for offsets in sizes if not offsets.is_cuda)
        self._native = self.node.how == "mean" or (self.node.how == "logsumexp" and full)
        """Whether it is computed natively where the numbers allow it. A log of the sum of no rows is an error."""

    def _in_one_call(self, op: Operation) -> bool:
        bag = op.bags[0]
        data, index = bag.arena.data, bag.found()
        if not self._native or data is None or not calls.takes(data) or data.dim() > 2 or self.columns[0] is not None:
            return False
        out = as_rows(self.out.open(data.shape[1:], data)[op.start : op.stop])
        if self.node.how == "mean":
            return calls.mean(out, as_rows(data), index, bag.offsets)
        shares = self.take(f"shares {op.start}", len(index), out.shape[1], out)
        return calls.logsumexp(out, as_rows(data), index, bag.offsets, shares)

    def _back_in_one_call(self, op: Operation) -> bool:
        """The same backward, if the forward was one call."""
        bag, read, g = op.bags[0], op.reads[0], as_rows(self.gradient(op))
        if not read.moved:
            return True
        index = bag.found()
        total = as_rows(read.arena.gradient())
        if self.node.how == "mean":
            return calls.mean_back(total, g, index, bag.offsets)
        shares = self.take(f"shares {op.start}", len(index), g.shape[1], g)
        return calls.logsumexp_back(total, g, index, bag.offsets, shares)

    def forward(self, op: Operation) -> None:
        self._native = self._in_one_call(op)
        if self._native:
            return
        node, x = self.node, self.rows(op, 0)
        offsets = op.bags[0].offsets
        counts = (offsets[1:] - offsets[:-1]).numpy(force=True)
        messages = Messages.trusted(x, _nobodies(len(counts)), offsets.numpy(force=True), self.train)
        if node.how == "mean":
            y = _summed(x, torch.arange(len(x), device=x.device), offsets)
            share = torch.as_tensor(1 / np.maximum(counts, 1), device=x.device).to(x.dtype)
            op.kept = (share.view(-1, *[1] * (x.dim() - 1)),)
            y = y * op.kept[0]
        elif node.how == "max":
            y, winners = segment_max(x, messages)
            op.kept = (winners,)
        else:
            y, shares = segment_logsumexp(x, messages)
            op.kept = (shares,)
        self.out.put(op.start, op.stop, y)

    def backward(self, op: Operation) -> None:
        if self._native:
            done = self._back_in_one_call(op)
            assert done
            return
        node, g, kept = self.node, self.gradient(op), op.kept[0]
        assert kept is not None
        bag = op.bags[0]
        if node.how == "mean":
            dx = _spread(g * kept, bag)
        elif node.how == "max":
            rows = kept + bag.offsets[:-1].view(-1, *[1] * (kept.dim() - 1))
            dx = g.new_zeros(len(op.reads[0]), *g.shape[1:]).scatter_(0, rows, g)
        else:
            dx = kept * _spread(g, bag)
        op.reads[0].add(dx)


def _spread(g: Tensor, bag: Bag) -> Tensor:
    """The value of each target, repeated for each of its rows."""
    return g.index_select(0, bag.targets())


def _nobodies(count: int) -> States:
    return States.trusted(("instance",), np.zeros((1, count), dtype=np.int64))
