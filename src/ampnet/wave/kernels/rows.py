"""Rows: any node that makes rows from rows by itself (`apply`, `gradient`, a program, concatenation, slices).

The node's own functions are used, on all rows of an operation at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ampnet.message import Messages
from ampnet.native import calls
from ampnet.native.calls import PointwiseStep
from ampnet.nodes.plan import Plan
from ampnet.nodes.pointwise import Pointwise, as_rows, tensors
from ampnet.nodes.rows import Rows
from ampnet.nodes.split import Split
from ampnet.nodes.transform import Transform
from ampnet.plan.layout import Operation
from ampnet.state import States
from ampnet.wave.arena import fetch
from ampnet.wave.kernels.kernel import Kernel

_NOBODY = States(("instance",), [[]])


class Held:
    """Residuals of a node, with the interface of `ampnet.nodes.kept.Kept`."""

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
    """`Transform` nodes."""

    def forward(self, op: Operation) -> None:
        node, x = self.site.node, self.rows(op, 0)
        assert isinstance(node, Transform)
        messages = self.layout.messages_of(op, x, self.train) if self.site.looks_at_states else _anybody(x, self.train)
        y, op.kept = node.apply(x, messages)
        self.out.put(op.start, op.stop, y)

    def backward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Transform)
        dx = node.gradient(self.gradient(op), Held(op.kept))  # type: ignore[arg-type]
        if dx is not None:
            self.add(op, 0, dx)


class ByProgram(Kernel):
    """`Rows` nodes: in one native call, if all steps are elementwise, else by torch."""

    tapes = True

    def begin(self) -> None:
        self._plan: Plan | None = None
        self._line: Pointwise | None = None

    def forward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Rows)
        plan = self._plan
        if plan is None or op.first:
            plan = self._plan = node.plan_for([self._some(op, i) for i in range(len(op.reads))])
            self._line = plan.line if calls.takes(op.reads[0].arena.rows_made) else None
        if self._line is not None:
            inputs = self._inputs(op, fill=True)
            self.out.open(self._line.row or (), inputs[0])
            if self._make(op, self._line.forward, inputs, self._result(op)) is not None:
                return
            self._line = None
        xs = [self.rows(op, i) for i in range(len(op.reads))]
        out = None if self.out.data is None else self.out.data[op.start : op.stop]
        y, values = plan.run(xs, out)
        op.kept = [values[i] for i in plan.kept]
        if y is not out:
            self.out.put(op.start, op.stop, y)

    def _some(self, op: Operation, slot: int) -> Tensor:
        """A row like those that are read, to tell shape and type from."""
        data, columns = op.reads[slot].arena.rows_made[:1], self.columns[slot]
        return data if columns is None else data[..., columns[0] : columns[1]]

    def _inputs(self, op: Operation, *, fill: bool) -> list[Tensor]:
        """The rows that are read, those by index in memory of the site's own, where they stay until the backward."""
        out = []
        for slot, read in enumerate(op.reads):
            columns, data = self.columns[slot], read.arena.rows_made
            if read.index is None and read.arena.inverse is None:
                out.append(as_rows(read.rows(columns)))
                continue
            data = as_rows(data)
            width = data.shape[1] if columns is None else columns[1] - columns[0]
            mine = self._own(op, f"input {slot}", width, data)
            if fill:
                places = read.places()
                assert places is not None
                fetch(mine, data, places, columns)
            out.append(mine)
        return out

    def _own(self, op: Operation, name: str, width: int, like: Tensor) -> Tensor:
        start = self.whole.start
        return self.take(name, self.whole.stop - start, width, like)[op.start - start : op.stop - start]

    def _result(self, op: Operation) -> Tensor:
        return as_rows(self.out.rows_made[op.start : op.stop])

    def _make(
        self, op: Operation, steps: Sequence[PointwiseStep], inputs: Sequence[Tensor], g: Tensor
    ) -> list[Tensor] | None:
        """Make these steps. Returns the tensors of the line; None: torch has to compute it."""
        line = self._line
        assert line is not None
        rows, like = op.stop - op.start, inputs[0]
        own = [self._own(op, f"value {i}", width, like) for i, width in enumerate(line.own[: line.kept])]
        for i, width in enumerate(line.own[line.kept :]):
            own.append(self.layout.pool.take((self.site.number, i, "gradient"), (rows, width), like))
        found = tensors(inputs, self._result(op), g, line, own)
        return found if not steps or calls.pointwise(steps, rows, found) else None

    def _back(self, op: Operation, line: Pointwise) -> None:
        found = self._make(op, line.backward, self._inputs(op, fill=False), as_rows(self.gradient(op)))
        assert found is not None
        for slot, (spot, width) in enumerate(zip(line.passed, line.widths, strict=True)):
            read = op.reads[slot]
            if spot is None or not read.moved:
                continue
            dx = found[spot[0]][:, spot[1] : spot[1] + width]
            if spot[0] == line.gradient and read.arena is self.out:  # it is passed on to rows of the same arena
                mine = self.layout.pool.take((self.site.number, slot, "passed"), dx.shape, dx)
                dx = mine if calls.fetch(mine, dx, None) else dx
            self.add(op, slot, dx if read.arena.rows_made.dim() > 1 else dx[:, 0])

    def backward(self, op: Operation) -> None:
        assert self._plan is not None
        if self._line is not None:
            self._back(op, self._line)
            return
        wanted = [read.moved for read in op.reads]
        for i, dx in enumerate(self._plan.gradients(self.gradient(op), Held(op.kept))):  # type: ignore[arg-type]
            if dx is not None and wanted[i]:
                self.add(op, i, dx)


