"""Trained: a node with parameters, over all rows of a wave; the node itself says how (`ampnet.nodes.span`).

What is done here is to bring the rows it reads to where it can read them, round by round and, for the product that
collects a weight's gradient, of all rounds at once:

    in place        rows that lie in one slice of an arena, in every round and altogether
    copied          rows by number, or put together of several pieces: one after the other, in a tensor of the site's own
    looked up       a part with few different rows (words of a small vocabulary), at a Linear: each different row is
                    multiplied once, and the products are fetched. Backward, the gradients that belong to one row are
                    added up before they are multiplied
    lifted          what is computed of nothing but such rows is computed once for each different one
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ampnet.nodes.linear import Linear
from ampnet.nodes.products import add_rows
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised
from ampnet.plan.layout import Operation
from ampnet.update.sums import Sums
from ampnet.wave.arena import Read, in_columns
from ampnet.wave.kernels.kernel import Kernel

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage


@dataclass(slots=True, eq=False)
class _Source:
    """Columns of a part, and where they are read."""

    slot: int
    columns: tuple[int, int] | None
    """Of the arena's rows; None: all."""
    start: int
    stop: int
    """Within the part."""


@dataclass(slots=True, eq=False)
class _Part:
    sources: list[_Source]
    width: int
    alike: bool
    """Whether all sources are the same columns."""


@dataclass(slots=True, eq=False)
class _Shape:
    """What is known of a site once rows of certain shapes have come to it. The same in every wave."""

    parts: list[_Part]
    widths: list[int]
    out: Sequence[int]
    """Of an output row."""


class WaveSpan(Span):
    """Some of the rows of a site: those of one operation, or all."""

    __slots__ = ("fresh", "into", "kernel", "named", "of", "op", "start", "stop")

    def __init__(self, kernel: TrainedKernel, op: Operation | None, start: int, stop: int) -> None:
        """``op`` None: all operations. ``start``, ``stop``: counted from the site's first row."""
        self.kernel, self.op, self.start, self.stop = kernel, op, start, stop
        self.products, self.begun = kernel.passage.products, kernel.looked_up is not None
        self.widths, self.alone = kernel.widths, kernel.once
        self.named: dict[str, Tensor] = {}
        self.memo = None
        self.fresh: list[int] = []
        """Parts that have to be brought anew in every wave."""
        self.of: Tensor | None = None
        """The gradients that ``g`` and ``into`` are part of."""
        self.into: dict[int, Tensor] = {}
        """Slices of gradients that products are added to."""

    def keep(self, name: str, width: int) -> Tensor:
        found = self.named.get(name)
        if found is None:
            kernel = self.kernel
            found = self.named[name] = kernel.take(name, kernel.rows_made, width, kernel.y)[self.start : self.stop]
        return found

    def kept(self, name: str) -> Tensor:
        return self.named[name]

    def wants(self, part: int) -> bool:
        return self.kernel.wants(self.op, part)

    def add(self, part: int, dx: Tensor) -> None:
        self.kernel.add_to(self.op, part, dx)

    def add_product(self, part: int, d: Tensor, w: Tensor) -> None:
        into = self.into.get(part)
        if into is None:
            into = self.kernel.add_product(self.op, part, d, w)
            if into is not None and self.kernel.layout.fixed:
                self.into[part] = into
        else:
            op = self.op
            assert op is not None
            op.reads[self.kernel.parts[part].sources[0].slot].arena.touched = True
            self.products.add(into, d, w)


