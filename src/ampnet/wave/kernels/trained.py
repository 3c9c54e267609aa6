"""Trained: a node with parameters, over all rows of a wave; the node itself says how (`ampnet.nodes.span`).

What is done here is to bring the rows it reads to where it can read them, round by round and, for the product that
collects a weight's gradient, of all rounds at once:

    in place     rows that lie in one slice of an arena, in every round and altogether
    copied       rows by number, or put together of several pieces: one after the other, in a tensor of the site's own
    hoisted      a part of a loop's input that is there before the loop begins (the words of a sentence, not the state):
                 its products are made for all rounds at once. So are, backward, the gradients of its rows
    looked up    hoisted, with few different rows (words of a small vocabulary): each different row is multiplied once,
                 and the products are fetched. Backward, gradients that belong to one row are added up before they are
                 multiplied
    lifted       what is computed of nothing but such rows is computed once for each different one
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ampnet.native import calls
from ampnet.nodes.embedding import Embedding
from ampnet.nodes.linear import Linear
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Operation
from ampnet.update.sums import Sums
from ampnet.wave.arena import Read, add_back, fetch
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.kernels.parts import Part, Piece, parts_of

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage


@dataclass(slots=True, eq=False)
class _Shape:
    """Facts about a site that follow from the shapes of its input rows. The same in every wave."""

    parts: list[Part]
    widths: list[int]
    out: Sequence[int]
    """The shape of an output row."""


class WaveSpan(Span):
    """Some of the rows of a site: those of one operation, or all."""

    __slots__ = ("fresh", "into", "kernel", "named", "of", "reads", "start", "stop")

    def __init__(self, kernel: TrainedKernel, reads: Sequence[Read], start: int, stop: int) -> None:
        """``start``, ``stop``: counted from the site's first row."""
        self.kernel, self.reads, self.start, self.stop = kernel, reads, start, stop
        self.products, self.begun = kernel.passage.products, bool(kernel.hoisted)
        self.widths, self.alone, self.memo = kernel.widths, kernel.once, None
        self.named: dict[str, Tensor] = {}
        self.fresh: list[int] = []
        """Parts that have to be copied in every wave."""
        self.of: Tensor | None = None
        """The gradient tensors that ``g`` and ``into`` are slices of."""
        self.into: dict[int, Tensor] = {}
        """Slices of gradients that products are added to, where they are the same in every wave."""

    def keep(self, name: str, width: int) -> Tensor:
        found = self.named.get(name)
        if found is None:
            kernel = self.kernel
            found = self.named[name] = kernel.take(name, kernel.rows_made, width, kernel.y)[self.start : self.stop]
        return found

    def kept(self, name: str) -> Tensor:
        return self.named[name]

    def wants(self, part: int) -> bool:
        return part not in self.kernel.hoisted and self.kernel.parts[part].moved(self.reads)

    def add(self, part: int, dx: Tensor) -> None:
        kernel = self.kernel
        if kernel.lifted:
            arena = self.reads[0].arena
            if arena.moved:
                arena.gradient().add_(dx)
        elif part not in kernel.hoisted:
            kernel.parts[part].add(self.reads, dx)

    def add_product(self, part: int, d: Tensor, w: Tensor) -> None:
        kernel, into = self.kernel, self.into.get(part)
        if into is not None:
            self.reads[kernel.parts[part].sources[0].slot].arena.touched = True
            self.products.add(into, d, w)
        elif self.wants(part):
            mine = kernel.parts[part]
            if kernel.lifted:
                self.products.add(self.reads[0].arena.gradient(), d, w)
            elif (blank := mine.unwritten(self.reads)) is not None:
                self.products.set(blank, d, w)
            elif mine.in_place(self.reads):
                into = mine.gradient(self.reads)
                if kernel.layout.fixed and not self.reads[mine.sources[0].slot].arena.sole:  # that is cleared late
                    self.into[part] = into
                self.products.add(into, d, w)
            else:
                mine.add(self.reads, kernel.product(part, self.start, d, w))

    def end(self) -> None:
        if self.w is not self.kernel.node.updater.weights:
            self.w, self.memo = (), None


