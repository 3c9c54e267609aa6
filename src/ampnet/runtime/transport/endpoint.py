"""Endpoint: one party's end of all its rings. Sends without blocking, receives what has arrived, sleeps on a bell.

    send ──> ring has room? ──yes──> in the ring ──> receiver sleeps? ring its bell
      │             └──no──> outbox (in order) ──flush──> in the ring, when the receiver has given some back
      └ large rows of a slice: into the slab, if it has room; their header goes the same way as all frames

    receive: records of all senders ──> frames, copied out of the rings (rows in a slab stay there) ──> space back

No party ever blocks on a full ring, so two parties that flood each other both go on receiving, and drain.

**No wake-up is lost.** The receiver raises its flag and *then* looks at its rings once more, before it sleeps; the
sender writes to the ring and *then* looks at the flag. One of the two must see the other, if a store is not overtaken
by the load after it. x86 lets that happen (it is the one order it does not keep), so both sides put a fence between:
taking a lock is an instruction that waits until all stores before it can be seen.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Sequence
from threading import Lock

from ampnet.errors import TransportError
from ampnet.runtime.transport.frames import Frame
from ampnet.runtime.transport.ring import Part, Record, Ring, copied
from ampnet.runtime.transport.slab import Slab
from ampnet.runtime.transport.wire import decode, encode

SPIN = 200e-6
"""Seconds to poll before sleeping."""
FLAG = 16
"""Words from one party's flag to the next: no two on one cache line, or on its neighbour."""
ROOM = 1e-3
"""Seconds between two checks for room for the outbox."""
PATIENT = 127
"""The maximal number of times that polling is skipped after it was in vain."""


class Way:
    """Both ways between this party and another one. ``bell`` is the other's."""

    def __init__(self, ring_in: Ring, ring_out: Ring, slab_in: Slab, slab_out: Slab, bell: int) -> None:
        self.ring_in, self.ring_out, self.bell = ring_in, ring_out, bell
        self.slab_in, self.slab_out = slab_in, slab_out


class Endpoint:
    """Sends and receives frames of party ``party``. Made by `Mesh.endpoint`; one thread of one process uses it.

    Guarantees: frames of one sender arrive once, whole and in order, whatever their kinds. Received frames belong to
    the receiver: nothing else writes to them as long as a tensor of them exists. Arrays of a note and rows of a slice
    may be overwritten as soon as `send` has returned: frames that wait in the outbox are copied (rows are in an arena,
    whose memory the next wave reuses).
    """

    def __init__(
        self,
        party: int,
        ways: dict[int, Way],
        flags: memoryview,
        bell: int,
        *,
        spin: float = SPIN,
    ) -> None:
        self.party, self.spin = party, spin
        self._ways = ways
        self._flags, self._bell = flags, bell
        self._rings_in = [way.ring_in for way in ways.values()]
        self._outbox = {to: deque[Record]() for to in ways}
        self._poll = select.poll()
        self._poll.register(bell, select.POLLIN)
        self._in_vain = self._left_out = 0
        self.writing = False
        """Whether `send` has begun to write. If still true after an error, the rings may be inconsistent."""
        self._fence = Lock()

    # Sending.

    def send(self, to: int, frame: Frame) -> None:
        """Send a frame to another party: into the ring, or into the outbox while there is no room. Never blocks."""
        way = self._ways.get(to)
        if way is None:
            raise TransportError(f"party {self.party} cannot send to party {to}; it can to {sorted(self._ways)}")
        box = self._outbox[to]
        record = encode(frame, way.slab_out)
        self.writing = True
        if (box and not self._drain(to)) or not self._write(to, way, record):
            box.append([copied(part) for part in record])
        self.writing = False

    def flush(self) -> bool:
        """Write the outbox to the rings, as far as there is room. Returns whether it is empty."""
        empty = True
        for to, box in self._outbox.items():
            if box and not self._drain(to):
                empty = False
        return empty

    def pending(self) -> int:
        """Returns the number of records in the outbox."""
        return sum(map(len, self._outbox.values()))

    def fragile(self) -> bool:
        """Whether an interrupt of `wait` could leave a frame half written: not with an empty outbox."""
        return self.pending() > 0

    def overflows(self) -> int:
        """Returns the number of slices with large rows that found no room in a slab and went through a ring."""
        return sum(way.slab_out.overflows for way in self._ways.values())

    def held(self) -> int:
        """Returns the number of received slices whose rows in a slab are still in use."""
        return sum(way.slab_in.held() for way in self._ways.values())

    def _drain(self, to: int) -> bool:
        box, way = self._outbox[to], self._ways[to]
        while box:
            if not self._write(to, way, box[0]):
                return False
            box.popleft()
        return True

    def _write(self, to: int, way: Way, record: Sequence[Part]) -> bool:
        ring = way.ring_out
        before = ring.written
        done = ring.try_write(record)
        if ring.written != before:  # also if only some fragments were written
            with self._fence:
                pass
            if self._flags[FLAG * to]:
                os.eventfd_write(way.bell, 1)
        return done

    # Receiving.

    def receive(self) -> list[tuple[int, Frame]]:
        """Returns all received frames as (sender, frame), in order for each sender."""
        out: list[tuple[int, Frame]] = []
        for sender, way in self._ways.items():
            ring = way.ring_in
            if not ring.ready():
                continue
            try:
                while (record := ring.read()) is not None:
                    out.append((sender, decode(record, way.slab_in)))
            except TransportError as error:
                raise TransportError(f"party {self.party} cannot read what party {sender} sent: {error}") from error
            ring.release()
        return out

    # Sleeping.

    def wait(self, timeout: float) -> bool:
        """Sleep until a frame may have arrived, or a frame of the outbox was written. Returns False after ``timeout``
        seconds without either.
        """
        if self._ready() or self._moved():
            return True
        deadline = time.perf_counter() + timeout
        if self.spin and timeout > 0 and self._look_out(min(timeout, self.spin)):
            return True
        place = FLAG * self.party
        self._flags[place] = 1
        try:
            with self._fence:
                pass
            while True:
                if self._ready() or self._moved():
                    return True
                left = max(deadline - time.perf_counter(), 0.0)
                if self._poll.poll(1e3 * (min(left, ROOM) if self.pending() else left)):
                    os.eventfd_read(self._bell)
                    return True
                if left <= 0.0:
                    return False
        finally:
            self._flags[place] = 0

    def _look_out(self, seconds: float) -> bool:
        """Poll for a while, if that was useful before.

        Polling is useful if the other side has its own core and answers soon: it saves the wake-up. After it was in
        vain it is skipped the next time, then the next 3, 7, ... `PATIENT` times: a party that shares a core with the
        other side polls in vain, and only keeps it from working.
        """
        if self._left_out:
            self._left_out -= 1
            return False
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            if self._ready():
                self._in_vain = 0
                return True
        self._in_vain = self._left_out = min(2 * self._in_vain + 1, PATIENT)
        return False

    def _ready(self) -> bool:
        return any(ring.ready() for ring in self._rings_in)

    def _moved(self) -> bool:
        """Write the outbox as far as possible; returns whether anything was written."""
        before = self.pending()
        if not before:
            return False
        self.flush()
        return self.pending() < before

    def close(self) -> None:
        """Drop the outbox. The rings and bells belong to the mesh."""
        for box in self._outbox.values():
            box.clear()
        self._ways, self._rings_in = {}, []
