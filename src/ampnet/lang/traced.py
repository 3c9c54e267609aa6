"""Traced: the combinators in a model that is being compiled. One method each, with its graph drawn above it.

Inside their functions `Trace.frames` holds the enclosing axes and branches; values used there are brought into them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ampnet.lang import moves, ops
from ampnet.lang.eager import two_scopes
from ampnet.lang.family import Family
from ampnet.lang.ints import Int, Rounds
from ampnet.lang.line import here
from ampnet.lang.nest import along, leaves, rebuild, takes
from ampnet.lang.packs import Pack, frames
from ampnet.lang.passes.loops import Control
from ampnet.lang.scope import Axis, Choice
from ampnet.lang.symbols import Each, Moved, Place, Symbol, Symbolic
from ampnet.lang.trace import Proto, Trace, Value
from ampnet.nodes import Cond, Flatmap, Group, Isu, Loss, Phi, Reduce
from ampnet.nodes.metrics import Ratio

Body = Callable[..., Any]


class Traced:
    """The combinators on symbols."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    # -- each element                          family ──> function ──> family          no node of its own

    def each(self, function: Body, families: Sequence[Any]) -> Any:
        axis = self._axis(families)
        with self.trace.inside(*frames(axis)):
            made = function(*(f._element() for f in families))
            return self._family(axis, made)

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

    # -- a tree, from the leaves up           leaf ──> phi ──────────────────────────┬──> every node
    #                                                   ^                            ├──> cond ── root ──> leave
    #                                                   └── branch <── beside <── group by parent

    def fold_tree(self, tree: Any, leaf: Body, branch: Body, children: int | str | None) -> tuple[Any, Any]:
        trace = self.trace
        if isinstance(tree, Moved):
            trace.fail(
                f"fold_tree is given a tree that was picked by an index ({tree._over}). Fold the trees of all elements "
                f"and pick the result: each(lambda e: fold_tree(e.tree, leaf, branch)[1], elements)[i]"
            )
        if not isinstance(tree, Symbol) or tree._axis.kind != "tree":
            trace.fail(f"fold_tree folds a Tree, got {type(tree).__name__}")
        axis = tree._axis
        arity = None if isinstance(children, str) else tree._arity(branch, children)
        choice = tree._leaf_or_branch()
        with trace.inside(axis):
            with trace.inside(trace.guard(choice, 1)):
                pack = Pack(trace, leaf(tree._element()))
            values = [self._phi(f"{axis.name}_phi", [lane.value, None], ("leaf", "branch")) for lane in pack.lanes]
            flat = [value if arity is None else self._shaped(value, (-1,)) for value in values]
            rising = [self._rise(tree, value) for value in flat]
            below = [proto.outputs[0] for proto in rising]
            with trace.inside(trace.guard(choice, 0)):
                given = self._family_of_children(tree, below, pack) if arity is None else []
                if arity is not None:
                    beside = [self._children(tree, value, choice, arity) for value in below]
                    given = [
                        pack.unpacked([self._nth(c, i, v.row, arity) for c, v in zip(beside, values, strict=True)])
                        for i in range(arity)
                    ]
                made = branch(*given) if takes(branch, len(given)) else branch(*given, tree._element())
                after = pack.repacked(made, "the branch function of fold_tree")
            for head, value in zip(values, after, strict=True):
                head.proto.inputs[1] = value
            nodes = self._family(axis, pack.unpacked(values))
        tops = [self._top(tree, proto.outputs[1]) for proto in rising]
        return nodes, pack.unpacked([self._shaped(t, v.row.shape) for t, v in zip(tops, values, strict=True)])

    def _shaped(self, value: Value, shape: tuple[int, ...]) -> Value:
        """Reshape a row: children are concatenated as flat rows."""
        same = value.row.dim() == 1 if shape == (-1,) else value.row.shape == shape
        return value if same else ops.anything(self.trace, torch.reshape, (value, tuple(shape)), {})

    def _nth(self, children: Value, i: int, row: torch.Tensor, arity: int) -> Value:
        width = row.numel()
        one = children if arity == 1 else ops.cut(self.trace, children, i * width, (i + 1) * width)
        return self._shaped(one, row.shape)

    def _rise(self, tree: Symbol, value: Value) -> Proto:
        """Returns the choice that separates the root from the other nodes."""
        choice = Choice(tree._lookup("parent") < 0, ("below", "root"), here())
        proto = self.trace.parting(value, choice)
        for output in proto.outputs:
            output.scope = value.scope
        return proto

    def _family_of_children(self, tree: Symbol, below: Sequence[Value], pack: Pack) -> list[Any]:
        """Returns the values of all nodes but the root as a family over the children of the current node."""
        axis = self.trace.axis(f"{tree._axis.name}_child", "elements", tree._lookup("degree"))
        place = Int("index", axis, axes=frozenset({axis}))
        child = Int("lookup", tree._array("child"), tree._base + tree._lookup("first_child") + place)
        ends = (tree._lookup("parent"), tree._lookup("rank"), child)
        return [self._members(tree._axis, tree._axis, axis, ends, below, pack)]

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

    def _children(self, tree: Symbol, value: Value, choice: Choice, arity: int) -> Value:
        trace, axis = self.trace, tree._axis
        scope = value.scope
        parent, siblings = tree._lookup("parent"), tree._lookup("siblings")
        group = Proto(
            trace.name(f"{axis.name}_group"),
            [value],
            ("out",),
            here(),
            lambda plan: Group(
                moves.replaced(plan, scope, axis, axis, parent),
                moves.number(plan, scope, siblings),
                moves.place(plan, scope, axis),
                key=scope.key,
            ),
            ints=(parent, siblings),
            note="children by parent",
        )
        inner = scope.guarded(trace.guard(choice, 0))
        grouped = trace.emit(group, (inner, value.row))
        row = torch.empty(arity * value.row.shape[-1], dtype=value.row.dtype, device="meta")
        beside = Proto(
            trace.name(f"{axis.name}_beside"), [grouped], ("out",), here(),
            lambda plan: Reduce("beside", key=scope.key, count=arity),
        )  # fmt: skip
        return trace.emit(beside, (inner, row))

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

    def _top(self, tree: Symbol, value: Value) -> Value:
        axis, root = tree._axis, tree._root()
        outer = value.scope.leaving(axis)

        def build(plan: Any) -> Isu:
            there, back = moves.up_to_root(plan, outer, axis, root)
            return Isu(there, back)

        proto = Proto(
            self.trace.name(f"{axis.name}_root"),
            [value],
            ("out",),
            here(),
            build,
            ints=(root,),
            note="the root",
        )
        return self.trace.emit(proto, (outer, value.row))

    # -- messages along edges       h ──> flatmap by out-edge ──> cond ── real ──> function ──> phi ──> group by target
    #                                                              └─ none ──> zeros ────────────^              └──> sum

    def messages(self, function: Body, edges: Any, values: Any, to: Any, reduction: str | Body) -> Any:
        trace = self.trace
        if not isinstance(edges, Symbol) or edges._nodes is None:
            trace.fail(f"messages run along Edges, got {type(edges).__name__}")
        nodes, axis, real = edges._nodes._axis, edges._axis, edges._axis.real
        assert real is not None
        given = [values] if to is None else [values, to]
        for family in given:
            if self._axis([family]) is not nodes:
                trace.fail(
                    f"messages along '{axis.name}' start from values for each element of '{nodes.name}', got values "
                    f"for each of {family._over}"
                )
            if isinstance(family._element(), Family):
                trace.fail(
                    f"messages along '{axis.name}' are given a family for each element of '{nodes.name}'; a message is "
                    f"one value: each(lambda inner: reduce(inner), families) first"
                )
        with trace.inside(nodes):
            outgoing = self._across(edges, trace.bring(values._element()), "out")
            incoming = [] if to is None else [self._across(edges, trace.bring(to._element()), "in")]
        parted = trace.parting(outgoing, real.choice)
        with trace.inside(axis, real):
            ends = [parted.outputs[0], *incoming]
            pack = Pack(trace, along(function, ends, edges._element))
        if not isinstance(reduction, str):
            with trace.inside(nodes):
                return self._family(nodes, self._arriving(edges, pack, reduction, values, values if to is None else to))
        results = []
        for lane in pack.lanes:
            with trace.inside(axis, trace.guard(real.choice, 1)):
                zero = torch.zeros(lane.value.row.shape, dtype=lane.value.row.dtype)
                nothing = ops.operation(trace, "fill", [parted.outputs[1]], lane.value.row, "none", value=zero)
            with trace.inside(axis):
                joined = self._phi(f"{axis.name}_phi", [lane.value, nothing], real.choice.names)
                results.append(self._collect(edges, joined, reduction))
        with trace.inside(nodes):
            return self._family(nodes, pack.unpacked(results))

    def _arriving(self, edges: Symbol, pack: Pack, reduction: Body, values: Symbolic, to: Symbolic) -> Any:
        """Apply a function to the family of messages at each node; zeros for a node without messages."""
        trace, nodes, axis = self.trace, edges._nodes, edges._axis
        assert nodes is not None
        count = Int("lookup", edges._array("arrivals"), nodes._flat)
        choice = Choice(count > 0, ("none", "some"), here())
        members = trace.axis(f"{axis.name}_in", "elements", count)
        place = Int("index", members, axes=frozenset({members}))
        first = Int("lookup", edges._array("first_arrival"), nodes._flat)
        edge = Int("lookup", edges._array("arrival"), first + place)
        ends = (edges._lookup("target"), edges._lookup("rank"), edge)
        with trace.inside(trace.guard(choice, 1)):
            arrived = self._members(axis, nodes._axis, members, ends, [lane.value for lane in pack.lanes], pack)
            made = reduction(arrived) if takes(reduction, 1) else reduction(arrived, to._element())
            out = Pack(trace, made)
        results = []
        for lane in out.lanes:
            with trace.inside(trace.guard(choice, 0)):
                zero = torch.zeros(lane.value.row.shape, dtype=lane.value.row.dtype)
                here_too = trace.bring(values._element())
                nothing = ops.operation(trace, "fill", [here_too], lane.value.row, "none", value=zero)
            results.append(self._phi(f"{axis.name}_phi", [nothing, lane.value], choice.names))
        return out.unpacked(results)

    def _across(self, edges: Symbol, value: Value, way: str) -> Value:
        """Send a value from each node to each of its edges."""
        axis, scope = edges._axis, value.scope
        assert edges._nodes is not None
        nodes = edges._nodes._axis
        after = scope.leaving(nodes).entering(axis)
        lists = edges._array(way)
        if way == "in":
            assert axis.real is not None
            after = after.guarded(axis.real)
        proto = Proto(
            self.trace.name(f"{axis.name}_{way}"), [value], ("out",), here(),
            lambda plan: Flatmap(moves.across(plan, scope, nodes, axis, lists), key=after.key),
            arrays=(lists, f"{lists}_start"), note=f"to its {axis.name}",
        )  # fmt: skip
        return self.trace.emit(proto, (after, value.row))

    def _collect(self, edges: Symbol, value: Value, reduction: str) -> Value:
        """Group the messages at each target."""
        axis, scope = edges._axis, value.scope
        assert edges._nodes is not None
        nodes = edges._nodes._axis
        after = scope.leaving(axis).entering(nodes)
        target, degree = edges._lookup("target"), edges._lookup("degree")
        proto = Proto(
            self.trace.name(f"{axis.name}_group"), [value], ("out",), here(),
            lambda plan: Group(
                moves.replaced(plan, scope, axis, nodes, target),
                moves.number(plan, scope, degree),
                moves.place(plan, scope, axis),
                key=after.key,
            ),
            ints=(target, degree), note=f"{axis.name} by target",
        )  # fmt: skip
        return self._reduced(self.trace.emit(proto, (after, value.row)), reduction)

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