class TrainedKernel(Kernel):
    """`Parameterised` nodes. See the head of this file."""

    tapes = True
    ready = lifted = _known = False
    node: Parameterised
    parts: list[Part]
    widths: Sequence[int]
    y: Tensor
    """All rows of the arena."""
    copies: list[Tensor | None]
    """Of each part: rows of all operations one after the other, where they had to be copied."""

    def begin(self) -> None:
        node = self.site.face
        assert node is not None
        self.node, self.linear = node, isinstance(node, Linear)
        self.tapes = not isinstance(node, Embedding)  # Python checks its indices, and records which rows are touched
        self.once = len(self.whole.operations) == 1
        self.start, self.rows_made = self.whole.start, self.whole.stop - self.whole.start
        self.hoisted: dict[int, Tensor | None] = {}
        """Parts whose products are made for all rows at once; of one that is looked up: where each row's product is."""
        self._all: WaveSpan | None = None

    @property
    def varies(self) -> bool:
        """Whether the number of its input rows depends on payloads, so that nothing is fixed."""
        return any(read.arena.varies for read in self.whole.reads)

    def renew(self, passage: Passage) -> None:
        super().renew(passage)
        self.ready = self.ready and not self.varies
        node = self.site.face
        assert node is not None
        settled = passage.alone and node.updater.view is None
        self._weights = node.updater.weights if settled else None
        """The node's weights, if no update can change them before the passage ends."""

    def unsettle(self) -> None:
        self.ready = False

    def end(self) -> None:
        if self._all is not None:
            self._all.end()

    # -- where rows are

    def _get_ready(self, op: Operation) -> None:
        given = tuple([(read.arena.rows_made.shape[1:], read.arena.rows_made.dtype) for read in op.reads])
        known = self.layout.sites.memo.get((self.site.number, given))
        if not isinstance(known, _Shape):
            known = self.layout.sites.memo[self.site.number, given] = self._shape(op)
        self.parts, self.widths = known.parts, known.widths
        w = self.passage.weights(self.node)
        self.y = self.out.open(known.out, w[0] if w else op.reads[0].arena.rows_made)
        self._find_hoisted()
        self.copies = []
        for i, part in enumerate(self.parts):
            copies = None
            if not part.in_place(self.whole.reads) and self.hoisted.get(i) is None and not self.lifted:
                data = self.whole.reads[part.sources[0].slot].arena.rows_made
                shape = (self.rows_made, *data.shape[1:-1], part.width) if data.dim() > 1 else (self.rows_made,)
                copies = self.layout.pool.take((self.site.number, i, "copies"), shape, data)
            self.copies.append(copies)
        self.ready, self._known, self._all = True, False, None

    def _shape(self, op: Operation) -> _Shape:
        """Set up for rows of these shapes. Raises `PayloadError` if they do not fit the node."""
        node = self.node
        pieces: list[Piece] = []
        for slot, columns in enumerate(self.columns):
            data = op.reads[slot].arena.rows_made
            width = (data.shape[-1] if data.dim() > 1 else 1) if columns is None else columns[1] - columns[0]
            pieces.append((slot, columns, width))
        total = sum(width for _, _, width in pieces)
        for read in op.reads:
            data = read.arena.rows_made
            shape = data.shape[1:] if data.dim() < 2 else (*data.shape[1:-1], total)
            node.check(torch.empty(len(read), *shape, dtype=data.dtype, device="meta"))
        wanted = node.parts
        if wanted is None and not node.takes_pieces and len(pieces) > 1:
            wanted = (((0, total),),)
        parts = parts_of(pieces, wanted)
        rows = [self.rows(op, i)[:1] for i in range(len(op.reads))]
        sample = rows[0] if len(rows) == 1 else torch.cat(rows, -1)
        return _Shape(parts, [part.width for part in parts], node.shape_out(sample))

    def _find_hoisted(self) -> None:
        """Find the parts that are complete before the first operation and are faster to multiply in one product."""
        self.hoisted, self.lifted = {}, False
        for i, part in enumerate(self.parts):
            read = self.whole.reads[part.sources[0].slot]
            few = (
                read.arena.inverse is not None
                and len(part.sources) == 1
                and 2 * len(read.arena.rows_made) <= (self.rows_made)
            )
            if self.node.may_hoist(i):
                if few and read.arena.table:
                    self.hoisted[i] = read.places()
                elif not self.once and all(self.site.early[source.slot] for source in part.sources):
                    self.hoisted[i] = None
                if self.linear and self.hoisted:
                    return
            elif read.arena.inverse is not None and len(self.parts) == len(part.sources) == 1 and self.once:
                # Decided by the layout, not by how many words are different: readers know where the rows are.
                alone = self.columns[0] is None and len(self.layout.sites.order[self.site.component]) == 1
                self.lifted = alone and read.arena.table and read.arena.rows <= self.rows_made

    def out_rows(self, op: Operation) -> int:
        """The number of output rows of an operation."""
        return len(op.reads[0].arena.rows_made) if self.lifted else op.stop - op.start

    def unread(self, op: Operation) -> Collection[int]:
        if op.first or not self.hoisted:
            return ()
        read = {source.slot for i, part in enumerate(self.parts) if i not in self.hoisted for source in part.sources}
        return {source.slot for i in self.hoisted for source in self.parts[i].sources} - read

    def _x(self, part: int, op: Operation) -> Tensor | None:
        """A part of the input rows of an operation; None if it is zero or its product is made already."""
        if part in self.hoisted:
            return None
        mine, copies = self.parts[part], self.copies[part]
        read = op.reads[mine.sources[0].slot]
        if self.lifted:
            return read.arena.rows_made
        if copies is None:
            if self.linear and read.arena.blank and read.blank:
                return None
            return read.rows(mine.sources[0].columns)
        into = copies[op.start - self.start : op.stop - self.start]
        mine.fill(op.reads, into)
        return into

    def _may_change(self, part: int, op: Operation) -> bool:
        """Whether a part of an operation must be copied although memory is fixed: copies, and zeros."""
        read = op.reads[self.parts[part].sources[0].slot]
        return self.copies[part] is not None or (self.linear and read.index is None and read.start == 0)

    # -- forward and backward

    def forward(self, op: Operation) -> None:
        if not self.ready:
            self._get_ready(op)
        elif op.first:
            self._known = self.layout.fixed  # its tensors are those of the wave before
        if op.first and self.hoisted:
            self._hoist()
        span = op.span
        if self._known and span is not None:
            for i in span.fresh:  # type: ignore[attr-defined]
                span.xs[i] = self._x(i, op)
        else:
            rows, start = self.out_rows(op), op.start - self.start
            span = op.span = WaveSpan(self, op.reads, start, start + rows)
            span.y = self.y[op.start : op.start + rows]
            span.xs = [self._x(i, op) for i in range(len(self.parts))]
            span.fresh = [i for i in range(len(self.parts)) if self._may_change(i, op)]
        span.w = self._weights or self.passage.weights(self.node)
        self.node.run(span)
        if self.lifted:
            self.out.see_once(op.start, op.stop, op.reads[0])

    def backward(self, op: Operation) -> None:
        span = op.span
        assert isinstance(span, WaveSpan)
        span.w = self._weights or self.passage.weights(self.node)
        gradients = self.out.gradient()
        if span.of is not gradients:
            span.of, span.into = gradients, {}
            span.g = gradients[op.start : op.start + self.out_rows(op)]
        self.node.back(span)

    def all(self) -> WaveSpan:
        """The rows of all operations."""
        span, first = self._all, self.whole.operations[0].span
        if self.once and not self.hoisted and isinstance(first, WaveSpan):
            first.sums = self.sums
            return first
        if span is None or not self._known:
            span = self._all = WaveSpan(self, self.whole.reads, 0, self.rows_made)
            span.xs = [self._all_x(i) for i in range(len(self.parts))]
            span.y = self.y[self.start : self.start + self.rows_made]
        if isinstance(first, WaveSpan):
            for name, tensor in first.named.items():
                span.keep(name, tensor.shape[1])
        span.w, span.sums = self.passage.weights(self.node), self.sums
        if self.out.touched:
            span.g = self.out.gradient()[self.start : self.start + self.rows_made]
        return span

    def _all_x(self, part: int) -> Tensor | None:
        copies, mine = self.copies[part], self.parts[part]
        if copies is not None or self.hoisted.get(part) is not None:
            return copies
        read = self.whole.reads[mine.sources[0].slot]
        return read.arena.rows_made if self.lifted else read.rows(mine.sources[0].columns)

    def collect(self) -> None:
        span = self.all()
        if self._go_direct(span):
            return
        looked_up = next((i for i, places in self.hoisted.items() if places is not None), None)
        if self.linear and looked_up is not None:
            for i, x in enumerate(span.xs):
                if x is not None:
                    self._add_columns(i, span.g, x)
            by_row = self._collect_looked_up(span, looked_up)
            if len(span.sums) > 1:
                span.sums.add_rows(by_row, 1)
            return
        self.node.collect(span)
        for i, places in self.hoisted.items():
            if places is not None:
                self._collect_looked_up(span, i)
            elif self.parts[i].moved(self.whole.reads):
                self._spread(span, i)

    @property
    def sums(self) -> Sums:
        return self.passage.sums(self.node)

    # -- products of all rows at once

    def _hoist(self) -> None:
        """Compute the products of hoisted parts."""
        span = self.all()
        for i, places in self.hoisted.items():
            target, weight, bias = self.node.hoist(span, i)
            if places is None:
                x = span.x(i)
                if self.copies[i] is not None:
                    self.parts[i].fill(self.whole.reads, x)
                span.products.set(target, x, weight.t(), bias)
            else:
                places = self.hoisted[i] = self._places(i)
                table = self._table(i)
                products = self.take(f"products {i}", len(table), target.shape[1], self.y)
                span.products.set(products, table, weight.t(), bias)
                fetch(target, products, places)

    def _places(self, part: int) -> Tensor:
        """Where the product of each row is; in memory of the site's own, which stays where the layout's does."""
        read = self.whole.reads[self.parts[part].sources[0].slot]
        found = read.places()
        assert found is not None
        own = self.layout.pool.take((self.site.number, part, "places"), found.shape, found)
        if not calls.fetch(own.view(torch.float64).view(1, -1), found.view(torch.float64).view(1, -1), None):
            own.copy_(found)
        return own

    def _table(self, part: int) -> Tensor:
        source = self.parts[part].sources[0]
        data = self.whole.reads[source.slot].arena.rows_made
        return data if source.columns is None else data[:, source.columns[0] : source.columns[1]]

    def _spread(self, span: WaveSpan, part: int) -> None:
        """The gradients of the rows of a hoisted part."""
        mine, reads = self.parts[part], self.whole.reads
        _, weight, _ = self.node.hoist(span, part)
        d = self.node.delta(span, part)
        if mine.in_place(reads):
            span.products.add(mine.gradient(reads), d, weight)
        else:
            mine.add(reads, self.product(part, span.start, d, weight))

    def product(self, part: int, start: int, d: Tensor, w: Tensor) -> Tensor:
        """``d w``, in memory of the site's own where the layout has some: it is added to other rows at once.

        ``start``: the first row of it."""
        products = self.passage.products
        if not self.layout.fixed or d.dim() > 2:
            return products.of(d, w)
        out = self.layout.pool.take((self.site.number, part, "product"), (self.rows_made, w.shape[1]), d)
        out = out[start : start + len(d)]
        products.set(out, d, w)
        return out

    def _collect_looked_up(self, span: WaveSpan, part: int) -> Tensor:
        """Returns the gradients of the products."""
        table, source, places = self._table(part), self.parts[part].sources[0], self.hoisted[part]
        d, (_, weight, _) = self.node.delta(span, part), self.node.hoist(span, part)
        assert places is not None
        by_row = self.take(f"by row {part}", len(table), d.shape[1], d)
        if not calls.clear(by_row):
            by_row.zero_()
        add_back(by_row, d, places)
        self._add_columns(part, by_row, table)
        arena = self.whole.reads[source.slot].arena
        if arena.moved:
            into = arena.gradient()
            into = into if source.columns is None else into[:, source.columns[0] : source.columns[1]]
            span.products.add(into, by_row, weight)
        return by_row

    def _add_columns(self, part: int, g: Tensor, x: Tensor) -> None:
        """The gradient of the columns of a weight that belong to a part."""
        total = self.sums[0]
        if self.linear:
            start = sum(self.widths[:part])
            total = total[:, start : start + self.widths[part]]
        self.passage.products.add_part(total, g, x)

    def may_go_direct(self) -> bool:
        if not self.node.updater.may_go_direct or not self.linear or self.node.sites > 1:
            return False
        return len(self.parts) == 1 and not self.hoisted and not self.passage.skips and not self.passage.products.narrow

    def _go_direct(self, span: WaveSpan) -> bool:
        """Add to the weights themselves, where the updater lets us and all of it is one product of finite numbers; but
        only when it is known that the gradients of the other nodes are finite, too."""
        node = self.node
        rate, x = node.updater.direct, span.xs[0]
        if rate is None or not self.may_go_direct() or x is None or x.dim() > 2:
            return False
        if not _largest(span.g) * _largest(x) * len(x) * abs(rate) < 1e30:
            return False
        self.passage.later.append(partial(_descend, node.updater.weights, span.g, x, rate))
        node.updater.went_direct()
        return True


def _descend(w: Sequence[Tensor], g: Tensor, x: Tensor, rate: float) -> None:
    if not calls.product(w[0], g.t(), x, add=True, alpha=rate):
        w[0].addmm_(g.t(), x, alpha=rate)
    if len(w) > 1:
        w[1].add_(g.sum(0), alpha=rate)


def _largest(rows: Tensor) -> float:
    """Returns the largest absolute value; NaN if any value is NaN."""
    if (found := calls.largest(rows)) is not None:
        return found
    low, high = torch.aminmax(rows)
    return float(torch.maximum(-low, high))