class SideBySide(Kernel):
    """`Concat`, and `Reduce("beside")`."""

    def forward(self, op: Operation) -> None:
        rows = [self.rows(op, i) for i in range(len(op.reads))]
        self._single = rows[0].dim() == 1
        self._widths = [1 if self._single else x.shape[-1] for x in rows]
        if self._single:
            self.out.put(op.start, op.stop, torch.stack(rows, 1))
        elif self.out.data is None:
            self.out.put(op.start, op.stop, torch.cat(rows, -1))
        else:
            into = self.out.open((*rows[0].shape[1:-1], sum(self._widths)), rows[0])
            torch.cat(rows, -1, out=into[op.start : op.stop])

    def backward(self, op: Operation) -> None:
        g, start = self.gradient(op), 0
        for i, width in enumerate(self._widths):
            self.add(op, i, g[:, i] if self._single else g[..., start : start + width])
            start += width


class Columns(Kernel):
    """`Split`: one of its outputs, where its rows have to be made."""

    def begin(self) -> None:
        node = self.site.node
        assert isinstance(node, Split)
        ((_, columns),) = node.view(self.site.end.port)
        assert columns is not None
        self._columns = columns

    def forward(self, op: Operation) -> None:
        a, b = self._columns
        self.out.put(op.start, op.stop, op.reads[0].rows()[..., a:b].contiguous())

    def backward(self, op: Operation) -> None:
        op.reads[0].add(self.gradient(op), self._columns)


class Pumped(Kernel):
    """Inputs of the graph."""

    def forward(self, op: Operation) -> None:
        payload = self.passage.payloads.get(self.site.number)
        if payload is None:  # a label that is not given
            return
        self.out.put(op.start, op.stop, payload)
        # The state before the first step is often zero, and then so is every product with it.
        if op.start == 0 and op.stop < self.out.rows and payload.is_floating_point() and not payload.is_cuda:
            row = payload[:1] if payload.stride(0) == 0 else payload  # one row, seen many times
            self.out.blank = 0 if row.any() else op.stop

    def backward(self, op: Operation) -> None:
        pass


def _anybody(x: Tensor, train: bool) -> Messages:
    return Messages.trusted(x, _NOBODY, None, train)
