"""Traced: the combinators in a model that is being compiled. One method each, with its graph drawn above it.

Trees and messages along edges have files of their own (`ampnet.lang.traced_tree`, `ampnet.lang.traced_edges`).

Inside their functions `Trace.frames` holds the enclosing axes and branches; values used there are brought into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ampnet.lang import moves
from ampnet.lang.family import Family
from ampnet.lang.ints import Int, Rounds
from ampnet.lang.line import here
from ampnet.lang.nest import leaves, rebuild, takes
from ampnet.lang.packs import Pack, frames
from ampnet.lang.passes.loops import Control
from ampnet.lang.proto import Proto
from ampnet.lang.scope import Axis, Choice
from ampnet.lang.symbols import Each, Place
from ampnet.lang.traced_base import Body
from ampnet.lang.traced_edges import TracedEdges
from ampnet.lang.traced_tree import TracedTree
from ampnet.lang.value import Value
from ampnet.nodes import Cond, Group, Isu, Loss
from ampnet.nodes.metrics import Ratio


class Traced(TracedTree, TracedEdges):
    """The combinators on symbols."""

    # -- each element                          family ──> function ──> family          no node of its own

    def each(self, function: Body, families: Sequence[Any]) -> Any:
        axis = self._axis(families)
        with self.trace.inside(*frames(axis)):
            made = function(*(f._element() for f in families))
            return self._family(axis, made)

    # -- a loop over a sequence               start ──> enter ──> phi ──> cond ── again ──> step ──> next ──┐
    #                                                              ^       └──── done ──> leave ──> last    │
    #                                                              └─────────────────────────────────────────┘

    def fold(self, step: Body, family: Any, start: Any) -> Any:
        axis = self._axis([family])
        return self._loop(axis, lambda carry: step(carry, family._element()), start)

    def scan(self, step: Body, family: Any, start: Any) -> tuple[Any, Any]:
        axis = self._axis([family])
        seen: list[Any] = []

        def body(carry: Any) -> Any:
            made = step(carry, family._element())
            seen.append(self._family(axis, made))
            return made

        last = self._loop(axis, body, start)
        return seen[0], last

    def repeat(self, body: Body, start: Any, times: Int | int | None, while_: Body | None) -> Any:
        trace = self.trace
        if times is not None:
            times = trace.check_int(times, "times")
            if isinstance(times, int) and times <= 0:
                return start
            if isinstance(times, Int) and times.op not in ("scalar", "index"):
                times = Int("count", times)  # a negative number counts as 0, as in range(...)
        counted = not takes(body, 1)
        numbers = [v for v in leaves(start) if isinstance(v, Int | int) and not isinstance(v, bool)]
        axis = trace.axis("round", "rounds", times if times is not None else 0)
        rounds = Rounds(axis, numbers)
        for number in numbers:
            trace.check_int(number, "an integer that a loop carries")
        if while_ is not None:
            carried = iter([rounds.value(i) for i in range(len(numbers))])
            given = [next(carried) if isinstance(v, Int | int) else v for v in leaves(start)]
            with trace.inside(axis):
                rounds.condition = trace.check_int(
                    while_(rebuild(start, iter(given))), "the condition of a loop (while_)"
                )
            axis.size = Int("rounds", rounds)
        plain = isinstance(axis.size, int) or (axis.size.op == "scalar")
        if not plain:
            axis.carried = trace.field(f"{axis.name}_count")

        def inside(carry: Any) -> Any:
            return body(carry, Int("index", axis, axes=frozenset({axis}))) if counted else body(carry)

        return self._loop(axis, inside, start, rounds)

    def _loop(self, axis: Axis, body: Body, start: Any, rounds: Rounds | None = None) -> Any:
        trace = self.trace
        pack = Pack(trace, start, rounds)
        heads: list[tuple[Proto | None, Proto, Proto]] = []
        for lane in pack.lanes:
            first = self._enter(lane.value, axis)
            with trace.inside(*frames(axis, *lane.axes)):
                inside = self._phi(f"{axis.name}_phi", [first, None], ("start", "loop"))
            heads.append((first.proto if first.proto.pump is None else None, inside.proto, self._test(inside, axis)))
        with trace.inside(*frames(axis)):
            made = body(pack.unpacked([test.outputs[1] for _, _, test in heads]))
            after = pack.repacked(made, "the function of a loop")
        left = []
        for (enter, phi, test), value in zip(heads, after, strict=True):
            moved, last = self._next(value, axis), self._leave(test.outputs[0], axis)
            phi.inputs[1] = moved
            left.append(last)
            trace.loops.append(Control(axis, enter, phi, test, moved.proto, last.proto))
        return pack.unpacked(left, after=axis)

    def _next(self, value: Value, axis: Axis) -> Value:
        scope = value.scope
        proto = Proto(
            self.trace.name(f"{axis.name}_next"),
            [value],
            ("out",),
            here(),
            lambda plan: Isu(*moves.onward(plan, scope, axis)),
            note=f"{axis.name} + 1",
        )
        return self.trace.emit(proto, (scope, value.row))

    def _enter(self, value: Value, axis: Axis) -> Value:
        """Move a value into the first round. A constant is pumped there."""
        trace = self.trace
        scope = value.scope
        pump = value.proto.pump
        if pump is not None and pump.constant is not None and axis.carried is None and not scope.guards:
            copy = Proto(trace.name(f"{axis.name}_start"), [], ("out",), here())
            copy.pump = type(pump)(constant=pump.constant, starts=(*pump.starts, axis))
            copy.ints = (axis.size,)
            return trace.emit(copy, (scope.entering(axis), value.row))
        proto = Proto(
            trace.name(f"{axis.name}_enter"),
            [value],
            ("out",),
            here(),
            lambda plan: Isu(*moves.enter(plan, scope, axis)),
            ints=(axis.size,),
            note=f"{axis.name} = 0",
        )
        return trace.emit(proto, (scope.entering(axis), value.row))

    def _test(self, value: Value, axis: Axis) -> Proto:
        """The test for another round, with ports "done" and "again"."""
        scope = value.scope
        proto = Proto(
            self.trace.name(f"{axis.name}_cond"),
            [value],
            ("done", "again"),
            here(),
            lambda plan: Cond(moves.going_on(plan, scope.leaving(axis), axis), ("done", "again")),
            ints=(axis.size,),
            note=f"{axis.name} < {axis.carried or repr(axis.size)}",
        )
        self.trace.emit(proto, (scope, value.row), (scope, value.row))
        return proto

    def _leave(self, value: Value, axis: Axis) -> Value:
        outer = value.scope.leaving(axis)
        if axis.real is not None:
            outer = outer.unguarded(axis.real)

        def build(plan: Any) -> Isu:
            there, back, when = moves.leave(plan, outer, axis)
            return Isu(there, back, when=when)

        proto = Proto(
            self.trace.name(f"{axis.name}_leave"),
            [value],
            ("out",),
            here(),
            build,
            ints=(axis.size,),
            note="out of the loop",
        )
        return self.trace.emit(proto, (outer, value.row))

    # -- a choice                              x ──> cond ──> option 0, 1, ... ──> phi

    def choose(self, index: Int | int, options: Sequence[Body], args: Sequence[Any]) -> Any:
        trace = self.trace
        index = trace.check_int(index, "the index of a choice")
        if isinstance(index, int):
            if not 0 <= index < len(options):
                trace.fail(f"a choice of {index} among {len(options)} options, numbered from 0")
            return options[index](*args)
        choice = Choice(index, tuple(f"option{i}" for i in range(len(options))), here())
        packs: list[Pack] = []
        silent = 0
        for way, option in enumerate(options):
            with trace.inside(trace.guard(choice, way)):
                made = option(*args)
                if made is None and silent == way:  # options that only compute losses
                    silent += 1
                    continue
                if silent:
                    trace.fail("some options of a choice return a value, and others None")
                packs.append(Pack(trace, made, like=packs[0] if packs else None, what="the options of a choice"))
        if not packs:
            return None
        joined = []
        for i, lane in enumerate(packs[0].lanes):
            with trace.inside(*frames(*lane.axes)):
                joined.append(self._phi("phi", [pack.lanes[i].value for pack in packs], choice.names))
        return packs[0].unpacked(joined)

    # -- back to one value                     family ──> group ──> sum

    def reduce(self, family: Any, reduction: str) -> Any:
        families = list(leaves(family))
        axis = self._axis(families)
        with self.trace.inside(*frames(axis)):
            elements = [one._element() for one in families]
        for element in elements:
            if isinstance(element, Int | Place):
                self.trace.fail("reduce works on tensors; these are integers, or elements of several columns")
            if isinstance(element, Family):
                self.trace.fail(
                    f"reduce is given a family of families: a value for each element of {element._over} of each "
                    f"element of '{axis.name}'. each(lambda inner: reduce(inner), families) reduces the inner ones"
                )
        pack = Pack(self.trace, rebuild(family, iter([Each(self.trace, axis, element) for element in elements])))
        reduced = [self._reduced(self._grouped(axis, lane.value), reduction) for lane in pack.lanes]
        return pack.inside_out(reduced)

    def _grouped(self, axis: Axis, element: Any) -> Value:
        trace = self.trace
        with trace.inside(*frames(axis)):
            value = trace.bring(element)
        scope = value.scope
        after = scope.leaving(axis)
        if axis.real is not None:
            after = after.unguarded(axis.real)
        proto = Proto(
            trace.name(f"{axis.name}_group"), [value], ("out",), here(),
            lambda plan: Group(
                moves.without(plan, scope, axis),
                moves.number(plan, scope, axis.size),
                moves.place(plan, scope, axis),
                key=after.key,
            ),
            ints=(axis.size,), puts_together=axis, note=f"all {axis.name}",
        )  # fmt: skip
        return trace.emit(proto, (after, value.row))

    # -- losses

    def loss(
        self,
        prediction: Any,
        label: Any,
        function: str | Body,
        name: str,
        metrics: Mapping[str, Body | Ratio] | None,
        weight: float,
        on_nan: str,
    ) -> None:
        trace = self.trace
        if isinstance(prediction, Family) and function == "selection":
            axis = self._axis([prediction])
            with trace.inside(*frames(axis)):
                element = prediction._element()
            given = self._grouped(axis, element)
        else:
            given = trace.bring(prediction)
        if label is None:
            trace.fail(
                f"the label of loss '{name}' is None: the example must have one, of any value; instances may leave it "
                f"out, in inference"
            )
        known = trace.bring(label)
        key = given.scope.key
        self._check_loss(function, given, known)
        # A label or a layer may have the name of its loss.
        called = f"{name}_loss" if name in trace.names and not name.endswith("loss") else name
        proto = Proto(
            trace.name(called), [given, known], (), here(),
            lambda plan: Loss(function, metrics, on_nan, key=key, weight=weight, loss_name=name),  # type: ignore[arg-type]
            ("prediction", "label"), is_loss=True,
        )  # fmt: skip
        trace.emit(proto)

    def _check_loss(self, function: str | Body, given: Value, known: Value) -> None:
        a, b = given.row, known.row
        if function in ("cross_entropy", "selection") and (b.dtype != torch.int64 or b.dim()):
            self.trace.fail(f"the label of {function} is one int64 number, got {tuple(b.shape)} {b.dtype}")
        if function == "cross_entropy" and a.dim() != 1:
            self.trace.fail(f"the prediction of cross_entropy is a row of class scores, got {tuple(a.shape)}")
        pairs = ("binary_cross_entropy", "squared_error", "absolute_error")
        if function in pairs and (a.shape != b.shape or a.dtype != b.dtype):
            self.trace.fail(
                f"prediction {tuple(a.shape)} {a.dtype} and label {tuple(b.shape)} {b.dtype} of {function} differ"
            )
