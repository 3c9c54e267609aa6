"""Lower: protos become nodes, and values become edges.

a value used once            an edge
used in several places       a Bcast
used nowhere                 a Sink, which answers its messages
a module called n times      one node with n sites
modules with a common        one node, Tied, with a face for each call
parameter
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ampnet.graph import Graph
from ampnet.lang.calls import make_node
from ampnet.lang.ints import parts
from ampnet.lang.line import Line
from ampnet.lang.passes.rows import program_of
from ampnet.lang.passes.uses import in_loops, unused, uses
from ampnet.lang.proto import Arg, Plan, Proto
from ampnet.lang.scope import Scope
from ampnet.lang.trace import Trace
from ampnet.lang.value import Value
from ampnet.nodes import Bcast, Concat, Linear, Parameterised, Rows, Sink, Tied
from ampnet.nodes.node import Node


@dataclass(frozen=True, slots=True)
class Note:
    """The origin of a node or input."""

    name: str
    scope: Scope
    """The scope of its output."""
    fields: tuple[str, ...]
    """The fields of its states."""
    shape: tuple[int, ...] | None
    """The shape of an output row; None for a node without output: a loss, a Sink."""
    line: Line
    remark: str = ""
    """Describes its operation, if the type of its node does not."""
    pumped: bool = False
    """Whether it is an input."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The scalars and arrays of an instance that control flow reads."""

    scalars: tuple[str, ...]
    arrays: tuple[str, ...]


def needs(trace: Trace, protos: Sequence[Proto]) -> Needs:
    """Returns the scalars and arrays that the state functions of these protos read."""
    scalars: set[str] = set()
    arrays: set[str] = set()
    for proto in protos:
        scalars.update(proto.scalars)
        arrays.update(proto.arrays)
        for part in parts(*proto.ints):
            if part.op == "scalar":
                scalars.add(part.args[0])
            elif part.op == "lookup":
                arrays.add(part.args[0])
    return Needs(tuple(s for s in trace.scalars if s in scalars), tuple(a for a in trace.arrays if a in arrays))


def lower(graph: Graph, protos: Sequence[Proto], plan: Plan) -> list[Note]:
    """Add nodes and edges to the graph; returns the origin of each."""
    notes: list[Note] = []
    ends: dict[tuple[int, int], str] = {}
    """(proto, input port) -> "node.port"."""
    sources: dict[int, str] = {}
    """By the id of a value: "node.port"; "" for an input."""
    loops = in_loops(protos)
    # Nodes run in the order of declaration, as far as edges allow: the inputs of a loop come first.
    for name, node, calls in _nodes(sorted(protos, key=lambda p: id(p) in loops), plan):
        graph.add(name, node)
        for function in node.state_functions().values():
            function.modulus = 1  # no move reads the number of an instance
        for site, proto in enumerate(calls):
            first = sum(len(call.inputs) for call in calls[:site])
            for port in range(len(proto.inputs)):
                ends[id(proto), port] = f"{name}.{node.inputs[first + port]}"
            for value in proto.outputs:
                sources[id(value)] = f"{name}.{node.outputs[value.port if len(calls) == 1 else site]}"
            notes += _notes(name, proto, plan)
    used = uses(protos)
    for proto in protos:
        for value in proto.outputs:
            targets = [ends[id(p), i] for p, i in used.get(id(value), [])]
            notes += _connect(graph, value, sources.get(id(value)), targets, plan)
        if proto.pump is not None:
            notes.append(_note(proto.name, proto, plan))
    return notes


def _nodes(protos: Sequence[Proto], plan: Plan) -> list[tuple[str, Node, list[Proto]]]:
    """Returns the name, the node and the protos of each node."""
    together = _sharing(protos)
    out: list[tuple[str, Node, list[Proto]]] = []
    for proto in protos:
        if proto.pump is not None:
            continue
        name, calls = proto.name, together.get(id(proto), [proto])
        if calls[0] is not proto:
            continue
        if len({(id(call.module), call.alike) for call in calls}) > 1:
            names = list(dict.fromkeys(call.name for call in calls))
            name = unused("_".join(names), {p.name for p in protos}) if len(names) > 1 else names[0]
            node: Node = Tied([(call.name, _alone(call, plan)) for call in calls])
        elif proto.module is not None:
            node = _call(calls)
        elif proto.operation is not None:
            node = _rows(proto)
        else:
            assert proto.build is not None
            node = proto.build(plan)
        out.append((name, node, calls))
    return out


