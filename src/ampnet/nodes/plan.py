"""Plan: a program made ready for rows of known shapes.

The first batch tells the shapes and types of all values; from then on it is known what has to be done:

    needed    steps without which the result cannot be; others are left out
    wanted    values whose gradient is needed: they lead to the result, and some input of numbers that are not
              integers leads to them
    kept      values that the backward of a wanted step reads: each once
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.nodes import pointwise
from ampnet.nodes.kept import Kept
from ampnet.nodes.operations import READY, Gradients, Operation, Shape, Values
from ampnet.nodes.program import Program, Ref


class Plan:
    """How to run a program forward and backward on rows like ``xs``."""

    def __init__(self, program: Program, xs: Sequence[Tensor]) -> None:
        self.size, self.out = program.size, program.out.index
        self._blank = [None] * len(program.steps)
        self.shapes: list[Shape | None] = []
        """The shape of a row of each value; None: it is not needed."""
        self.dtypes: list[torch.dtype | None] = []
        self.steps = self._ready(program, xs)
        """What is needed of the program, in order."""
        self.wanted = self._want(len(xs))
        """For each value, whether its gradient is needed."""
        self.back = [op for op in reversed(self.steps) if self.wanted[op.at]]
        self.kept = sorted({i for op in self.back for i in op.needs(self.wanted)})
        """The numbers of the values that `gradients` must be given."""
        self.inputs = range(len(xs))
        self._repeats = any(op.repeats for op in self.steps)

    @cached_property
    def line(self) -> pointwise.Pointwise | None:
        """The same as elementwise steps of a native call; None where it has others."""
        return pointwise.of(self)

    def _ready(self, program: Program, xs: Sequence[Tensor]) -> list[Operation]:
        needed = {self.out}
        for at in range(program.size - 1, program.inputs - 1, -1):
            if at in needed:
                needed |= {o.index for o in program.steps[at - program.inputs].operands if isinstance(o, Ref)}
        values: Values = [*xs, *self._blank]
        steps = []
        for at, step in enumerate(program.steps, start=program.inputs):
            if at not in needed:
                continue
            try:
                operation = READY[step.op](at, step, values)
                values[at] = operation.forward(values)
            except (PayloadError, RuntimeError, ValueError, TypeError, IndexError) as error:
                rows = ", ".join(str(tuple(values[i].shape[1:])) for i in _refs(step.operands))
                raise PayloadError(
                    f"step {at} of its program, '{step.name()}', fails on rows of {rows}: {error}"
                ) from error
            steps.append(operation)
        self._floating = [v is not None and v.is_floating_point() for v in values]
        result = values[self.out]
        self._shape, self.dtype = result.shape[1:], result.dtype
        self.shapes = [None if v is None else tuple(v.shape[1:]) for v in values]
        self.dtypes = [None if v is None else v.dtype for v in values]
        return steps

    def _want(self, inputs: int) -> list[bool]:
        moved = [floating and i < inputs for i, floating in enumerate(self._floating)]
        for op in self.steps:
            moved[op.at] = op.passes and self._floating[op.at] and any(moved[i] for i in op.refs)
        leads = [i == self.out for i in range(self.size)]
        for op in reversed(self.steps):
            if leads[op.at] and moved[op.at]:
                for i in op.refs:
                    leads[i] = True
        return [a and b for a, b in zip(moved, leads, strict=True)]

    def run(self, xs: Sequence[Tensor], out: Tensor | None = None) -> tuple[Tensor, Values]:
        """The result, and all values. ``out``: where the result may be written to: then it is what is returned."""
        v: Values = [*xs, *self._blank]
        for op in self.steps:
            if op.at == self.out and out is not None and out.shape[1:] == self._shape and out.dtype == self.dtype:
                v[op.at] = op.write(v, out)
            else:
                v[op.at] = op.forward(v)
        y: Tensor = v[self.out]
        if y is out:
            return y, v
        # Values that others read must have separate memory for every row.
        return (y.contiguous() if self._repeats else y), v

    def gradients(self, g: Tensor, kept: Kept | None) -> list[Tensor | None]:
        """The gradient of every input, None where it has none; ``kept``: what `kept` names, in that order."""
        v: Values = [None] * self.size
        if kept is not None:
            for place, i in enumerate(self.kept):
                v[i] = kept[place]
        grads = Gradients(self.size)
        if self.wanted[self.out]:
            grads.of[self.out] = g
        for op in self.back:
            mine = grads.of[op.at]
            if mine is not None:
                op.backward(mine, v, grads, self.wanted)
        out = grads.of[: len(self.inputs)]
        return [None if g is None else g.contiguous() for g in out] if self._repeats else out


def _refs(operands: Sequence[object]) -> list[int]:
    return [o.index for o in operands if isinstance(o, Ref)]
