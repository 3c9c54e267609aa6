"""Operations on rows: forward and backward of every step that a `Program` may have.

An operation is made ready once, for operands of known row shapes (`Shape`), and then runs on any number of rows. It
reads and writes the values of a run by number (`Values`); `needs` lists those that the backward will read, and
nothing else is kept.

    row shapes      (3,)      and (2, 3)          a row [3] meets a row [2, 3], as torch broadcasts the rows alone
    as tensors      [n, 1, 3] and [n, 2, 3]       the number of rows is never broadcast
    backward        the gradient [n, 2, 3], summed over what was repeated, to [n, 3]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.nodes.program import Operand, Ref, Step
from ampnet.nodes.together import rows_at_once

Shape = tuple[int, ...]
Values = list[Any]
"""The values of a run by number, each a tensor; None where it is not there (any more)."""


class Gradients:
    """The gradients of a run by the number of the value. A sum without other readers is added to in place."""

    __slots__ = ("_own", "of")

    def __init__(self, size: int) -> None:
        self.of: list[Tensor | None] = [None] * size
        self._own: set[int] = set()

    def add(self, i: int, g: Tensor) -> None:
        old = self.of[i]
        if old is None:
            self.of[i] = g
        elif i in self._own:
            old.add_(g)
        else:
            self.of[i] = old + g
            self._own.add(i)

    def add_columns(self, i: int, g: Tensor, start: int, width: int) -> None:
        """Add to some columns of a value's last dimension."""
        old = self.of[i]
        if i not in self._own:
            self.of[i] = old = g.new_zeros(*g.shape[:-1], width) if old is None else old.clone()
            self._own.add(i)
        assert old is not None
        old[..., start : start + g.shape[-1]].add_(g)


class Operation:
    """A step, made ready. Its result is value number ``at``."""

    passes = True
    """Whether gradients pass through it."""
    repeats = False
    """Whether it gives tensors whose rows or columns are one and the same memory seen many times over."""

    def __init__(self, at: int, step: Step, values: Sequence[Tensor]) -> None:
        """``values``: what came before, to tell shapes, types and device from."""
        self.at, self.step = at, step
        self.refs = [o.index for o in step.operands if isinstance(o, Ref)]
        self.device = values[self.refs[0]].device
        self.operands: list[Operand] = [self._placed(o) for o in step.operands]
        self.shapes: list[Shape] = [_shape(o, values) for o in step.operands]
        self.dtypes = [values[o.index].dtype if isinstance(o, Ref) else None for o in step.operands]
        self.x = self.refs[0]
        self.setup(step.settings)

    def _placed(self, operand: Operand) -> Operand:
        return operand.detach().to(self.device) if isinstance(operand, Tensor) else operand

    def setup(self, settings: Mapping[str, Any]) -> None:
        """Look at settings and shapes, once."""

    def forward(self, v: Values) -> Tensor:
        raise NotImplementedError

    def write(self, v: Values, out: Tensor) -> Tensor:
        """The same, written to ``out`` where that saves a copy: then ``out`` is returned."""
        return self.forward(v)

    def needs(self, wanted: Sequence[bool]) -> Iterable[int]:
        """Returns the values that `backward` reads, if gradients of these values are wanted."""
        return ()

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        """Add the gradients of the wanted operands."""
        raise NotImplementedError


def _shape(operand: Operand, values: Sequence[Tensor]) -> Shape:
    """The shape of one row of a value."""
    if isinstance(operand, Ref):
        return tuple(values[operand.index].shape[1:])
    return tuple(operand.shape) if isinstance(operand, Tensor) else ()


# One row in, one row out, element by element.

