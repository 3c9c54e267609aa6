"""Shared: parameters and gradient sums in memory that all processes of a run see.

Every worker process updates the parameters of its own nodes, in place; the process that made it sees them at once, as
the parameters of its model. The memory is an anonymous mapping made before the processes fork: it has no name, so there
is nothing that could be left behind.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from ampnet.errors import GraphError
from ampnet.graph import Graph

_ALIGN = 64


def share(graph: Graph) -> None:
    """Move the parameters of all nodes, and their gradient sums, into memory that forked processes share."""
    nodes = graph.parameterised()
    faults = [
        f"node '{name}' has a parameter on device '{p.device}'; worker processes need all of them on the CPU. Move the "
        f"model there, or use the inline runtime"
        for name, node in nodes.items()
        for p in node.updater.parameters[:1]
        if p.device.type != "cpu"
    ]
    if faults:
        raise GraphError(faults)
    updaters = [node.updater for node in nodes.values()]
    sizes = [_size(t) for u in updaters for t in (*u.parameters, *u.sums)]
    arena = _Arena(sum(sizes))
    for updater in updaters:
        for parameter in updater.parameters:
            parameter.data = arena.copy(parameter.detach())
        updater.rebind(arena.copy)


class _Arena:
    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        self._used = 0

    def copy(self, tensor: Tensor) -> Tensor:
        """The same numbers, here."""
        start = self._used
        self._used += _size(tensor)
        if not tensor.numel():
            return tensor
        flat = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=start)
        return flat.view(tensor.shape).copy_(tensor)


def _size(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