class TrainedKernel(Kernel):
    """`Parameterised` nodes. See the head of this file."""

    ready = lifted = False
    looked_up: int | None = None
    """Number of the part that is looked up."""
    parts: list[_Part]
    widths: Sequence[int]
    y: Tensor
    """All rows of the arena."""
    copies: list[Tensor | None]
    """Of each part: rows of all operations one after the other, where they had to be copied."""

    def begin(self) -> None:
        assert isinstance(self.site.node, Parameterised)
        self.node, self.linear = self.site.node, isinstance(self.site.node, Linear)
        self.once = len(self.whole.operations) == 1
        self.start, self.rows_made = self.whole.start, self.whole.stop - self.whole.start
        self._all: WaveSpan | None = None

    def renew(self, passage: Passage) -> None:
        super().renew(passage)
        if not self.layout.fixed:
            self.ready = False

    # -- where rows are

    def _get_ready(self, op: Operation) -> None:
        given = tuple([(read.arena.rows_made.shape[1:], read.arena.rows_made.dtype) for read in op.reads])
        known = self.layout.sites.memo.get((self.site.number, given))
        if not isinstance(known, _Shape):
            known = self.layout.sites.memo[self.site.number, given] = self._shape(op)
        self.parts, self.widths = known.parts, known.widths
        w = self.passage.weights(self.node)
        self.y = self.out.open(known.out, w[0] if w else op.reads[0].arena.rows_made)
        self._find_lookups()
        self.copies = []
        for i, part in enumerate(self.parts):
            read, copies = self.whole.reads[part.sources[0].slot], None
            gathered = len(part.sources) > 1 or read.index is not None or read.arena.inverse is not None
            if gathered and i != self.looked_up and not self.lifted:
                data = read.arena.rows_made
                shape = (self.rows_made, *data.shape[1:-1], part.width) if data.dim() > 1 else (self.rows_made,)
                copies = self.layout.pool.take((self.site.number, i, "copies"), shape, data)
            self.copies.append(copies)
        self.ready, self._all = True, None

    def _shape(self, op: Operation) -> _Shape:
        """Look at rows of these shapes for the first time. Raises `PayloadError` where they do not fit the node."""
        node = self.node
        pieces: list[tuple[int, tuple[int, int] | None, int]] = []
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
        parts = _parts(pieces, wanted)
        data = op.reads[0].arena.rows_made
        sample = self.rows(op, 0) if len(op.reads) == 1 else data.new_empty(0, *data.shape[1:-1], total)
        return _Shape(parts, [part.width for part in parts], node.shape_out(sample))

    def _find_lookups(self) -> None:
        self.looked_up, self.lifted = None, False
        for i, part in enumerate(self.parts):
            arena = self.whole.reads[part.sources[0].slot].arena
            if arena.inverse is None or arena.data is None or len(part.sources) > 1:
                continue
            if self.linear:
                if arena.table and self.looked_up is None and 2 * len(arena.data) <= self.rows_made:
                    self.looked_up = i
            elif len(self.parts) == 1 and self.once and self.columns[0] is None and self._in_no_loop():
                self.lifted = len(arena.data) < self.rows_made

    def _in_no_loop(self) -> bool:
        return len(self.layout.sites.order[self.site.component]) == 1

    def _span(self, op: Operation) -> WaveSpan:
        """The tensors of an operation."""
        rows = self.out_rows(op)
        span = WaveSpan(self, op, op.start - self.start, op.start - self.start + rows)
        span.y = self.y[op.start : op.start + rows]
        op.span = span
        return span

    def out_rows(self, op: Operation) -> int:
        """How many rows an operation makes."""
        return len(op.reads[0].arena.rows_made) if self.lifted else op.stop - op.start

    def _may_be_blank(self, op: Operation, part: int) -> bool:
        read = op.reads[self.parts[part].sources[0].slot]
        return self.linear and read.index is None and read.start == 0

    def _x(self, part: int, op: Operation) -> Tensor | None:
        """A part of the rows of an operation."""
        if part == self.looked_up:
            return None
        mine = self.parts[part]
        source = mine.sources[0]
        read = op.reads[source.slot]
        if self.lifted:
            return read.arena.rows_made
        copies = self.copies[part]
        if copies is None:
            if self.linear and read.arena.blank and read.blank:
                return None
            return read.rows(source.columns)
        into = copies[op.start - self.start : op.stop - self.start]
        self._copy(mine, op, into)
        return into

    def _copy(self, part: _Part, op: Operation, into: Tensor) -> None:
        together = self._places(part, op)
        if together is not None:
            data, places = together
            torch.index_select(data, 0, places, out=into.view(-1, data.shape[-1]))
            return
        for source in part.sources:
            read = op.reads[source.slot]
            where, data = read.places(), read.arena.rows_made
            if len(part.sources) == 1 and where is not None:
                if source.columns is not None:
                    data, where = in_columns(data, source.columns, where)
                torch.index_select(data, 0, where, out=into)
            else:
                target = into if len(part.sources) == 1 else into[..., source.start : source.stop]
                target.copy_(read.rows(source.columns))

    def _places(self, part: _Part, op: Operation) -> tuple[Tensor, Tensor] | None:
        """Of a part whose sources are the same columns of one arena: where they are, by turns."""
        reads = [op.reads[s.slot] for s in part.sources]
        if len(reads) < 2 or not part.alike or any(r.arena is not reads[0].arena for r in reads):
            return None
        data, columns = reads[0].arena.rows_made, part.sources[0].columns
        if data.dim() != 2 or not data.is_contiguous():
            return None
        places = torch.stack([_where(read) for read in reads], 1).flatten()
        return in_columns(data, columns, places) if columns is not None else (data, places)

    # -- forward and backward

    def forward(self, op: Operation) -> None:
        if not self.ready:
            self._get_ready(op)
            if self.looked_up is not None:
                self._look_up(self.looked_up)
        elif op.first and self.looked_up is not None:
            self._look_up(self.looked_up)
        span = op.span
        if isinstance(span, WaveSpan) and span.kernel is self and self.layout.fixed:
            for i in span.fresh:
                span.xs[i] = self._x(i, op)
        else:
            span = self._span(op)
            span.xs = [self._x(i, op) for i in range(len(self.parts))]
            span.fresh = [i for i, part in enumerate(self.parts) if self.copies[i] is not None or self._may_be_blank(op, i)]
        span.w = self.passage.weights(self.node)
        self.node.run(span)
        if self.lifted:
            self.out.see_once(op.start, op.stop, op.reads[0])

    def backward(self, op: Operation) -> None:
        span = op.span
        assert isinstance(span, WaveSpan)
        span.w, span.sums = self.passage.weights(self.node), self.sums
        gradients = self.out.gradient()
        if span.of is not gradients:
            span.of, span.into = gradients, {}
            span.g = gradients[op.start : op.start + self.out_rows(op)]
        self.node.back(span)

    def all(self) -> WaveSpan:
        """The rows of all operations."""
        span, first = self._all, self.whole.operations[0].span
        assert isinstance(first, WaveSpan)
        if self.once:
            first.sums = self.sums
            return first
        if span is None or not self.layout.fixed:
            span = self._all = WaveSpan(self, None, 0, self.rows_made)
            span.xs = [self._all_x(i) for i in range(len(self.parts))]
            for name, tensor in first.named.items():
                span.keep(name, tensor.shape[1])
            span.y = self.y[self.start : self.start + self.rows_made]
        span.w, span.sums = self.passage.weights(self.node), self.sums
        span.g = self.out.gradient()[self.start : self.start + self.rows_made]
        return span

    def _all_x(self, part: int) -> Tensor | None:
        if part == self.looked_up:
            return None
        copies = self.copies[part]
        if copies is not None:
            return copies
        source = self.parts[part].sources[0]
        read = self.whole.reads[source.slot]
        if self.lifted:
            return read.arena.rows_made
        return read.rows(source.columns)

    def collect(self) -> None:
        span = self.all()
        if self._go_direct(span):
            return
        if self.looked_up is None:
            self.node.collect(span)
            return
        g = span.g
        for i, x in enumerate(span.xs):
            if x is not None:
                self._add_columns(i, g, x)
        by_row = self._collect_looked_up(self.looked_up, g)
        if len(span.sums) > 1:
            add_rows(span.sums[1], by_row)

    @property
    def sums(self) -> Sums:
        return self.passage.sums(self.node)

    # -- gradients of what was read

    def wants(self, op: Operation | None, part: int) -> bool:
        assert op is not None
        return part != self.looked_up and any(op.reads[s.slot].moved for s in self.parts[part].sources)

    def add_to(self, op: Operation | None, part: int, dx: Tensor) -> None:
        assert op is not None
        sources = self.parts[part].sources
        if self.lifted:
            read = op.reads[0]
            if read.arena.moved:
                read.arena.gradient().add_(dx)
            return
        if len(sources) == 1:
            op.reads[sources[0].slot].add(dx, sources[0].columns)
            return
        together = self._places(self.parts[part], op) if self.wants(op, part) else None
        if together is not None:
            narrow, places = together
            total = op.reads[sources[0].slot].arena.gradient()
            if total.shape[1] != narrow.shape[1]:
                total = total.view(-1, narrow.shape[1])
            total.index_add_(0, places, dx.reshape(-1, narrow.shape[1]))
            return
        for source in sources:
            op.reads[source.slot].add(dx[..., source.start : source.stop], source.columns)

    def add_product(self, op: Operation | None, part: int, d: Tensor, w: Tensor) -> Tensor | None:
        """Returns the slice of gradients that the product was added to, where it is one."""
        if not self.wants(op, part):
            return None
        assert op is not None
        sources = self.parts[part].sources
        source = sources[0]
        read = op.reads[source.slot]
        if self.lifted:
            self.passage.products.add(read.arena.gradient(), d, w)
        elif len(sources) == 1 and read.index is None and read.arena.inverse is None:
            total = read.arena.gradient()[read.start : read.stop]
            into = total if source.columns is None else total[..., source.columns[0] : source.columns[1]]
            self.passage.products.add(into, d, w)
            return into
        else:
            self.add_to(op, part, self.passage.products.of(d, w))
        return None

    # -- products that are looked up

    def _table(self, part: int) -> Tensor:
        source = self.parts[part].sources[0]
        data = self.whole.reads[source.slot].arena.rows_made
        return data if source.columns is None else data[:, source.columns[0] : source.columns[1]]

    def _weight(self, part: int, of: Tensor) -> Tensor:
        start = sum(self.widths[:part])
        return of[:, start : start + self.widths[part]]

    def _look_up(self, part: int) -> None:
        """The products of all different rows, then those of all rows."""
        w, table = self.passage.weights(self.node), self._table(part)
        products = self.take("products", len(table), self.y.shape[1], self.y)
        self.passage.products.set(products, table, self._weight(part, w[0]).t(), w[1] if len(w) > 1 else None)
        places = self.whole.reads[self.parts[part].sources[0].slot].places()
        assert places is not None
        self._fetched = places
        torch.index_select(products, 0, places, out=self.y[self.whole.start : self.whole.stop])

    def _collect_looked_up(self, part: int, g: Tensor) -> Tensor:
        """Returns the gradients of the products."""
        table, source = self._table(part), self.parts[part].sources[0]
        by_row = self.take("by row", len(table), g.shape[1], g).zero_().index_add_(0, self._fetched, g)
        self._add_columns(part, by_row, table)
        arena = self.whole.reads[source.slot].arena
        if arena.moved:
            into = arena.gradient()
            weight = self._weight(part, self.passage.weights(self.node)[0])
            (into if source.columns is None else into[:, source.columns[0] : source.columns[1]]).addmm_(by_row, weight)
        return by_row

    def _add_columns(self, part: int, g: Tensor, x: Tensor) -> None:
        """The gradient of the columns of a Linear's weight that belong to a part."""
        self.passage.products.add_part(self._weight(part, self.sums[0]), g, x)

    def _go_direct(self, span: WaveSpan) -> bool:
        """Add to the weights themselves, where the updater lets us and all of it is one product of finite numbers."""
        node = self.node
        rate = node.updater.direct
        if rate is None or not self.linear or span.products.narrow or node.sites > 1:
            return False
        x = span.xs[0]
        if len(self.parts) > 1 or x is None or x.dim() > 2 or self.passage.skips:
            return False
        if not _largest(span.g) * _largest(x) * len(x) * abs(rate) < 1e30:
            return False
        w = span.w
        w[0].addmm_(span.g.t(), x, alpha=rate)
        if len(w) > 1:
            w[1].add_(span.g.sum(0), alpha=rate)
        node.updater.went_direct()
        return True