_threshold = torch.ops.aten.threshold_backward.default
Gradient = Callable[[Tensor, Any], Tensor]
UNARY: dict[str, tuple[Callable[[Tensor], Tensor], Gradient, str]] = {
    "neg": (torch.neg, lambda g, _: -g, ""),
    "relu": (torch.relu, lambda g, y: _threshold(g, y, 0), "y"),
    "tanh": (torch.tanh, torch.ops.aten.tanh_backward.default, "y"),
    "sigmoid": (torch.sigmoid, torch.ops.aten.sigmoid_backward.default, "y"),
    "exp": (torch.exp, torch.mul, "y"),
    "log": (torch.log, torch.div, "x"),
    "square": (torch.square, lambda g, x: torch.mul(g, x).mul_(2), "x"),
    "abs": (torch.abs, lambda g, x: g * torch.sgn(x), "x"),
}
"""Function, gradient from (g, what was kept), and what that is: the operand x, the result y, or nothing."""


class Unary(Operation):
    """``y = f(x)``."""

    def setup(self, settings: Mapping[str, Any]) -> None:
        self._function, self._gradient, kept = UNARY[self.step.op]
        self._kept = {"x": self.x, "y": self.at, "": -1}[kept]

    def forward(self, v: Values) -> Tensor:
        return self._function(v[self.x])

    def write(self, v: Values, out: Tensor) -> Tensor:
        if self.step.op == "relu":
            return torch.clamp_min(v[self.x], 0, out=out)
        return self._function(v[self.x], out=out)  # type: ignore[call-arg]

    def needs(self, wanted: Sequence[bool]) -> Iterable[int]:
        return () if self._kept < 0 else (self._kept,)

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        grads.add(self.x, self._gradient(g, v[self._kept]))


# Two operands, element by element, broadcast row by row.


class Binary(Operation):
    """``y = f(a, b)``. Subclasses say what the gradient of either side is, and needs."""

    def setup(self, settings: Mapping[str, Any]) -> None:
        try:
            self.shape: Shape = tuple(torch.broadcast_shapes(*self.shapes))
        except RuntimeError:
            raise PayloadError(f"rows of shapes {' and '.join(map(str, self.shapes))} do not go together") from None
        self._function, self._into = {
            "add": (operator.add, torch.add),
            "sub": (operator.sub, torch.sub),
            "mul": (operator.mul, torch.mul),
            "div": (operator.truediv, torch.div),
        }[self.step.op]
        self._aligned: list[Shape | None] = []
        self._repeated: list[tuple[int, ...]] = []
        for operand, shape in zip(self.operands, self.shapes, strict=True):
            full = (1,) * (len(self.shape) - len(shape)) + shape
            self._aligned.append(full if isinstance(operand, Ref) and full != shape else None)
            self._repeated.append(
                tuple(i + 1 for i, (mine, all_) in enumerate(zip(full, self.shape, strict=True)) if mine != all_)
            )

    def side(self, v: Values, i: int) -> Any:
        """An operand, shaped to meet the other."""
        operand, aligned = self.operands[i], self._aligned[i]
        x: Any = v[operand.index] if type(operand) is Ref else operand
        return x if aligned is None else x.reshape(x.shape[0], *aligned)

    def forward(self, v: Values) -> Tensor:
        y: Tensor = self._function(self.side(v, 0), self.side(v, 1))
        return y

    def write(self, v: Values, out: Tensor) -> Tensor:
        a, b = self.side(v, 0), self.side(v, 1)
        if not isinstance(a, Tensor) or (not isinstance(b, Tensor) and not isinstance(b, int | float)):
            return self.forward(v)
        into: Tensor = self._into(a, b, out=out)  # type: ignore[operator]
        return into

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        for i, operand in enumerate(self.operands):
            if type(operand) is Ref and wanted[operand.index]:
                piece = self.gradient(i, g, v)
                if self._repeated[i]:
                    piece = piece.sum(self._repeated[i], keepdim=True)
                if self._aligned[i] is not None:
                    piece = piece.reshape(piece.shape[0], *self.shapes[i])
                dtype = self.dtypes[i]
                grads.add(operand.index, piece if piece.dtype is dtype else piece.to(dtype))

    def gradient(self, i: int, g: Tensor, v: Values) -> Tensor:
        raise NotImplementedError

    def asks(self, wanted: Sequence[bool], i: int) -> bool:
        operand = self.operands[i]
        return isinstance(operand, Ref) and wanted[operand.index]

    def number(self, i: int) -> tuple[int, ...]:
        """The number of an operand, if it is a value."""
        operand = self.operands[i]
        return (operand.index,) if isinstance(operand, Ref) else ()


