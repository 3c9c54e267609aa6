"""Shared: parameters and gradient sums in memory shared by all processes of a run.

Every worker process updates the parameters of its own nodes, in place; the process that made it sees the new values at
once, as the parameters of its model. The memory is an anonymous mapping made before the processes fork: it has no name,
so nothing can be left behind.

**Aliased memory stays aliased.** Parameters may be views of others: the tiles of a Linear are views of its weight,
replicas may share one weight. So each storage is copied once, and every parameter becomes the same view of the copy as
it was of the storage:

    before    storage A   [ weight of fc           ]            parameters: offset, size and stride in A
                            fc~1       fc~2
    after     arena       [ sums | weight of fc            | bias of fc | ... ]
                                   fc~1       fc~2
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from ampnet.errors import GraphError
from ampnet.graph import Graph
from ampnet.tile import retie

_ALIGN = 64


def share(graph: Graph, extra: Sequence[Tensor] = (), others: Iterable[nn.Parameter] = ()) -> list[Tensor]:
    """Move the parameters of all nodes, and their gradient sums, into memory that forked processes share.

    Parameters that shared memory with one another still do, and so do a tiled Linear's own. Returns copies of the
    ``extra`` tensors in such memory. ``others``: further parameters to move, which no node of the graph has.
    """
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
    retie(graph)
    updaters = [node.updater for node in nodes.values()]
    parameters = [p for u in updaters for p in u.parameters]
    parameters += [p for tiled in graph.tiled.values() for p in tiled.module.parameters()]
    parameters += others
    storages = {_storage(p): _bytes(p) for p in parameters if p.numel()}
    arena = Arena.of([*storages.values(), *(total for u in updaters for total in list.__iter__(u.adding)), *extra])
    _move(parameters, {key: arena.copy(storage) for key, storage in storages.items()})
    for updater in updaters:
        updater.rebind(arena.zeros)
    return [arena.copy(tensor.detach()) for tensor in extra]


def give_back() -> None:
    """Return freed memory to the operating system, so that forked processes do not inherit it."""
    with suppress(AttributeError):  # of glibc only
        ctypes.CDLL(None).malloc_trim(0)


def _move(parameters: Iterable[nn.Parameter], copies: dict[int, Tensor]) -> None:
    """Make each parameter the same view of the copy of its storage as it is of the storage."""
    for parameter in {id(p): p for p in parameters if p.numel()}.values():  # several nodes may have one
        there = copies[_storage(parameter)].untyped_storage()
        where = parameter.storage_offset(), parameter.size(), parameter.stride()
        parameter.data = torch.empty(0, dtype=parameter.dtype).set_(there, *where)


def _storage(tensor: Tensor) -> int:
    """Returns the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def _bytes(tensor: Tensor) -> Tensor:
    """Returns a tensor's whole storage, as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


class Arena:
    """Anonymous memory shared with processes forked later. It lives as long as a tensor in it."""

    def __init__(self, size: int) -> None:
        self._memory = mmap.mmap(-1, max(size, mmap.PAGESIZE))
        self._used = 0

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> Arena:
        """Returns an empty arena with room for copies of these tensors."""
        return cls(sum(map(_size, tensors)))

    def copy(self, tensor: Tensor) -> Tensor:
        """Returns a copy of a tensor in this memory."""
        return self.zeros(tensor, tensor.dtype).copy_(tensor)

    def zeros(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns zeros of this shape. The memory is allocated by the process that first writes to it."""
        if not like.numel():
            return torch.zeros_like(like, dtype=dtype)
        start = self._used
        flat = torch.frombuffer(self._memory, dtype=dtype, count=like.numel(), offset=start).view(like.shape)
        self._used += _size(flat)
        return flat


def _size(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
