"""Snapshot: a runtime's state in memory: what a checkpoint keeps, and what lost workers start from again.

    tensors    weight/<name>                 the model's ``state_dict``
               copy/<node>/0 ...             parameters that only a node has: replicas with weights of their own
               optimizer/<node>/0/exp_avg    optimizers, by trained parameter of the node
               sum/<node>/0 ...              gradients not applied yet; rows/<node>: the table rows that they touch
               table/<group>/0 ...           replicas of a group in the middle of a synchronisation
    data       nodes     by node: version, counter, optimizer settings, schedule (`ampnet.update.state`)
               members   by node: its part in its group's synchronisation
               numbers   the next instance numbers
               schedule  the state of the schedule of operations

A snapshot shares no memory with the runtime. Every node's part is from between two of its operations. Taken when
nothing is in flight it is complete: in one process, in waves, going on from it equals never having stopped. Taken in
flight, the gradient of an instance in flight may have reached some nodes and not others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.errors import CheckpointError, nearest
from ampnet.graph import Graph
from ampnet.update.state import UpdaterState


@dataclass(slots=True)
class Snapshot:
    """See the head of this file."""

    tensors: dict[str, Tensor]
    data: dict[str, Any] = field(default_factory=dict)

    def nodes(self) -> dict[str, UpdaterState]:
        """Returns the state of each node with parameters, without its weights."""
        found = {name: UpdaterState({}, data) for name, data in self.data.get("nodes", {}).items()}
        for name, tensor in self.tensors.items():
            for what in ("optimizer/", "sum/", "rows/", "mean/", "last/"):
                if name.startswith(what):
                    node, rest = _owner(name.removeprefix(what), found)
                    found[node].tensors[what.rstrip("/") if what == "rows/" else what + rest] = tensor
        return found


def _owner(text: str, nodes: Iterable[str]) -> tuple[str, str]:
    """Splits "<node>/<rest>"; the name of a node may have slashes."""
    known = set(nodes)
    pieces = text.split("/")
    for i in range(len(pieces), 0, -1):
        if (node := "/".join(pieces[:i])) in known:
            return node, "/".join(pieces[i:])
    raise CheckpointError(f"the checkpoint has tensors of '{text}' and no such node")


def collect(graph: Graph, states: Mapping[str, UpdaterState]) -> Snapshot:
    """Returns a snapshot of these nodes. Weights are those of the states, or of this process where they have none."""
    tensors: dict[str, Tensor] = {}
    copies = _Copies()
    nodes = graph.parameterised()
    for name, state in states.items():
        for i, parameter in enumerate(nodes[name].updater.parameters):
            if (given := state.tensors.get(f"weight/{i}")) is not None:
                copies.view(parameter).copy_(given)
    own = dict(_model(graph))
    tensors |= {f"weight/{name}": copies.view(value) for name, value in own.items()}
    memory = {_storage(value) for value in own.values()}
    for name, node in nodes.items():
        for i, parameter in enumerate(node.updater.parameters):
            if _storage(parameter) not in memory:
                tensors[f"copy/{name}/{i}"] = copies.view(parameter)
    for name, state in states.items():
        for key, tensor in state.tensors.items():
            what, _, rest = key.partition("/")
            if what != "weight":
                tensors["/".join(filter(None, (what, name, rest)))] = tensor.detach().cpu().clone()
    return Snapshot(tensors, {"nodes": {name: state.data for name, state in states.items()}})


def check_fits(graph: Graph, snapshot: Snapshot) -> None:
    """Raise `CheckpointError` if the snapshot is of another graph."""
    there, here = set(snapshot.data.get("nodes", {})), set(graph.parameterised())
    for name in sorted(there - here):
        raise CheckpointError(
            f"the checkpoint has a node '{name}', which this graph does not have; {_hint(name, here)}"
        )
    for name in sorted(here - there):
        raise CheckpointError(f"node '{name}' is not in the checkpoint: it is of another model, or has other replicas")
    for name, target in _targets(graph):
        found = snapshot.tensors.get(name)
        if found is None:
            raise CheckpointError(f"the checkpoint has no '{name}': it is of another model")
        if found.shape != target.shape or found.dtype != target.dtype:
            raise CheckpointError(
                f"'{name}' is {_described(found)} in the checkpoint and {_described(target)} in this model"
            )


def spread_weights(graph: Graph, snapshot: Snapshot) -> None:
    """Write the weights of a snapshot into the graph's parameters, in place. It must fit (`check_fits`)."""
    with torch.no_grad():
        for name, target in _targets(graph):
            target.detach().copy_(snapshot.tensors[name])


def _targets(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    own = dict(_model(graph))
    yield from ((f"weight/{name}", value) for name, value in own.items())
    memory = {_storage(value) for value in own.values()}
    for name, node in graph.parameterised().items():
        for i, parameter in enumerate(node.updater.parameters):
            if _storage(parameter) not in memory:
                yield f"copy/{name}/{i}", parameter


def _model(graph: Graph) -> Iterator[tuple[str, Tensor]]:
    """Yields the entries of the model's ``state_dict``; none for a graph that was wired by hand."""
    model = getattr(graph, "model", None)
    if isinstance(model, nn.Module):
        yield from model.state_dict(keep_vars=True).items()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _hint(name: str, known: Iterable[str]) -> str:
    return nearest(name, sorted(known))


class _Copies:
    """Copies of storages, each made once, so that parameters that share memory do so in the copy."""

    def __init__(self) -> None:
        self._made: dict[int, Tensor] = {}

    def view(self, tensor: Tensor) -> Tensor:
        """Returns the same view of the copy as the tensor is of its storage, on the CPU."""
        tensor = tensor.detach()
        if not tensor.numel():
            return tensor.cpu().clone()
        key = _storage(tensor)
        if key not in self._made:
            self._made[key] = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            self._made[key] = self._made[key].cpu().clone()
        there = self._made[key].untyped_storage()
        where = tensor.storage_offset(), tensor.size(), tensor.stride()
        return torch.empty(0, dtype=tensor.dtype).set_(there, *where)
