"""Pointwise: a program on rows as two lists of elementwise steps, for one native call forward and one backward.

    program     h = o * tanh(c)                        tensors    inputs | result | its gradient | constants | own
    forward     own 0 = tanh(c);  result = o * own 0
    backward    own 1 = g * own 0          (do)        own        values that the backward reads, then gradients
                own 2 = g * o;  own 3 = own 2 tanh'    (dc)

What goes side by side is computed where it is to lie, so that nothing is copied; columns of a value, and a gradient
that is passed on unchanged, are the memory of another value.

Programs that call a function, reshape or fill have no such list (`of` returns None): torch computes them. So do those
whose rows have several dimensions or types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ampnet.native.calls import POINTWISE, Place, PointwiseStep
from ampnet.nodes.operations import Binary, Cat, Operation, Slice, Total, Unary
from ampnet.nodes.program import Ref

if TYPE_CHECKING:
    from ampnet.nodes.plan import Plan

Shape = tuple[int, ...]
Spot = tuple[int, int]
"""The number of a tensor, and the first column there."""
_WHAT = {name: i for i, name in enumerate(POINTWISE)}
_GRADIENTS = {"relu": "relu_back", "tanh": "tanh_back", "sigmoid": "sigmoid_back", "square": "square_back"}
_GRADIENTS |= {"abs": "abs_back", "exp": "mul", "log": "div"}


def of(plan: Plan) -> Pointwise | None:
    """The steps of a plan; None where they are not all elementwise, on numbers of one type."""
    for op in plan.steps:
        if not isinstance(op, Unary | Binary | Cat | Slice | Total):
            return None
        for i in (op.at, *op.refs):
            shape = plan.shapes[i]
            if shape is None or len(shape) > 1 or plan.dtypes[i] is not plan.dtype:
                return None
        constants = [o for o in op.operands if isinstance(o, Tensor)]
        if any(c.dtype is not plan.dtype or c.dim() > 1 or c.device.type != "cpu" for c in constants):
            return None
    return Pointwise(plan) if plan.steps and plan.dtype.is_floating_point else None


class Pointwise:
    """See the head of this file."""

    def __init__(self, plan: Plan) -> None:
        self._plan, inputs = plan, len(plan.inputs)
        self.result, self.gradient = inputs, inputs + 1
        """The numbers of the tensors that the result, and its gradient, are in."""
        self.row = plan.shapes[plan.out]
        self.constants: list[Tensor] = [torch.zeros(1, 1, dtype=plan.dtype)]
        """Tensors of one row; they come last. Until all of them are known, they are numbered -1, -2, ..."""
        self._constants: dict[int, Place] = {}
        for op in plan.steps:
            self._note_constants(op)
        self.own: list[int] = []
        """The widths of tensors that the caller has to bring; they come after the gradient."""
        self._spots: dict[int, Spot] = {i: (i, 0) for i in range(inputs)}
        self._line: list[PointwiseStep] = []
        self._forward()
        forward, self._line = self._line, []
        self.kept = len(self.own)
        """How many of `own` hold values until the backward."""
        self._slopes: dict[int, tuple[Spot, bool]] = {}
        """By value: where its gradient is, and whether nothing else is there."""
        self._backward()
        self.forward, self.backward = self._numbered(forward), self._numbered(self._line)
        self.passed = [self._slopes.get(i, (None, False))[0] for i in range(inputs)]
        """Where the gradient of each input is; None: it has none."""
        self.widths = [self._width(i) for i in range(inputs)]

    # -- where things are

    def _width(self, value: int) -> int:
        shape = self._plan.shapes[value]
        return shape[0] if shape else 1

    def _note_constants(self, op: Operation) -> None:
        for operand in op.operands:
            if not isinstance(operand, Ref):
                row = torch.as_tensor(operand, dtype=self._plan.dtype).reshape(1, -1).contiguous()
                self._constants[id(operand)] = self._constant(row)

    def _constant(self, row: Tensor) -> Place:
        self.constants.append(row)
        return -len(self.constants), 0, int(row.shape[1] > 1)

    def _new(self, width: int) -> Spot:
        self.own.append(width)
        return self.gradient + len(self.own), 0

    def _numbered(self, line: Sequence[PointwiseStep]) -> tuple[PointwiseStep, ...]:
        first = self.gradient + len(self.own)
        return tuple(
            replace(step, places=tuple((first - n if n < 0 else n, at, by) for n, at, by in step.places))
            for step in line
        )

    def _place(self, op: Operation, i: int, width: int) -> Place:
        """An operand that meets rows of this width."""
        operand = op.operands[i]
        if not isinstance(operand, Ref):
            return self._constants[id(operand)]
        return (*self._spots[operand.index], int(self._width(operand.index) == width))

    def _emit(self, what: str, to: Spot, width: int, *places: Place, add: bool = False) -> None:
        self._line.append(PointwiseStep(_WHAT[what], add, width, ((*to, 1), *places)))

    # -- forward

    def _forward(self) -> None:
        plan = self._plan
        by_number = {op.at: op for op in plan.steps}
        self._settle(plan.out, (self.result, 0), by_number)
        for op in plan.steps:
            if isinstance(op, Slice):
                number, column = self._spots[op.x]
                self._spots[op.at] = number, column + op.start
                continue
            width = self._width(op.at)
            if op.at not in self._spots:
                self._spots[op.at] = self._new(width)
            to = self._spots[op.at]
            if isinstance(op, Cat):
                self._lay_beside(op, to)
            elif isinstance(op, Total):
                self._total(to, self._spots[op.x], self._width(op.x), mean=op.mean)
            else:
                self._emit(op.step.op, to, width, *[self._place(op, i, width) for i in range(len(op.operands))])
        if self._spots[plan.out] != (self.result, 0):
            self._emit("copy", (self.result, 0), self._width(plan.out), (*self._spots[plan.out], 1))

    def _settle(self, value: int, spot: Spot, by_number: dict[int, Operation]) -> None:
        """A value is computed at this spot, and what goes side by side in it at its part of that."""
        op = by_number.get(value)
        if op is None or isinstance(op, Slice) or value in self._spots:
            return
        self._spots[value] = spot
        if isinstance(op, Cat):
            for operand, column in self._beside(op):
                if isinstance(operand, Ref):
                    self._settle(operand.index, (spot[0], spot[1] + column), by_number)

    def _beside(self, op: Cat) -> list[tuple[object, int]]:
        """Every operand, with its first column."""
        out, column = list[tuple[object, int]](), 0
        for operand, shape in zip(op.operands, op.shapes, strict=True):
            out.append((operand, column))
            column += shape[-1]
        return out

    def _lay_beside(self, op: Cat, to: Spot) -> None:
        for i, (operand, column) in enumerate(self._beside(op)):
            width, into = op.shapes[i][-1], (to[0], to[1] + column)
            if not isinstance(operand, Ref) or self._spots[operand.index] != into:
                self._emit("copy", into, width, self._place(op, i, width))

    def _total(self, to: Spot, x: Spot, width: int, *, mean: bool, add: bool = False) -> None:
        self._emit("total", to, width, (*x, 1), add=add)
        if mean:
            self._emit("mul", to, 1, (*to, 1), self._constant(torch.full((1, 1), 1 / width, dtype=self._plan.dtype)))

    # -- backward

    def _backward(self) -> None:
        plan = self._plan
        if plan.wanted[plan.out]:
            self._slopes[plan.out] = (self.gradient, 0), False
        for op in plan.back:
            found = self._slopes.get(op.at)
            if found is not None:
                self._back(op, found[0])

    def _back(self, op: Operation, g: Spot) -> None:
        width, wanted = self._width(op.at), self._plan.wanted
        if isinstance(op, Unary):
            self._add(op.x, self._slope_of_unary(op, g, width))
        elif isinstance(op, Binary):
            for i, operand in enumerate(op.operands):
                if isinstance(operand, Ref) and wanted[operand.index]:
                    self._add_binary(op, i, operand.index, g, width)
        elif isinstance(op, Cat):
            for (piece, column), shape in zip(self._beside(op), op.shapes, strict=True):
                if isinstance(piece, Ref) and wanted[piece.index]:
                    self._pass_on(piece.index, (g[0], g[1] + column), shape[-1])
        elif isinstance(op, Slice):
            self._add_columns(op, g, width)
        else:
            assert isinstance(op, Total)
            n = self._width(op.x)
            share = self._constant(torch.full((1, 1), 1 / n if op.mean else 1, dtype=self._plan.dtype))
            self._add(op.x, lambda to, add: self._emit("mul", to, n, (*g, int(n == 1)), share, add=add))

    def _slope_of_unary(self, op: Unary, g: Spot, width: int) -> Callable[[Spot, bool], None]:
        if op.step.op == "neg":
            return lambda to, add: self._emit("neg", to, width, (*g, 1), add=add)
        kept = next(iter(op.needs(self._plan.wanted)))
        what, place = _GRADIENTS[op.step.op], (*self._spots[kept], 1)
        return lambda to, add: self._emit(what, to, width, (*g, 1), place, add=add)

    def _add_binary(self, op: Binary, i: int, value: int, g: Spot, width: int) -> None:
        name, other = op.step.op, self._place(op, 1 - i, width)
        what, places = "copy", list[Place]()
        if name == "sub" and i:
            what = "neg"
        elif name == "mul" or (name == "div" and not i):
            what, places = name, [other]
        elif name == "div":
            what, places = "div_back", [(*self._spots[op.at], 1), self._place(op, 1, width)]
        if self._width(value) == width:
            if what == "copy":
                self._pass_on(value, g, width)
            else:
                self._add(value, lambda to, add: self._emit(what, to, width, (*g, 1), *places, add=add))
            return
        if what != "copy":  # one number of this side met all columns of the other
            whole = self._new(width)
            self._emit(what, whole, width, (*g, 1), *places)
            g = whole
        self._add(value, lambda to, add: self._total(to, g, width, mean=False, add=add))

    def _add(self, value: int, emit: Callable[[Spot, bool], None]) -> None:
        """Write the gradient of a value, or add to it."""
        known = self._slopes.get(value)
        if known is None:
            self._slopes[value] = self._new(self._width(value)), True
            emit(self._slopes[value][0], False)
        else:
            emit(self._owned(value), True)

    def _owned(self, value: int) -> Spot:
        """Where the gradient of a value may be added to: a copy, if it is somebody else's."""
        spot, own = self._slopes[value]
        if not own:
            width, to = self._width(value), self._new(self._width(value))
            self._emit("copy", to, width, (*spot, 1))
            self._slopes[value] = to, True
        return self._slopes[value][0]

    def _pass_on(self, value: int, g: Spot, width: int) -> None:
        """The gradient of a value is this one, or gets it added."""
        if value in self._slopes:
            self._emit("copy", self._owned(value), width, (*g, 1), add=True)
        else:
            self._slopes[value] = g, False

    def _add_columns(self, op: Slice, g: Spot, width: int) -> None:
        """The other columns get zero."""
        if op.x not in self._slopes:
            full = self._width(op.x)
            self._slopes[op.x] = self._new(full), True
            self._emit("copy", self._slopes[op.x][0], full, (-1, 0, 0))
        number, column = self._owned(op.x)
        self._emit("copy", (number, column + op.start), width, (*g, 1), add=True)


def as_rows(x: Tensor) -> Tensor:
    """Rows that are single numbers as rows of one column."""
    return x.unsqueeze(1) if x.dim() == 1 else x


def tensors(
    inputs: Sequence[Tensor], result: Tensor, g: Tensor, line: Pointwise, own: Sequence[Tensor]
) -> list[Tensor]:
    """All tensors of a line, by number."""
    return [*inputs, result, g, *own, *line.constants]