def _where(read: Read) -> Tensor:
    places = read.places()
    return torch.arange(read.start, read.stop, device=read.arena.rows_made.device) if places is None else places


def _largest(rows: Tensor) -> float:
    """The largest absolute value; not a number where any of them is none."""
    low, high = torch.aminmax(rows)
    return float(torch.maximum(-low, high))


def _parts(
    pieces: Sequence[tuple[int, tuple[int, int] | None, int]], wanted: Sequence[Sequence[tuple[int, int]]] | None
) -> list[_Part]:
    """Which columns of which piece each part of a node's input consists of. A piece: (slot, columns, width)."""
    if wanted is None:
        return [_Part([_Source(slot, columns, 0, width)], width, True) for slot, columns, width in pieces]
    parts = []
    for ranges in wanted:
        sources, at = list[_Source](), 0
        for a, b in ranges:
            begin = 0
            for slot, columns, width in pieces:
                low, high = max(a, begin), min(b, begin + width)
                if low < high:
                    first = (0 if columns is None else columns[0]) + low - begin
                    whole = columns is None and high - low == width
                    cut = None if whole else (first, first + high - low)
                    sources.append(_Source(slot, cut, at, at + high - low))
                    at += high - low
                begin += width
        parts.append(_Part(sources, at, all(s.columns == sources[0].columns for s in sources)))
    return parts
