"""Int: an integer of the instance. Only such integers decide control flow.

In eager mode they are plain Python integers. During compilation they are expressions over the fields of a message's
state and the arrays of its instance's structure; `function` converts one to a function of whole batches of states:

    steps           a field of the state                     s.columns[1]
    order[t]        an array of the structure, by a field    v.get('order', s.columns[2])
    n // 2 > t      arithmetic and comparison on them

If a loop carries integers (``while n > 1: n = n // 2``), their value in a round is computed from the value before the
loop and the number of the round, so the backward pass has nothing to undo (`Rounds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ampnet.errors import ModelError, StateError
from ampnet.lang.line import here
from ampnet.state import Column, Ints

if TYPE_CHECKING:
    from ampnet.lang.scope import Axis

MOST_ROUNDS = 1_000_000
"""A loop with more rounds than this raises an error: it is assumed never to end."""

_BINARY = {"+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "&", "|"}


class Int:
    """An integer that is known for each message of a run, not at compile time. Immutable."""

    __slots__ = ("args", "axes", "op")

    def __init__(self, op: str, *args: Any, axes: frozenset[Axis] = frozenset()) -> None:
        """``op``: the sign of a binary operation, "neg", "count" (clamped to at least 0), or

        "scalar" (name)       a field of the state                "index" (axis)          the position on an axis
        "lookup" (array, i)   an array of the structure           "rounds" (rounds)       the number of rounds of a loop
        "carried" (rounds, k), "after" (rounds, k, count)         an integer of a loop, in it and after it
        "place" (i, size, name)                                   an index of elements; -1 is the last

        ``axes``: the scopes it varies over, besides those of its parts.
        """
        self.op, self.args = op, args
        self.axes: frozenset[Axis] = axes.union(*(a.axes for a in args if isinstance(a, Int)))

    def __repr__(self) -> str:
        names = [a.name if hasattr(a, "name") else str(a) for a in self.args if not isinstance(a, Rounds)]
        if self.op in _BINARY:
            return f"({names[0]} {self.op} {names[1]})"
        if self.op == "lookup":
            own = isinstance(self.args[1], Int) and self.args[1].op == "index"
            return names[0] if own else f"{names[0]}[{names[1]}]"
        return names[0] if self.op in ("scalar", "index", "place") else f"{self.op}({', '.join(names)})"

    def _binary(self, sign: str, other: object, swapped: bool = False) -> Int:
        if isinstance(other, bool | np.bool_ | np.integer):
            other = int(other)
        if not isinstance(other, int | Int):
            raise ModelError(
                f"an integer of the instance meets a {type(other).__name__}; it can be combined with integers only. "
                f"To calculate with its value, pass it to the model as a tensor as well",
                here(),
            )
        return Int(sign, other, self) if swapped else Int(sign, self, other)

    def __add__(self, other: object) -> Int:
        return self._binary("+", other)

    def __radd__(self, other: object) -> Int:
        return self._binary("+", other, True)

    def __sub__(self, other: object) -> Int:
        return self._binary("-", other)

    def __rsub__(self, other: object) -> Int:
        return self._binary("-", other, True)

    def __mul__(self, other: object) -> Int:
        return self._binary("*", other)

    def __rmul__(self, other: object) -> Int:
        return self._binary("*", other, True)

    def __floordiv__(self, other: object) -> Int:
        return self._binary("//", other)

    def __rfloordiv__(self, other: object) -> Int:
        return self._binary("//", other, True)

    def __mod__(self, other: object) -> Int:
        return self._binary("%", other)

    def __rmod__(self, other: object) -> Int:
        return self._binary("%", other, True)

    def __lt__(self, other: object) -> Int:
        return self._binary("<", other)

    def __le__(self, other: object) -> Int:
        return self._binary("<=", other)

    def __gt__(self, other: object) -> Int:
        return self._binary(">", other)

    def __ge__(self, other: object) -> Int:
        return self._binary(">=", other)

    def __eq__(self, other: object) -> Int:  # type: ignore[override]
        return self._binary("==", other)

    def __ne__(self, other: object) -> Int:  # type: ignore[override]
        return self._binary("!=", other)

    def __and__(self, other: object) -> Int:
        return self._binary("&", other)

    def __rand__(self, other: object) -> Int:
        return self._binary("&", other, True)

    def __or__(self, other: object) -> Int:
        return self._binary("|", other)

    def __ror__(self, other: object) -> Int:
        return self._binary("|", other, True)

    def __invert__(self) -> Int:
        raise ModelError(
            "'~' of an integer of the instance: eagerly, Python makes -1 and -2 of False and True. Use the opposite "
            "comparison, or 1 - condition",
            here(),
        )

    def __neg__(self) -> Int:
        return Int("neg", self)

    __hash__ = object.__hash__

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(function, "__name__", "function").strip("_")
        raise ModelError(
            f"torch's {name} is given an integer of the instance; to calculate with it, pass it to the model as a "
            f"tensor as well",
            here(),
        )

    def _unknown(self, what: str) -> NoReturn:
        raise ModelError(
            f"{what} asks for the value of an integer of the instance, which is not known while the model is compiled. "
            f"Use choose(...) to choose by it, repeat(..., times=...) or repeat(..., while_=...) to loop by it, & and "
            f"| instead of 'and' and 'or', and the opposite comparison instead of 'not'",
            here(),
        )

    def __bool__(self) -> bool:
        self._unknown("a Python 'if', 'while', 'and', 'or' or 'not'")

    def __index__(self) -> int:
        self._unknown("an index or range(...)")

    def __int__(self) -> int:
        self._unknown("int(...)")

    def __float__(self) -> float:
        self._unknown("float(...)")


class Rounds:
    """The integers that a loop carries, and the condition for another round. Filled in while its body is traced."""

    def __init__(self, axis: Axis, starts: Sequence[Int | int]) -> None:
        self.axis, self.starts = axis, list(starts)
        self.updates: list[Int | int] = []
        self.condition: Int | int | None = None

    def value(self, place: int) -> Int:
        """Returns the carried integer at this index, in the current round."""
        return Int("carried", self, place, axes=frozenset({self.axis}))

    def function(self, coder: Coder) -> _Iterated:
        """Returns an object that computes the integers for batches of states."""
        inner = Coder(coder.fields, {**coder.inside, self: [f"n{i}" for i in range(len(self.starts))]})
        names = "".join(f", n{i}" for i in range(len(self.starts)))
        starts = [_compile(f"lambda s, v: {inner.text(i)}", inner) for i in self.starts]
        updates = [_compile(f"lambda s, v, i{names}: {inner.text(i)}", inner) for i in self.updates]
        condition = 1 if self.condition is None else self.condition
        return _Iterated(starts, updates, _compile(f"lambda s, v, i{names}: {inner.text(condition)}", inner))


class _Iterated:
    """Computes the integers of a loop for batches of states."""

    def __init__(
        self, starts: list[Callable[..., Any]], updates: list[Callable[..., Any]], condition: Callable[..., Any]
    ) -> None:
        self.starts, self.updates, self.condition = starts, updates, condition

    def _start(self, s: Any, v: Any) -> list[Column]:
        return [_column(f(s, v), s) for f in self.starts]

    def _next(self, i: int, s: Any, v: Any, now: list[Column]) -> list[Column]:
        return [_column(f(s, v, i, *now), s) for f in self.updates]

    def at(self, place: int, step: Column, s: Any, v: Any) -> Column:
        """Returns the carried integer at this index after the given number of rounds."""
        now, left = self._start(s, v), np.arange(len(s))
        out = np.array(now[place], dtype=np.int64)
        for i in range(int(step.max()) if len(step) else 0):
            s, v, now, left = _those(step[left] > i, s, v, now, left)
            now = self._next(i, s, v, now)
            out[left] = now[place]
        return out

    def rounds(self, s: Any, v: Any) -> Column:
        """Returns the number of rounds of the loop."""
        now, left, count = self._start(s, v), np.arange(len(s)), np.zeros(len(s), dtype=np.int64)
        for i in range(MOST_ROUNDS):
            going = _column(self.condition(s, v, i, *now), s).astype(bool)
            s, v, now, left = _those(going, s, v, now, left)
            if not len(left):
                return count
            count[left] += 1
            now = self._next(i, s, v, now)
        raise StateError(
            f"the condition of a loop still holds after {MOST_ROUNDS} rounds, at {s.take(np.arange(1)).describe()}"
        )


def _column(value: Any, s: Any) -> Column:
    """Returns a value for each state."""
    return np.broadcast_to(np.asarray(value), (len(s),))


def _those(keep: Column, s: Any, v: Any, now: list[Column], left: Ints) -> tuple[Any, Any, list[Column], Ints]:
    """Returns the states that have a further round. For the others its integers may not exist: an index past the
    end."""
    if keep.all():
        return s, v, now, left
    s = s.take(keep)
    return s, None if v is None else v.at(s), [column[keep] for column in now], left[keep]


class Coder:
    """Generates Python source for expressions over ``s`` (states with these fields) and ``v`` (their structure)."""

    def __init__(self, fields: Sequence[str], inside: dict[Rounds, list[str]] | None = None) -> None:
        self.fields = tuple(fields)
        self.inside = inside or {}
        self.names: dict[str, Any] = {"np": np, "place": _place}

    def text(self, value: Int | int) -> str:
        if not isinstance(value, Int):
            return str(int(value))
        op, args = value.op, value.args
        if op == "scalar":
            return self._column(args[0])
        if op == "index":
            return "i" if any(r.axis is args[0] for r in self.inside) else self._column(args[0].name)
        if op == "lookup":
            return f"v.get({args[0]!r}, {self.text(args[1])})"
        if op == "count":
            return f"np.maximum({self.text(args[0])}, 0)"
        if op == "neg":
            return f"(-{self.text(args[0])})"
        if op == "place":
            return f"place({self.text(args[0])}, {self.text(args[1])}, {args[2]!r}, s)"
        if op == "carried":
            rounds: Rounds = args[0]
            if rounds in self.inside:
                return str(self.inside[rounds][args[1]])
            return f"{self._name(rounds)}.at({args[1]}, {self._column(rounds.axis.name)}, s, v)"
        if op == "after":
            return f"{self._name(args[0])}.at({args[1]}, np.broadcast_to({self.text(args[2])}, (len(s),)), s, v)"
        if op == "rounds":
            return f"{self._name(args[0])}.rounds(s, v)"
        return f"({self.text(args[0])} {op} {self.text(args[1])})"

    def _column(self, name: str) -> str:
        return f"s.columns[{self.fields.index(name)}]"

    def _name(self, rounds: Rounds) -> str:
        name = f"rounds{len(self.names)}"
        self.names[name] = rounds.function(self)
        return name


def _compile(text: str, coder: Coder) -> Callable[..., Any]:
    function: Callable[..., Any] = eval(text, coder.names)
    return function


def _place(index: Any, size: Any, name: str, s: Any) -> Column:
    """Returns indices counted from 0 (-1 is the last element). Raises `StateError` for an index out of range."""
    index, size = np.broadcast_to(index, (len(s),)), np.broadcast_to(size, (len(s),))
    found: Column = np.where(index < 0, index + size, index)
    wrong = np.flatnonzero((found < 0) | (found >= size))
    if len(wrong):
        k = wrong[:1]
        raise StateError(
            f"element {int(index[k][0])} of '{name}' was asked for; it has {int(size[k][0])}, at {s.take(k).describe()}"
        )
    return found


def substituted(value: Int, at: Mapping[Axis, Int]) -> Int:
    """Returns the expression with other positions on these axes."""
    if not any(axis in value.axes for axis in at):
        return value
    if value.op == "index":
        return at[value.args[0]]
    if any(isinstance(arg, Rounds) for arg in value.args):
        raise ModelError(
            "an element is asked for by its index among integers that a loop inside of each element works out; give "
            "the loop's result as a column of the Seq instead",
            here(),
        )
    return Int(value.op, *(substituted(arg, at) if isinstance(arg, Int) else arg for arg in value.args))


def parts(*values: Int | int | None) -> Iterator[Int]:
    """Yields these expressions and all their subexpressions, each once."""
    seen: set[int] = set()
    todo: list[Any] = list(values)
    while todo:
        part = todo.pop()
        if not isinstance(part, Int | Rounds) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Int):
            yield part
            todo += part.args
        else:
            todo += [*part.starts, *part.updates, part.condition]


def needs_structure(value: Int | int) -> bool:
    """Whether it can be evaluated on real states only: it reads their structure, or depends on a loop's condition.

    (Graphs are checked on sample states before a run; on a sample state a loop may never end.)
    """
    return any(part.op in ("lookup", "rounds", "place") for part in parts(value))


def function(value: Int | int, fields: Sequence[str]) -> Callable[..., Any]:
    """Compile the expression to a function of states with these fields: ``f(s)``; ``f(s, v)`` if it needs structure."""
    coder = Coder(fields)
    text = coder.text(value) if isinstance(value, Int) else f"np.full(len(s), {int(value)})"
    if needs_structure(value):
        return _compile(f"lambda s, v: {text}", coder)
    coder.names["v"] = None  # the structure argument of a loop's integers, if there is no structure
    return _compile(f"lambda s: {text}", coder)