class Add(Binary):
    """``da = g``, ``db = g``."""

    def gradient(self, i: int, g: Tensor, v: Values) -> Tensor:
        return g


class Sub(Binary):
    """``da = g``, ``db = -g``."""

    def gradient(self, i: int, g: Tensor, v: Values) -> Tensor:
        return -g if i else g


class Mul(Binary):
    """``da = g b``, ``db = g a``."""

    def needs(self, wanted: Sequence[bool]) -> Iterable[int]:
        return [n for i in (0, 1) if self.asks(wanted, i) for n in self.number(1 - i)]

    def gradient(self, i: int, g: Tensor, v: Values) -> Tensor:
        piece: Tensor = g * self.side(v, 1 - i)
        return piece


class Div(Binary):
    """``da = g / b``, ``db = -g y / b``."""

    def needs(self, wanted: Sequence[bool]) -> Iterable[int]:
        return (*self.number(1), self.at) if self.asks(wanted, 1) else self.number(1)

    def gradient(self, i: int, g: Tensor, v: Values) -> Tensor:
        piece: Tensor = g / self.side(v, 1)
        return piece.mul_(v[self.at]).neg_() if i else piece


# The last dimension: concatenation, a part of it, all of it as one.


class Cat(Operation):
    """Columns of each operand go back to it."""

    def setup(self, settings: Mapping[str, Any]) -> None:
        lead = self.shapes[self._first()][:-1]
        for i, operand in enumerate(self.operands):
            if isinstance(operand, Ref):
                if not self.shapes[i] or self.shapes[i][:-1] != lead:
                    raise PayloadError(f"rows of shapes {', '.join(map(str, self.shapes))} do not go side by side")
                continue
            if not isinstance(operand, Tensor):
                operand = torch.tensor(operand, dtype=self.dtypes[self._first()], device=self.device)
            operand = operand.reshape(1) if operand.dim() == 0 else operand
            self.operands[i] = operand.expand(*lead, operand.shape[-1])
            self.shapes[i] = (*lead, operand.shape[-1])

    def _first(self) -> int:
        return next(i for i, o in enumerate(self.operands) if isinstance(o, Ref))

    def forward(self, v: Values) -> Tensor:
        rows = v[self.x].shape[0]
        return torch.cat([v[o.index] if type(o) is Ref else o.expand(rows, *o.shape) for o in self.operands], -1)  # type: ignore[union-attr]

    def write(self, v: Values, out: Tensor) -> Tensor:
        rows = v[self.x].shape[0]
        given = [v[o.index] if type(o) is Ref else o.expand(rows, *o.shape) for o in self.operands]  # type: ignore[union-attr]
        return torch.cat(given, -1, out=out)

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        start = 0
        for operand, shape, dtype in zip(self.operands, self.shapes, self.dtypes, strict=True):
            stop = start + shape[-1]
            if type(operand) is Ref and wanted[operand.index]:
                grads.add(operand.index, g[..., start:stop].to(dtype))
            start = stop


class Slice(Operation):
    """Zeros go back for the columns that were left out."""

    def setup(self, settings: Mapping[str, Any]) -> None:
        if not self.shapes[0]:
            raise PayloadError("a row that is a single number has no columns")
        self._width = self.shapes[0][-1]
        self.start, self._stop, _ = slice(settings["start"], settings["stop"]).indices(self._width)

    def forward(self, v: Values) -> Tensor:
        y: Tensor = v[self.x][..., self.start : self._stop]
        return y

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        grads.add_columns(self.x, g, self.start, self._width)


class Total(Operation):
    """The sum, or mean: every column gets the gradient, or its share."""

    repeats = True

    def setup(self, settings: Mapping[str, Any]) -> None:
        if not self.shapes[0]:
            raise PayloadError("a row that is a single number has no columns")
        self._keepdim, self.mean = settings["keepdim"], self.step.op == "mean"

    def forward(self, v: Values) -> Tensor:
        x: Tensor = v[self.x]
        return x.mean(-1, keepdim=self._keepdim) if self.mean else x.sum(-1, keepdim=self._keepdim)

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        g = g if self._keepdim else g.unsqueeze(-1)
        if self.mean:
            g = g / self.shapes[0][-1]
        grads.add(self.x, g.expand(g.shape[0], *self.shapes[0]))


