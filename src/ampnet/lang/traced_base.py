"""Shared steps of the combinators, in a model that is being compiled: axes, families, merging, grouping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ampnet.lang import moves
from ampnet.lang.eager import two_scopes
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.nest import leaves, rebuild
from ampnet.lang.packs import Pack, frames
from ampnet.lang.proto import Proto
from ampnet.lang.scope import Axis
from ampnet.lang.symbols import Each, Moved, Place, Symbol, Symbolic
from ampnet.lang.trace import Trace
from ampnet.lang.value import Value
from ampnet.nodes import Isu, Phi, Reduce

Body = Callable[..., Any]


class TracedBase:
    """Steps that several combinators take."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def _axis(self, families: Sequence[Any]) -> Axis:
        if not families:
            self.trace.fail("there is nothing to go through: give a Seq, a Tree, Edges, or what was made of one")
        found: list[Axis] = []
        for family in families:
            if not isinstance(family, Symbolic):
                self.trace.fail(
                    f"a Seq, Tree or Edges, or a value for each element of one, is wanted here; got "
                    f"{type(family).__name__}"
                )
            found.append(family._axis)
        for axis in found:
            if axis is not found[0]:
                self.trace.fail(two_scopes(f"'{found[0].name}'", f"'{axis.name}'"))
        return found[0]

    def _family(self, axis: Axis, made: Any) -> Any:
        """Returns a function's result inside an axis as families over it."""
        if made is None:
            return None
        return rebuild(made, iter([Each(self.trace, axis, self._brought(v)) for v in leaves(made)]))

    def _brought(self, made: Any) -> Any:
        """Returns a function's result at the scope of the current line; a family element by element."""
        if isinstance(made, Each | Moved):
            with self.trace.inside(*frames(made._axis)):
                return Each(self.trace, made._axis, self._brought(made._element()))
        return made if isinstance(made, Int | Symbol | Place) else self.trace.bring(made)

    def _phi(self, name: str, inputs: list[Value | None], ports: tuple[str, ...]) -> Value:
        """Merge several branches into one, at the scope of the current line."""
        trace = self.trace
        key, given = trace.scope.key, next(v for v in inputs if v is not None)
        proto = Proto(trace.name(name), inputs, ("out",), here(), lambda plan: Phi(ports, key=key), ports)
        return trace.emit(proto, (trace.scope, given.row))

    # -- members of a group as a family        edge e, child c ──> isu ──> (target, place there)

    def _members(
        self, old: Axis, new: Axis, members: Axis, ends: tuple[Int, Int, Int], values: Sequence[Value], pack: Pack
    ) -> Any:
        """Convert values over ``old`` to families over the members of each element of ``new``."""
        trace, moved = self.trace, []
        with trace.inside(members):
            for value in values:
                scope = value.scope

                def build(plan: Any, scope: Any = scope) -> Isu:
                    return Isu(*moves.member(plan, scope, old, new, members, *ends))

                proto = Proto(
                    trace.name(f"{members.name}_of"), [value], ("out",), here(), build,
                    ints=ends, note=f"to each of {members.name}",
                )  # fmt: skip
                moved.append(trace.emit(proto, (trace.scope, value.row)))
            return self._family(members, pack.unpacked(moved))

    def _reduced(self, value: Value, reduction: str) -> Value:
        key = value.scope.key
        proto = Proto(
            self.trace.name(reduction),
            [value],
            ("out",),
            here(),
            lambda plan: Reduce(reduction, key=key),  # type: ignore[arg-type]
        )
        return self.trace.emit(proto, (value.scope, value.row))
