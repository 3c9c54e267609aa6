"""Program: a straight line of operations on rows, written down so that one node can run it and a compiler can merge it.

    program = Program(inputs=2)                      Ref(0), Ref(1): the inputs
    gate = program.add("sigmoid", Ref(0))            Ref(2): the result of the first step
    program.add("mul", gate, Ref(1))                 Ref(3): the last result leaves, unless ``out`` says otherwise

What an operation means is stated for **one row**. A program runs on many rows at once, which are all alike and never
mix: a value of row shape ``(3,)`` is a tensor ``[rows, 3]``, and a row of shape ``()`` is a single number. Where two
rows of different shapes meet, they are broadcast as torch does it with the rows alone.

    operation                      of one row                                  keeps for the backward
    add sub mul div  a, b          elementwise                                 nothing; nothing; a, b; b, y
    neg relu tanh sigmoid exp  x   elementwise                                 nothing; else y
    log square abs  x              elementwise                                 x
    cat  a, b, ...                 side by side in the last dimension          nothing
    slice  x  start= stop=         x[..., start:stop]                          nothing
    sum mean  x  keepdim=          over the last dimension                     nothing
    reshape  x  shape=             the same numbers, a row of another shape    nothing
    fill  x  value=                the value, whatever x is                    nothing
    call  a, b, ...  function=     any differentiable torch function of rows   a, b, ...

Operands are results (`Ref`), numbers, or constant tensors of the shape of one row or less, which are applied to every
row. Nothing is kept for operands without a gradient: constants, and rows of integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Ref:
    """The number of a value: inputs come first, then the results of the steps, in order."""

    index: int


Operand = Ref | float | int | Tensor
"""A result, a number, or a constant."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One operation of a program."""

    op: str
    operands: tuple[Operand, ...]
    settings: dict[str, Any]

    def name(self) -> str:
        """A word for drawings: that of the operation, or of the function it calls."""
        name = getattr(self.settings.get("function"), "__name__", "<lambda>")
        return self.op if name == "<lambda>" else str(name)


_MUST = object()
"""A setting that has to be given."""

_ELEMENTWISE: dict[str, object] = {}
OPERATIONS: dict[str, tuple[int | None, dict[str, object]]] = {
    **dict.fromkeys(("add", "sub", "mul", "div"), (2, _ELEMENTWISE)),
    **dict.fromkeys(("neg", "relu", "tanh", "sigmoid", "exp", "log", "square", "abs"), (1, _ELEMENTWISE)),
    "cat": (None, {}),
    "slice": (1, {"start": 0, "stop": None}),
    "sum": (1, {"keepdim": False}),
    "mean": (1, {"keepdim": False}),
    "reshape": (1, {"shape": _MUST}),
    "fill": (1, {"value": _MUST}),
    "call": (None, {"function": _MUST}),
}
"""By name: how many operands (None: one or more), and the settings with their defaults."""


def moved(constant: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What `torch.nn.Module.to` makes of a tensor: integers stay integers."""
    holder = nn.Module()
    holder.register_buffer("constant", constant)
    return holder.to(*args, **kwargs).get_buffer("constant")


class Program:
    """Steps, each of which uses the inputs and the results of steps before it. See the head of this file."""

    def __init__(self, inputs: int) -> None:
        if inputs < 1:
            raise ValueError(f"a program needs at least one input, got {inputs}")
        self.inputs = inputs
        self.steps: list[Step] = []
        self._out: Ref | None = None

    def __repr__(self) -> str:
        steps = ", ".join(f"{self.inputs + i}={step.op}" for i, step in enumerate(self.steps))
        return f"Program({self.inputs} inputs; {steps or 'no steps'}; out={self.out.index})"

    @property
    def size(self) -> int:
        """The number of values, including inputs."""
        return self.inputs + len(self.steps)

    @property
    def out(self) -> Ref:
        """The value that leaves; by default the last one."""
        return self._out if self._out is not None else Ref(self.size - 1)

    @out.setter
    def out(self, ref: Ref) -> None:
        self._check_ref(ref)
        self._out = ref

    def add(self, op: str, *operands: Operand, **settings: Any) -> Ref:
        """One more step. Returns its result."""
        if op not in OPERATIONS:
            raise ValueError(f"no operation '{op}'; there are {', '.join(OPERATIONS)}")
        count, known = OPERATIONS[op]
        if len(operands) != count if count is not None else not operands:
            raise ValueError(f"'{op}' takes {count or 'one or more'} operand(s), got {len(operands)}")
        for operand in operands:
            if isinstance(operand, Ref):
                self._check_ref(operand)
            elif not isinstance(operand, int | float | Tensor):
                raise TypeError(f"an operand is a Ref, a number or a tensor, got {type(operand).__name__}")
        if not any(isinstance(operand, Ref) for operand in operands):
            raise ValueError(f"'{op}' of constants alone has no rows; compute it beforehand")
        for name in settings.keys() - known.keys():
            raise ValueError(f"'{op}' has no setting '{name}'; it has {', '.join(known) or 'none'}")
        given = {**known, **settings}
        for name in (n for n, value in given.items() if value is _MUST):
            raise ValueError(f"'{op}' needs {name}=...")
        self.steps.append(Step(op, operands, given))
        return Ref(self.size - 1)

    def to(self, *args: Any, **kwargs: Any) -> None:
        """Move or cast its constants, as `torch.nn.Module.to` does with parameters."""
        self.steps = [
            Step(
                step.op,
                tuple(moved(o, *args, **kwargs) if isinstance(o, Tensor) else o for o in step.operands),
                {n: moved(s, *args, **kwargs) if isinstance(s, Tensor) else s for n, s in step.settings.items()},
            )
            for step in self.steps
        ]

    def view(self) -> list[tuple[int, tuple[int, int] | None]] | None:
        """(input, columns) of the pieces that the result consists of, side by side, where it is nothing but columns of
        the inputs; None where anything is computed."""
        known: list[list[tuple[int, tuple[int, int] | None]] | None] = [[(i, None)] for i in range(self.inputs)]
        for step in self.steps:
            known.append(_pieces(step, known))
        return known[self.out.index]

    def _check_ref(self, ref: Ref) -> None:
        if not 0 <= ref.index < self.size:
            raise ValueError(f"{ref} does not exist yet; there are {self.size} values, from 0 up")

    def inline(self, other: Program, operands: Sequence[Ref]) -> Ref:
        """Append all steps of another program, with these values as its inputs. Returns what leaves it."""
        if len(operands) != other.inputs:
            raise ValueError(f"the other program has {other.inputs} input(s), got {len(operands)} operand(s)")
        known = list(operands)
        for step in list(other.steps):
            mine = [known[o.index] if isinstance(o, Ref) else o for o in step.operands]
            known.append(self.add(step.op, *mine, **step.settings))
        return known[other.out.index]


def _pieces(
    step: Step, known: Sequence[list[tuple[int, tuple[int, int] | None]] | None]
) -> list[tuple[int, tuple[int, int] | None]] | None:
    given = [known[o.index] if isinstance(o, Ref) else None for o in step.operands]
    if step.op == "cat":
        return None if any(one is None for one in given) else [piece for one in given for piece in one or ()]
    start, stop = step.settings.get("start") or 0, step.settings.get("stop")
    if step.op != "slice" or given[0] is None or len(given[0]) != 1 or stop is None or not 0 <= start < stop:
        return None
    ((place, columns),) = given[0]
    if columns is None:
        return [(place, (start, stop))]
    return [(place, (columns[0] + start, min(columns[0] + stop, columns[1])))]