class Reshape(Operation):
    """Rows of another shape."""

    def setup(self, settings: Mapping[str, Any]) -> None:
        one = torch.empty(self.shapes[0], device="meta")  # which tells what -1 is, also of no rows
        self._shape: Shape = tuple(one.reshape(settings["shape"]).shape)

    def forward(self, v: Values) -> Tensor:
        x: Tensor = v[self.x]
        return x.reshape(x.shape[0], *self._shape)

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        grads.add(self.x, g.reshape(g.shape[0], *self.shapes[0]))


class Fill(Operation):
    """The same row for every row of the operand, which has no gradient."""

    passes = False
    repeats = True

    def setup(self, settings: Mapping[str, Any]) -> None:
        self._value = torch.as_tensor(settings["value"]).detach().to(self.device)

    def forward(self, v: Values) -> Tensor:
        return self._value.expand(v[self.x].shape[0], *self._value.shape)


# Anything else.


class Call(Operation):
    """A user's function of one row per operand, over all rows (see `ampnet.nodes.together`); constants are not mapped.

    The backward computes it again, under autograd, from the operands.
    """

    repeats = True

    def setup(self, settings: Mapping[str, Any]) -> None:
        mapped = [isinstance(o, Ref) for o in self.operands]
        some = zip(self.operands, self.shapes, self.dtypes, strict=True)
        examples = [o if isinstance(o, Tensor) else torch.empty(1, *n, dtype=t, device=self.device) for o, n, t in some]
        self._mapped = rows_at_once(settings["function"], examples, mapped)

    def _run(self, given: list[Any]) -> Tensor:
        y = self._mapped(*given)
        if not isinstance(y, Tensor):
            raise PayloadError(f"must give one tensor a row, got {type(y).__name__}")
        return y

    def forward(self, v: Values) -> Tensor:
        if not v[self.x].shape[0]:  # vmap needs at least one row
            return self._run([self._any_row(v[o.index]) if isinstance(o, Ref) else o for o in self.operands])[:0]
        given = [v[o.index] if isinstance(o, Ref) else o for o in self.operands]
        before = [x._version for x in given if isinstance(x, Tensor)]
        y = self._run(given)
        if before != [x._version for x in given if isinstance(x, Tensor)]:
            raise PayloadError("writes into its input, which other nodes share: use the version that is not in place")
        return y

    def _any_row(self, x: Tensor) -> Tensor:
        return x.new_zeros(1, *x.shape[1:])

    def needs(self, wanted: Sequence[bool]) -> Iterable[int]:
        return self.refs

    def backward(self, g: Tensor, v: Values, grads: Gradients, wanted: Sequence[bool]) -> None:
        if not g.shape[0]:
            for i in {i for i in self.refs if wanted[i]}:
                grads.add(i, torch.zeros_like(v[i]))
            return
        with torch.enable_grad():
            leaves = {i: v[i].detach().requires_grad_(wanted[i]) for i in set(self.refs)}
            y = self._run([leaves[o.index] if isinstance(o, Ref) else o for o in self.operands])
            asked = [i for i in leaves if wanted[i]]
            if not y.requires_grad:
                return
            pieces = torch.autograd.grad(y, [leaves[i] for i in asked], g, allow_unused=True)
        for i, piece in zip(asked, pieces, strict=True):
            if piece is not None:
                grads.add(i, piece)


READY: dict[str, type[Operation]] = {
    **dict.fromkeys(UNARY, Unary),
    "add": Add,
    "sub": Sub,
    "mul": Mul,
    "div": Div,
    "cat": Cat,
    "slice": Slice,
    "sum": Total,
    "mean": Total,
    "reshape": Reshape,
    "fill": Fill,
    "call": Call,
}
"""By name, the class that makes a step ready."""
