"""messages, in a model that is being compiled: along edges, to the nodes that they lead to.

    h ──> flatmap by out-edge ──> cond ── real ──> function ──> phi ──> group by target ──> sum
                                   └─ none ──> zeros ────────────^

With a function in place of "sum", the messages that arrive at a node become a family that the function is given.
"""

from __future__ import annotations

from typing import Any

import torch

from ampnet.lang import moves, ops
from ampnet.lang.family import Family
from ampnet.lang.ints import Int
from ampnet.lang.line import here
from ampnet.lang.nest import along, takes
from ampnet.lang.packs import Pack
from ampnet.lang.proto import Proto
from ampnet.lang.scope import Choice
from ampnet.lang.symbols import Symbol, Symbolic
from ampnet.lang.traced_base import Body, TracedBase
from ampnet.lang.value import Value
from ampnet.nodes import Flatmap, Group


class TracedEdges(TracedBase):
    """`ampnet.lang.messages` on symbols."""

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
