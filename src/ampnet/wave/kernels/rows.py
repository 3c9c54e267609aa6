"""Rows: any node that makes rows from rows by itself (`apply`, `gradient`, a program, columns put together or apart).

The node's own functions are used, on all rows of an operation at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.concat import Concat
from ampnet.nodes.reduce import Reduce
from ampnet.nodes.rows import Rows
from ampnet.nodes.split import Split
from ampnet.nodes.transform import Parameterised, Transform
from ampnet.state import States
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.layout import Operation

_NOBODY = States(("instance",), [[]])


class Held:
    """What a node wants to see again: looks like `ampnet.nodes.kept.Kept`."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self.tensors = tensors

    def __getitem__(self, i: int) -> Tensor:
        held = self.tensors[i]
        assert held is not None
        return held

    def maybe(self, i: int) -> Tensor | None:
        return self.tensors[i]


class ByItself(Kernel):
    """`Transform` and `Parameterised` nodes."""

    def forward(self, op: Operation) -> None:
        node, x = self.site.node, op.reads[0].rows()
        messages = self.layout.messages_of(op, x, self.train) if self.site.looks_at_states else _anybody(x, self.train)
        if isinstance(node, Parameterised):
            y, kept = node.apply(x, node.updater.weights, messages)
        else:
            assert isinstance(node, Transform)
            y, kept = node.apply(x, messages)
        self.out.put(op.start, op.stop, y)
        op.kept = kept

    def backward(self, op: Operation) -> None:
        node, g = self.site.node, self.gradient(op)
        if isinstance(node, Parameterised):
            dx = node.gradient(g, Held(op.kept), node.updater.weights, node.updater.adding)  # type: ignore[arg-type]
        else:
            assert isinstance(node, Transform)
            dx = node.gradient(g, Held(op.kept))  # type: ignore[arg-type]
        if dx is not None:
            op.reads[0].add(dx)

    def finish(self) -> None:
        if isinstance(self.site.node, Parameterised):
            self.sums.settle()  # what waits there is in memory that the next wave will write to


class ByProgram(Kernel):
    """`Rows` nodes."""

    def forward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Rows)
        xs = [read.rows() for read in op.reads]
        plan = node.plan_for(xs)
        y, values = plan.run(xs)
        op.kept = [values[i] for i in plan.kept]
        self.out.put(op.start, op.stop, y)

    def backward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Rows)
        plan = node.plan
        assert plan is not None
        for read, dx in zip(op.reads, plan.gradients(self.gradient(op), Held(op.kept)), strict=True):  # type: ignore[arg-type]
            if dx is not None:
                read.add(dx)


class SideBySide(Kernel):
    """`Concat`, and `Reduce("beside")`."""

    def forward(self, op: Operation) -> None:
        rows = [read.rows() for read in op.reads]
        self._single = rows[0].dim() == 1
        self.out.put(op.start, op.stop, torch.stack(rows, 1) if self._single else torch.cat(rows, -1))

    def backward(self, op: Operation) -> None:
        g, start = self.gradient(op), 0
        for i, read in enumerate(op.reads):
            assert read.arena.data is not None
            width = 1 if self._single else read.arena.data.shape[-1]
            read.add(g[:, i] if self._single else g[..., start : start + width])
            start += width


class Columns(Kernel):
    """`Split`: one of its outputs."""

    def forward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Split)
        start = sum(node.widths[: self.site.end.port])
        self._columns = (start, start + node.widths[self.site.end.port])
        self.out.put(op.start, op.stop, op.reads[0].rows()[..., self._columns[0] : self._columns[1]].contiguous())

    def backward(self, op: Operation) -> None:
        g = self.gradient(op)
        if g.dim() == 2:
            op.reads[0].add(g, self._columns)
            return
        start, stop = self._columns
        data = op.reads[0].arena.data
        assert data is not None
        whole = g.new_zeros(*g.shape[:-1], data.shape[-1])
        whole[..., start:stop] = g
        op.reads[0].add(whole)


class Pumped(Kernel):
    """What came in from outside."""

    payload: Tensor

    def forward(self, op: Operation) -> None:
        self.out.put(op.start, op.stop, self.payload)
        # The state before the first step is often zero, and then so is every product with it.
        if op.start == 0 and op.stop < self.out.rows and not self.payload.is_cuda:
            blank = op.stop if self.payload.is_floating_point() and not self.payload.any() else 0
            if self.layout.fixed and blank != self.whole.state:
                self.layout.forget_calls()
            self.whole.state = self.out.blank = blank

    def backward(self, op: Operation) -> None:
        pass


def _anybody(x: Tensor, train: bool) -> Messages:
    return Messages.trusted(x, _NOBODY, None, train)


BY_NODE: dict[type, type[Kernel]] = {Rows: ByProgram, Concat: SideBySide, Reduce: SideBySide, Split: Columns}
