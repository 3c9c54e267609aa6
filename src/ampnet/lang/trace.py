"""Trace: the record of one run of a model on symbols instead of tensors.

A `Value` stands for one row of a tensor, that of one instance or of one element (`ampnet.lang.value`); a `Proto` for a
future node of the graph (`ampnet.lang.proto`). `Trace.bring` connects scopes: a value that is used inside an "each", a
loop or a choice that it was made outside of is broadcast into it.

    h made at       used inside of      is brought there by
    instance        each atom           a Flatmap: a copy for each atom
    each atom       a round of a loop   a Flatmap: a copy for each round
    instance        a branch            a Cond: only the messages that take the branch

A value with an axis that does not enclose the current line has no meaning there: `ModelError`, with that line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ampnet.errors import ModelError, StateError
from ampnet.lang import moves
from ampnet.lang.family import Family
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.proto import Proto, Pump
from ampnet.lang.scope import Axis, Choice, Frame, Guard, Scope
from ampnet.lang.spaces import Space
from ampnet.lang.value import Value, meta
from ampnet.nodes import Cond, Flatmap
from ampnet.state import check_field_names

current: ContextVar[Trace | None] = ContextVar("current", default=None)
"""The current trace, while a model is compiled."""


class Trace:
    """All protos in order of creation, and the current scope."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.protos: list[Proto] = []
        self.frames: list[Frame] = []
        self.axes = 0
        self.names: set[str] = set()
        """Used names of nodes and inputs."""
        self.fields: set[str] = {"instance"}
        """Used names of state fields."""
        self.scalars: dict[str, Callable[[Sequence[Any]], int]] = {}
        """By name, a function that computes it from the arguments of ``forward``."""
        self.arrays: dict[str, Callable[[Sequence[Any]], Any]] = {}
        self.loops: list[Any] = []
        """The protos of every loop (`ampnet.lang.passes.loops.Control`)."""
        self.checks: list[Callable[[Sequence[Any]], None]] = []
        """Checks that the arguments of every instance must pass."""
        self.modules = {id(m): self.name(name) for name, m in model.named_modules(remove_duplicate=True) if name}
        """The node names of submodules, by id."""
        self.parameters = {id(p): name for name, p in model.named_parameters()}
        self.kept: list[nn.Module] = []
        """Modules that are not submodules of the model: attention, a Linear of a bare parameter."""
        self.returned: Any = None
        """The return value of ``forward``."""
        self._brought: dict[tuple[int, int], Value] = {}
        self._parted: dict[tuple[int, int], Proto] = {}
        self._constants: dict[int, tuple[Tensor, Value]] = {}
        self.guards: dict[tuple[int, int], Guard] = {}

    # -- names and axes

    def name(self, wanted: str) -> str:
        """Returns an unused name for a node or input, derived from the wanted one."""
        return _free("".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "value", self.names)

    def field(self, wanted: str) -> str:
        """Returns an unused name for a state field."""
        try:
            check_field_names((wanted,))
        except StateError:
            wanted = f"{wanted.strip('_')}_"
        return _free(wanted, self.fields)

    def axis(self, name: str, kind: Any, size: Int | int) -> Axis:
        self.axes += 1
        return Axis(self.axes, self.field(name), kind, size)

    def guard(self, choice: Choice, way: int) -> Guard:
        return self.guards.setdefault((id(choice), way), Guard(choice, way))

    # -- the current scope

    @property
    def scope(self) -> Scope:
        scope = Scope()
        for frame in self.frames:
            scope = scope.entering(frame) if isinstance(frame, Axis) else scope.guarded(frame)
        return scope

    @contextmanager
    def inside(self, *frames: Frame | None) -> Iterator[None]:
        """A context inside an axis or a branch of a choice."""
        new = [f for f in frames if f is not None]
        for frame in new:
            if isinstance(frame, Axis) and frame in self.frames:
                self.fail(
                    f"inside of each element of '{frame.name}', the elements of '{frame.name}' are gone through again; "
                    f"which of the two is meant cannot be told. To go through all pairs, give the model the same Seq "
                    f"as a second argument"
                )
            if not isinstance(frame, Axis) or not isinstance(frame.size, Int):
                continue
            for axis in frame.size.axes:
                if axis not in self.frames and axis not in new:
                    self.fail(
                        f"the elements of '{frame.name}' are those of one element of '{axis.name}', and this line is "
                        f"not inside of that: each(lambda inner: ..., families) goes through the outer elements first"
                    )
        self.frames += new
        try:
            yield
        finally:
            del self.frames[len(self.frames) - len(new) :]

    def fail(self, fault: str) -> NoReturn:
        raise ModelError(fault, here())

    # -- values

    def emit(self, proto: Proto, *outputs: tuple[Scope, Tensor]) -> Value:
        """Record a proto; returns its first output."""
        if not torch.is_grad_enabled():
            self.fail(
                "torch.no_grad() inside of a model has no meaning for messages: use value.detach() where no gradient "
                "is to pass"
            )
        self.protos.append(proto)
        proto.outputs = [Value(self, proto, i, scope, row) for i, (scope, row) in enumerate(outputs)]
        if not proto.into and proto.inputs:
            proto.into = ("in",) if len(proto.inputs) == 1 else tuple("abcdefghijklmnopqrstuvwxyz"[: len(proto.inputs)])
        return proto.outputs[0] if proto.outputs else None  # type: ignore[return-value]

    def check_int(self, value: Any, what: str) -> Int | int:
        """Returns an integer; raises `ModelError` if it cannot be used at the current line."""
        if isinstance(value, Int):
            outside = [a.name for a in value.axes if a not in self.frames]
            if outside:
                self.fail(
                    f"{what} is an integer for each element of '{outside[0]}', used outside of its scope. Only inside "
                    f"of each, fold or fold_tree over '{outside[0]}' is it known which one is meant"
                )
        elif isinstance(value, Tensor | Value):
            self.fail(
                f"{what} is a tensor. Control flow is decided by integers of the instance: pass them as plain integers "
                f"(a list or NumPy array), not as a tensor"
            )
        elif not isinstance(value, int):
            self.fail(f"{what} must be a whole number, got a {type(value).__name__}")
        checked: Int | int = value
        return checked

    def bring(self, given: Any) -> Value:
        """Returns the value (or constant), at the scope of the current line."""
        value: Value = self.value(given)
        for frame in self.frames:
            if isinstance(frame, Axis) and frame not in value.scope.axes:
                value = self._once(value, frame, self._spread)
            elif isinstance(frame, Guard) and frame not in value.scope.guards:
                value = self._once(value, frame, self._part)
        for axis in value.scope.axes:
            if axis not in self.frames:
                self.fail(
                    f"a value is used outside of its scope: it was made at {value.proto.line} for each element of "
                    f"'{axis.name}', and this line is not inside of that. each(...) and fold(...) work on the "
                    f"elements; to take a result out, return it from their function"
                )
        for guard in value.scope.guards:
            if guard not in self.frames:
                way = guard.choice.names[guard.way]
                self.fail(
                    f"a value is used outside of its scope: it was made at {value.proto.line} inside of one way of a "
                    f"choice ({way}), and this line is not. Return it from the option instead"
                )
        return value

    def _once(self, value: Value, frame: Frame, move: Callable[[Value, Any], Value]) -> Value:
        known = (id(value), id(frame))
        if known not in self._brought:
            self._brought[known] = move(value, frame)
        return self._brought[known]

    def value(self, given: Any) -> Value:
        """Returns a value unchanged, and a constant as a value."""
        if isinstance(given, Value):
            if given.trace is not self:
                self.fail("a value of another compilation is used here: was it stored on the model?")
            return given
        if isinstance(given, Family | Space):
            self.fail(
                "a value for each element of something is used as one value, outside of its scope. each(function, "
                "family) works on the elements; reduce(family, 'sum') makes one value of them"
            )
        if isinstance(given, nn.Parameter):
            return self.parameter(given)
        if isinstance(given, Int):
            self.fail("an integer of the instance is used as a tensor; pass it to the model as a tensor as well")
        if isinstance(given, bool | int | float):
            given = torch.tensor(given, dtype=torch.get_default_dtype() if isinstance(given, float) else None)
        if not isinstance(given, Tensor):
            self.fail(f"a tensor is wanted here, got {type(given).__name__}")
        if id(given) not in self._constants:
            row = given.detach()
            proto = Proto(self.name("constant"), [], ("out",), here(), pump=Pump(constant=row))
            self._constants[id(given)] = (given, self.emit(proto, (Scope(), meta(row))))
        return self._constants[id(given)][1]

    def parameter(self, given: nn.Parameter) -> Value:
        """Returns a bare parameter as a value at the scope of the instance."""
        from ampnet.nodes import Weight

        if id(given) not in self._constants:
            if id(given) not in self.parameters:
                self.fail("a parameter is used that does not belong to the model: register it as an attribute")
            name = self.parameters[id(given)]
            with self.outside():
                trigger = self.value(torch.zeros(1))
            proto = Proto(
                self.name(name), [trigger], ("out",), here(), build=lambda plan: Weight(given, name.replace(".", "_"))
            )
            proto.parameter = given
            self._constants[id(given)] = (given, self.emit(proto, (Scope(), meta(given))))
        return self._constants[id(given)][1]

    def is_parameter(self, value: Value) -> bool:
        return value.proto.parameter is not None

    @contextmanager
    def outside(self) -> Iterator[None]:
        """A context at the scope of the instance."""
        frames, self.frames = self.frames, []
        try:
            yield
        finally:
            self.frames = frames

    def _spread(self, value: Value, axis: Axis) -> Value:
        """Returns a copy for each element of an axis."""
        before = value.scope
        after = before.entering(axis)
        if axis.real is not None:
            after = after.guarded(axis.real)
        proto = Proto(
            self.name(f"{axis.name}_each"),
            [value],
            ("out",),
            here(),
            lambda plan: Flatmap(moves.spread(plan, before, axis), key=after.key),
            ints=(axis.size,),
            note=f"to each of {axis.name}",
        )
        return self.emit(proto, (after, value.row))

    def _part(self, value: Value, guard: Guard) -> Value:
        """Returns the messages that take one branch of a choice."""
        known = (id(value), id(guard.choice))
        if known not in self._parted:
            self._parted[known] = self.parting(value, guard.choice)
        return self._parted[known].outputs[guard.way]

    def parting(self, value: Value, choice: Choice) -> Proto:
        scope = value.scope
        proto = Proto(
            self.name("cond"),
            [value],
            choice.names,
            here(),
            lambda plan: Cond(moves.route(plan, scope, choice.index), choice.names),
            ints=(choice.index,),
            note=f"by {choice.index!r}",
        )
        ways = [(scope.guarded(self.guard(choice, way)), value.row) for way in range(len(choice.names))]
        self.emit(proto, *ways)
        return proto


def _free(base: str, taken: set[str]) -> str:
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}{n}"
    taken.add(name)
    return name
