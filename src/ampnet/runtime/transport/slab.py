"""Slab: shared memory in which rows of a slice are read in place. Only their header goes through the ring.

    sender    rows ──one copy──> [ line | rows of 1 | line | rows of 2 | line | rows of 3 |          ]
                                          ^                      ^ given back                ^ next
    ring      header, place = ────────────┘
    receiver  a tensor over that memory: no copy. When the last tensor over it is gone, the block is given back

There is one slab for each way from one party to another, made before the processes fork. A block is one line of 64
bytes (how many bytes of rows, whether they are in use) and the rows. The sender takes the next gap that is large
enough, and starts again from the beginning once it has passed `FRESH`: so a slab touches, and keeps in the caches,
little more memory than is in use. If there is no gap the rows go through the ring, and are counted in `overflows`: no
process ever waits for a slab, so a slab cannot cause a deadlock.

**Giving back** takes no call. The tensor keeps a NumPy array alive, and so do all views of it and whatever else shares
its storage; a weak reference to the array clears the word "in use" when the array goes. x86 does not move a store
before earlier loads: once a block is seen to be free, its rows are not read any more.
"""

from __future__ import annotations

import os
from bisect import insort
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampnet.errors import TransportError
from ampnet.runtime.transport.dtypes import Coded
from ampnet.runtime.transport.ring import FRESH, LINE

LARGE = 64 << 10
"""Bytes of rows from which a slab is faster than a ring."""


class Slab:
    """A slab in ``memory`` (a multiple of 64 bytes, or none). One process may write to it and one may read."""

    __slots__ = ("_bytes", "_held", "_next", "_pid", "_taken", "_words", "capacity", "overflows")

    def __init__(self, memory: memoryview) -> None:
        self.capacity = len(memory)
        self._bytes = np.frombuffer(memory, np.uint8)  # and no view: tensors in it keep the memory from being closed
        self._words = memory.cast("q")
        self._taken: list[tuple[int, int]] = []
        self._next = 0
        self._held: dict[int, ref[NDArray[Any]]] = {}
        self._pid = 0
        self.overflows = 0
        """The number of times there was no room."""

    # The sender's side.

    def claim(self, size: int) -> int:
        """Returns an offset with room for ``size`` bytes of rows, or 0 if there is none now. `write` takes it."""
        words, need = self._words, (size + 2 * LINE - 1) & -LINE
        taken = self._taken = [block for block in self._taken if words[(block[0] >> 3) + 1]]
        for at in (self._next if self._next < FRESH else 0, 0):
            for first, end in taken:
                if first >= at + need:
                    break
                at = max(at, end)
            if at + need <= self.capacity:
                return at + LINE
        self.overflows += 1
        return 0

    def write(self, place: int, rows: NDArray[Any]) -> None:
        """Copy rows to the offset that was claimed for them."""
        at, size = place - LINE, rows.nbytes
        np.ndarray(rows.shape, rows.dtype, self._bytes, place)[...] = rows
        self._words[at >> 3], self._words[(at >> 3) + 1] = size, 1
        self._next = at + ((size + 2 * LINE - 1) & -LINE)
        insort(self._taken, (at, self._next))

    # The receiver's side.

    def look(self, place: int, shape: tuple[int, ...], coded: Coded, size: int) -> Tensor:
        """Returns the ``size`` bytes of rows at an offset. The sender does not reuse them while a tensor over them
        exists."""
        word = (place - LINE) >> 3
        if place % LINE or not LINE <= place <= self.capacity - size or self._words[word] != size:
            raise TransportError(f"{size} bytes of rows at {place} of a slab of {self.capacity}: no block is there")
        if place in self._held:
            raise TransportError(f"{size} bytes of rows at {place} of a slab, where others are still in use")
        array: NDArray[Any] = np.ndarray(shape, coded.array, self._bytes, place)
        self._held[place] = ref(array, partial(self._give_back, place))
        self._pid = os.getpid()
        rows = torch.from_numpy(array)
        return rows if coded.native else rows.view(coded.dtype)

    def _give_back(self, place: int, _: object) -> None:
        del self._held[place]
        if os.getpid() == self._pid:  # not in a forked child
            try:
                self._words[((place - LINE) >> 3) + 1] = 0
            except ValueError:  # the mesh was closed before
                return

    def held(self) -> int:
        """Returns the number of blocks in use here."""
        return len(self._held)

    def close(self) -> None:
        """Release the memory. If a tensor is in it, it is freed with that tensor."""
        self._words.release()
        self._bytes = self._bytes[:0].copy()
