"""Mesh: the shared memory and wake-up events (*bells*) between the processes (*parties*) of one machine.

All of it is made in one process before the others are forked from it, and inherited. Nothing has a name, so nothing is
left behind if a process is killed.

                 to 0        to 1        to 2              each way a ring in shared memory, and a slab for large rows
    from 0         .       ring 0>1    ring 0>2            each party a bell (an eventfd, to be woken by)
    from 1     ring 1>0        .       ring 1>2                       and a flag: "I sleep, ring the bell"
    from 2     ring 2>0    ring 2>1        .

    mesh = Mesh(3)
    if os.fork() == 0:
        endpoint = mesh.endpoint(1) ...

Memory is allocated when it is first written to; a ring or slab that is mostly empty touches little of it (see
`ampnet.runtime.transport.ring` and `slab`).
"""

from __future__ import annotations

import mmap
import os
import platform
from types import TracebackType

from ampnet.errors import TransportError
from ampnet.runtime.transport.endpoint import FLAG, SPIN, Endpoint, Way
from ampnet.runtime.transport.ring import LINE, Ring
from ampnet.runtime.transport.slab import Slab

CAPACITY = 8 << 20
SLAB = 16 << 20


class Mesh:
    """Rings of ``capacity`` bytes and slabs of ``slab`` bytes between all ``parties``. Make it before forking; close it
    in every process.
    """

    def __init__(self, parties: int, capacity: int = CAPACITY, slab: int = SLAB) -> None:
        if platform.machine() not in ("x86_64", "AMD64"):
            raise TransportError(
                f"rings in shared memory rely on the memory order of x86; this is a machine of {platform.machine()}"
            )
        self.parties = parties
        self.capacity = -(-capacity // LINE) * LINE
        self._memory: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        self._rings: dict[tuple[int, int], Ring] = {}
        self._slabs: dict[tuple[int, int], Slab] = {}
        self._bells: list[int] = []
        try:
            self._flags = self._share(8 * FLAG * parties).cast("q")
            self._views.append(self._flags)
            for sender in range(parties):
                self._bells.append(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
                for receiver in range(parties):
                    if sender != receiver:
                        size = Ring.size(self.capacity)
                        memory = self._share(size + slab // LINE * LINE)
                        self._rings[sender, receiver] = Ring(memory[:size])
                        self._slabs[sender, receiver] = Slab(memory[size:])
        except BaseException:
            self.close()
            raise

    def _share(self, size: int) -> memoryview:
        self._memory.append(mmap.mmap(-1, size))  # anonymous and shared: seen by this process and its children
        self._views.append(memoryview(self._memory[-1]))
        return self._views[-1]

    def endpoint(self, party: int, *, spin: float | None = None) -> Endpoint:
        """Returns this party's end of all its rings, for use in that party's process, by one thread.

        ``spin``: seconds to poll before sleeping (None: `SPIN`, or zero if there are more parties than cores).
        """
        if not 0 <= party < self.parties:
            raise TransportError(f"there is no party {party}; there are {self.parties}")
        if spin is None:
            spin = SPIN if self.parties <= len(os.sched_getaffinity(0)) else 0.0
        ways = {}
        for other in range(self.parties):
            if other != party:
                there, back = (party, other), (other, party)
                rings, slabs = (self._rings[back], self._rings[there]), (self._slabs[back], self._slabs[there])
                ways[other] = Way(*rings, *slabs, self._bells[other])
        return Endpoint(party, ways, self._flags, self._bells[party], spin=spin)

    def close(self) -> None:
        """Close all memory and bells in this process. Endpoints must not be used any more."""
        ends = [ring.close for ring in self._rings.values()] + [slab.close for slab in self._slabs.values()]
        ends += [view.release for view in reversed(self._views)] + [memory.close for memory in self._memory]
        for end in ends:
            try:
                end()
            except BufferError:  # a tensor is in a slab, or a traceback has a view of a record: freed with them
                continue
        for bell in self._bells:
            os.close(bell)
        self._rings, self._slabs, self._views, self._memory, self._bells = {}, {}, [], [], []

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
