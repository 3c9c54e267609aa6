"""Validate: finds every fault of a graph before a run, and reports all of them in one error.

It checks for ports left open, fed twice or leading to two places; inputs and nodes that cannot be reached, nodes whose
output reaches no Loss or Sink; loops without an exit; one parameter in two nodes; and, by propagating small sample
states from the inputs through the graph: keys that need a field the state lacks, joins without a common field, routing
out of range, and state updates whose inverse does not undo them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from ampnet.errors import GraphError, StateError
from ampnet.graph import CONTROLLER, End, Graph, Wiring
from ampnet.key import Packer
from ampnet.nodes.cond import Cond
from ampnet.nodes.flatmap import Flatmap
from ampnet.nodes.group import Group
from ampnet.nodes.isu import Isu, explain_wrong_inverse
from ampnet.nodes.loop import Loop
from ampnet.nodes.loss import Loss
from ampnet.nodes.node import Node, StateFunction
from ampnet.nodes.phi import Phi
from ampnet.nodes.result import Result
from ampnet.nodes.sink import Sink
from ampnet.nodes.transform import Parameterised
from ampnet.nodes.ungroup import Ungroup
from ampnet.state import States, check_field_names

Fields = tuple[str, ...]


def validate(graph: Graph) -> Wiring:
    """Raise `GraphError` with every fault of the graph, or return its wiring."""
    wiring, faults = graph.resolve()
    faults += _open_ports(graph, wiring)
    faults += _reach(graph, wiring)
    faults += _loops(graph, wiring)
    faults += _shared_parameters(graph)
    faults += _fields(graph, wiring)
    if faults:
        raise GraphError(list(dict.fromkeys(faults)))
    return wiring


def _open_ports(graph: Graph, wiring: Wiring) -> Iterable[str]:
    if not graph.inputs:
        yield "the graph has no input: use graph.input(name, target)"
    for name, node in graph.nodes.items():
        for i in range(len(node.inputs)):
            if End(name, i) not in wiring.backward:
                yield f"input port {graph.show(End(name, i), 'input')} of {node.describe()} is not fed by anything"
        for i in range(len(node.outputs)):
            if End(name, i) not in wiring.forward:
                yield f"output port {graph.show(End(name, i), 'output')} of {node.describe()} leads nowhere"


def _walk(starts: Iterable[End], step: Callable[[End], Iterable[End]]) -> set[End]:
    seen, todo = set(), list(starts)
    while todo:
        end = todo.pop()
        if end not in seen:
            seen.add(end)
            todo.extend(step(end))
    return seen


def _after(graph: Graph, wiring: Wiring) -> dict[End, list[End]]:
    """Returns the input ports that a message may reach next, from each input port."""
    out: dict[End, list[End]] = {}
    for name, node in graph.nodes.items():
        for i in range(len(node.inputs)):
            ways = [End(name, o) for o in node.leads_to(i)]
            out[End(name, i)] = [wiring.forward[way] for way in ways if way in wiring.forward]
    return out


def _reach(graph: Graph, wiring: Wiring) -> Iterable[str]:
    after = _after(graph, wiring)
    before: dict[End, list[End]] = {end: [] for end in after}
    for end, targets in after.items():
        for target in targets:
            before[target].append(end)
    ends = [end for end in after if isinstance(graph.nodes[end.node], Loss | Result | Sink)]
    has_loss = any(isinstance(node, Loss | Result) for node in graph.nodes.values())
    if not has_loss:
        yield "the graph has no Loss: no gradient would ever start, so nothing could come back"
    inputs = [end for source, end in wiring.forward.items() if source.node == CONTROLLER]
    fed = {end.node for end in _walk(inputs, after.__getitem__)}
    useful = _walk(ends, before.__getitem__)
    for name, node in graph.nodes.items():
        ports = [End(name, i) for i in range(len(node.inputs))]
        lost = [end for end in ports if end not in useful]
        if name not in fed:
            yield f"node '{name}' cannot be reached from any input"
        elif has_loss and lost:
            which = [f"node '{name}'"] if lost == ports else [f"port {graph.show(end, 'input')}" for end in lost]
            yield from (f"{it} leads to no Loss or Sink: its messages would never be answered" for it in which)


def _loops(graph: Graph, wiring: Wiring) -> Iterable[str]:
    """Check that each cycle has a node that lets a message out (Cond) or consumes it (Flatmap, Group)."""
    exits = {n for n, node in graph.nodes.items() if isinstance(node, Cond | Flatmap | Group | Loop)}
    after = {
        end: [t for t in targets if t.node not in exits]
        for end, targets in _after(graph, wiring).items()
        if end.node not in exits
    }
    for name, node in graph.nodes.items():
        ends = [End(name, i) for i in range(len(node.inputs)) if End(name, i) in after]
        if any(end in _walk(after[end], after.__getitem__) for end in ends):
            yield f"node '{name}' is in a loop without a Cond: messages would go round for ever"


def _shared_parameters(graph: Graph) -> Iterable[str]:
    owners: dict[int, str] = {}
    for name, node in graph.parameterised().items():
        for label, parameter in node.parameters.items():
            other = owners.setdefault(id(parameter), f"{name}.{label}")
            if other != f"{name}.{label}":
                yield (
                    f"'{other}' and '{name}.{label}' are one parameter in two nodes, which would update it behind each "
                    f"other's back; send both through one node (Phi in front, Cond behind)"
                )


def _samples(fields: Fields) -> States:
    """Returns states with every combination of 0 and 1 for the first few fields, and 1 for the rest."""
    varied = min(len(fields), 5)
    rows = [list(row) + [1] * (len(fields) - varied) for row in itertools.product((0, 1), repeat=varied)]
    return States(fields, np.array(rows, dtype=np.int64).T)


def _fields(graph: Graph, wiring: Wiring) -> list[str]:
    """Propagate the state fields through the graph until they do not change; returns the faults."""
    faults: list[str] = []
    known: dict[End, Fields] = {}
    for i, given in enumerate(graph.inputs):
        target = wiring.forward.get(End(CONTROLLER, i))
        try:
            check_field_names(("instance", *given.fields))
        except StateError as error:
            faults.append(f"input '{given.name}': {error}")
            continue
        if target is not None:
            known[target] = ("instance", *given.fields)
    for _ in range(2 * len(graph.nodes) + 1):
        before = len(known)
        for name, node in graph.nodes.items():
            arriving = [known.get(End(name, i)) for i in range(len(node.inputs))]
            for i in range(len(node.outputs)):
                target = wiring.forward.get(End(name, i))
                if target is not None and target not in known:
                    leaving = _fields_out(node, i, arriving)
                    if leaving is not None:
                        known[target] = leaving
        if len(known) == before:
            break
    for name, node in graph.nodes.items():
        arriving = [known.get(End(name, i)) for i in range(len(node.inputs))]
        faults += [f"node '{name}': {fault}" for fault in _check_node(node, arriving)]
    return faults


def _try(function: StateFunction, states: States, *extra: np.ndarray) -> object:
    """Returns the result of a user's function on sample states; None if it needs real ones."""
    if function.takes_structure:
        return None
    try:
        return function(states, *extra, shelf=None)
    except StateError:
        raise
    except Exception:
        return None