def _sharing(protos: Sequence[Proto]) -> dict[int, list[Proto]]:
    """Returns, by the id of a proto, all protos that share a parameter with it, directly or not, in order."""
    groups: dict[int, list[Proto]] = {}
    owner: dict[int, list[Proto]] = {}
    for proto in protos:
        users = [proto.module, *proto.module.parameters()] if proto.module is not None else [proto.parameter]
        group = groups[id(proto)] = [proto]
        for user in users:
            other = owner.get(id(user)) if user is not None else None
            if other is not None and other is not group:
                other += group
                for member in group:
                    groups[id(member)] = other
                owner = {key: other if value is group else value for key, value in owner.items()}
                group = other
        owner.update({id(user): group for user in users if user is not None})
    place = {id(proto): i for i, proto in enumerate(protos)}
    return {key: sorted(group, key=lambda p: place[id(p)]) for key, group in groups.items()}


def _alone(call: Proto, plan: Plan) -> Parameterised:
    """Build the node of one call."""
    if call.module is not None:
        node: Node = _call([call])
    else:
        assert call.build is not None
        node = call.build(plan)
    assert isinstance(node, Parameterised)
    return node


def _call(calls: list[Proto]) -> Node:
    first = calls[0]
    if first.activation is not None:
        activation = first.activation
        first.make = lambda module, key: Linear(module, activation=activation, key=key)  # type: ignore[arg-type]
    return make_node(first, [call.scope.key for call in calls])


def _rows(proto: Proto) -> Node:
    key, operation = proto.scope.key, proto.operation
    assert operation is not None
    plain = operation.op == "cat" and operation.operands == tuple(Arg(i) for i in range(len(proto.inputs)))
    if plain and len(proto.inputs) > 1 and (proto.program is None or len(proto.program.steps) == 1):
        return Concat(proto.into, key=key, same_states=True)
    return Rows(program_of(proto), proto.into, key=key)


def _connect(graph: Graph, value: Value, source: str | None, targets: list[str], plan: Plan) -> list[Note]:
    """Connect a value to its users; returns the origins of the nodes added for this."""
    name, made = value.proto.name, []
    called = f"{name}_{value.proto.ports[value.port]}" if len(value.proto.outputs) > 1 else name
    if not targets:
        targets = [unused(f"{called}_unused", graph.nodes)]
        graph.add(targets[0], Sink())
        made.append(Note(targets[0], value.scope, plan.fields(value.scope), None, value.proto.line, "used nowhere"))
    if len(targets) > 1:
        several = unused(f"{called}_bcast", graph.nodes)
        ports = tuple(f"to{i}" for i in range(1, len(targets) + 1))
        graph.add(several, Bcast(ports, key=value.scope.key))
        for port, target in zip(ports, targets, strict=True):
            graph.connect(f"{several}.{port}", target)
        targets = [several]
        row = tuple(value.row.shape)
        made.append(Note(several, value.scope, plan.fields(value.scope), row, value.proto.line))
    if source is None:
        graph.input(name, targets[0], fields=plan.fields(value.scope)[1:])
    else:
        graph.connect(source, targets[0])
    return made


def _notes(name: str, proto: Proto, plan: Plan) -> list[Note]:
    """Returns a note for the node, or one for each output if their scopes differ (inside and outside a loop)."""
    note = _note(name, proto, plan)
    if len({value.scope.axes for value in proto.outputs}) < 2:
        return [note]
    return [
        replace(note, scope=v.scope, fields=plan.fields(v.scope), remark=f"{port}, {note.remark}")
        for v, port in zip(proto.outputs, proto.ports, strict=True)
    ]


def _note(name: str, proto: Proto, plan: Plan) -> Note:
    parts = proto.inputs[0] if len(proto.outputs) > 1 else None
    scope = parts.scope if parts is not None else proto.scope  # of a branching node: the scope of its input
    shape = tuple(proto.outputs[0].row.shape) if proto.outputs else None
    return Note(name, scope, plan.fields(scope), shape, proto.line, proto.note, proto.pump is not None)