def _fields_out(node: Node, port: int, arriving: list[Fields | None]) -> Fields | None:
    first = next((f for f in arriving if f is not None), None)
    if isinstance(node, Isu | Flatmap | Ungroup | Group):
        if first is None:
            return None
        states = _samples(first)
        result: object = None
        try:
            if isinstance(node, Isu):
                result = _try(node.function, states)
            elif isinstance(node, Ungroup):
                result = _try(node.state, states, np.zeros(len(states), dtype=np.int64))
            elif isinstance(node, Group):
                result = _try(node.state, states)
            else:
                pair = _try(node.generate, states)
                result = pair[1] if isinstance(pair, tuple) and len(pair) == 2 else None
        except StateError:
            return None
        return result.fields if isinstance(result, States) else None
    return node.fields_out(port, arriving)


def _check_node(node: Node, arriving: list[Fields | None]) -> Iterable[str]:
    given = [f for f in arriving if f is not None]
    packer = getattr(node, "key", None)
    if isinstance(node, Parameterised):
        for port, fields in enumerate(arriving):
            yield from _check_fields(node.keys[node.leads_to(port)[0]], [] if fields is None else [fields])
    elif isinstance(packer, Packer) and not isinstance(node, Group | Flatmap | Ungroup):
        yield from _check_key(node, packer, given)
    for fields in dict.fromkeys(given):
        states = _samples(fields)
        for role, function in node.state_functions().items():
            extra = (np.zeros(len(states), dtype=np.int64),) if isinstance(node, Ungroup) else ()
            try:
                result = _try(function, states, *extra)
            except StateError as error:
                yield f"{role} of {node.describe()} fails on a state of ({', '.join(fields)}): {error}"
                continue
            if isinstance(node, Cond) and result is not None:
                ports = np.asarray(result)
                # Some samples may be impossible states; a function that is wrong for all samples is wrong.
                if ports.dtype.kind in "biu" and ports.size and ((ports < 0) | (ports >= len(node.outputs))).all():
                    yield f"routes to port {int(ports.max())}, but has {len(node.outputs)} output ports"
        if isinstance(node, Isu):
            yield from _check_inverse(node, states)


def _check_key(node: Node, packer: Packer, given: list[Fields]) -> Iterable[str]:
    if packer.fields is not None:
        yield from _check_fields(packer, given)
    elif len(node.inputs) > 1 and not isinstance(node, Phi) and len(given) < len(node.inputs):
        yield (
            f"which state fields the ports of {node.describe()} share cannot be told, as there is a function of the "
            f"structure before them: give it key=(...)"
        )
    elif len(node.inputs) > 1 and len(given) == len(node.inputs) and len(set(given)) > 1:
        shared = tuple(f for f in given[0] if all(f in other for other in given))
        if not shared:
            yield f"its ports have no state field in common: {' and '.join(str(f) for f in given)}"
        else:
            packer.fields = shared  # "default, the fields all ports share"


def _check_fields(packer: Packer, given: list[Fields]) -> Iterable[str]:
    for fields in dict.fromkeys(given):
        for missing in (f for f in packer.fields or () if f not in fields):
            yield f"its key needs field '{missing}', but the state there is ({', '.join(fields)})"


def _check_inverse(node: Isu, states: States) -> Iterable[str]:
    try:
        real = _try(node.when, states) if node.when is not None else None
        if isinstance(real, np.ndarray):
            states = states.take(np.flatnonzero(real))
        after = _try(node.function, states)
        back = _try(node.inverse, after) if isinstance(after, States) else None
    except StateError:
        return  # already reported
    if not isinstance(after, States) or not isinstance(back, States) or not len(states):
        return
    # An inverse may rely on invariants of real states (the counter equals the count after a loop), so it may be right
    # for some samples only; one that is wrong for all samples is wrong.
    if back.fields != states.fields or (back.columns != states.columns).any(0).all():
        yield explain_wrong_inverse(states, after, back)
