"""Ring: a queue of bytes in memory that two processes share. One writes, one reads, and neither ever waits.

      0          128         256 = start of the data, a multiple of 64 long
    [ written  | given back | record | record | skip .... ]
                              ^ starts at a multiple of 64, so that the contents of a record can be read in place

Both counters only grow: bytes ever written (the writer's), bytes ever given back (the reader's). Their difference is
the contents of the ring; each counter has its own cache lines. A record is one line of 64 bytes (its length, the length
of the whole, its offset in the whole) and its bytes. It never wraps: if it does not fit before the end, a skip mark
sends the reader to the start. An empty ring restarts at its beginning once it has been filled up to `FRESH`: so a ring
that is mostly empty touches, and keeps in the caches, no more memory than it needs.

A record longer than half of the ring is sent in fragments, and the reader reassembles them:

    try_write(whole) -> False   [ 0..n of whole | n..2n of whole |       ]     full: call again with the same record,
    try_write(whole) -> True    [ 2n..3n of whole | rest of whole |      ]     when the reader has given some back

**Memory order.** A counter is one aligned word, written after the bytes that it stands for. That the other process
sees them in this order is a property of x86 (total store order: stores are seen in the order in which they were made,
loads are made in order); `ampnet.runtime.transport.mesh` refuses to work elsewhere.

A writer that is killed in the middle of a record has not moved its counter: what it was writing was never there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampnet.errors import TransportError

Part = bytes | memoryview | NDArray[Any]
"""A piece of a record: bytes, or an array of any strides (its bytes are written row after row)."""
Record = list[Part]

LINE = 64
DATA = 256
SMALLEST = 1024
FRESH = 512 << 10

_WRITTEN, _GIVEN_BACK = 0, 16  # in words
_SKIP = -1


class Ring:
    """A ring in ``memory`` (of `Ring.size` bytes, zero at first). One process may write to it and one may read."""

    __slots__ = (
        "_begun",
        "_counters",
        "_cursor",
        "_data",
        "_freed",
        "_gathered",
        "_next",
        "_released",
        "_seen",
        "_whole",
        "_words",
        "capacity",
        "fragment",
        "largest",
        "written",
    )

    def __init__(self, memory: memoryview) -> None:
        self.capacity = len(memory) - DATA
        if self.capacity < SMALLEST or self.capacity % LINE:
            raise TransportError(f"a ring needs a multiple of {LINE} bytes, {SMALLEST} or more; not {self.capacity}")
        self._counters = memory[:DATA].cast("q")
        self._data = memory[DATA:]
        self._words = self._data.cast("q")
        self.largest = self.capacity // 2 - LINE
        """Bytes in the largest record that is not split into fragments."""
        self.fragment = self.capacity // 4 // LINE * LINE - LINE
        self.written = self._counters[_WRITTEN]
        """Bytes ever written, prefixes and skips included."""
        self._freed = self._released = self._cursor = self._seen = self._counters[_GIVEN_BACK]
        self._next = self.written
        self._begun = 0
        self._whole = 0
        self._gathered: bytearray | None = None

    @staticmethod
    def size(capacity: int) -> int:
        """Returns the bytes of memory that a ring of this capacity takes."""
        return DATA + capacity

    # The writer's side.

    def try_write(self, parts: Sequence[Part]) -> bool:
        """Write one record made of these parts. Returns False if there is no room now; the reader sees nothing then.

        A record of more than `largest` bytes is written in fragments, as many as there is room for. False then means
        that some are missing: call again with the same parts, and with no other record before. Never blocks.
        """
        size = size_of(parts)
        if size > self.largest:
            return self._write_fragments(parts, size)
        at = self._claim(size, size, 0)
        if at < 0:
            return False
        data = self._data
        for part in parts:
            if isinstance(part, bytes):
                end = at + len(part)
                data[at:end] = part
            elif isinstance(part, np.ndarray):
                end = at + part.nbytes
                np.ndarray(part.shape, part.dtype, data, at)[...] = part
            else:
                end = at + part.nbytes
                data[at:end] = flat(part)
            at = end
        self.written = self._counters[_WRITTEN] = self._next
        return True

    def _claim(self, size: int, whole: int, start: int) -> int:
        """Returns the offset of room for a record of ``size`` bytes, or -1.

        It is taken once `_next` becomes the counter: a writer interrupted before that has written nothing.
        """
        capacity, written = self.capacity, self.written
        need = (size + 2 * LINE - 1) & -LINE
        at = written % capacity
        skip = 0
        if at + need > capacity:
            skip = capacity - at
        elif at >= FRESH and at >= need:  # skipped bytes take room too, until they are read
            self._freed = self._given_back()
            if self._freed == written:
                skip = capacity - at
        if written + skip + need - self._freed > capacity:
            self._freed = self._given_back()
            if written + skip + need - self._freed > capacity:
                return -1
        words = self._words
        if skip:
            words[at >> 3] = _SKIP
            at = 0
        word = at >> 3
        words[word] = size
        words[word + 1] = whole
        words[word + 2] = start
        self._next = written + skip + need
        return at + LINE

    def _given_back(self) -> int:
        freed = self._counters[_GIVEN_BACK]
        if not self._freed <= freed <= self.written:
            raise TransportError(f"a ring's reader gave back {freed} of {self.written} bytes; before, {self._freed}")
        return freed

    def _write_fragments(self, parts: Sequence[Part], whole: int) -> bool:
        flats = [flat(part) for part in parts]
        while self._begun < whole:
            size = min(self.fragment, whole - self._begun)
            at = self._claim(size, whole, self._begun)
            if at < 0:
                return False
            place, stop = 0, self._begun + size
            for part in flats:
                first, last = max(place, self._begun), min(place + len(part), stop)
                if first < last:
                    end = at + last - first
                    self._data[at:end] = part[first - place : last - place]
                    at = end
                place += len(part)
            self._begun = stop
            self.written = self._counters[_WRITTEN] = self._next
        self._begun = 0
        return True

    # The reader's side.

    def ready(self) -> bool:
        """Whether there is an unread record or fragment."""
        return self._counters[_WRITTEN] != self._cursor

    def read(self) -> memoryview | None:
        """Returns a view of the next record in the ring, or None. Valid until `release`."""
        while True:
            cursor = self._cursor
            if cursor == self._seen and not self._look():
                return None
            at = cursor % self.capacity
            word = at >> 3
            words = self._words
            size = words[word]
            if size == _SKIP:
                self._cursor = cursor + self.capacity - at
                if self._cursor > self._seen:
                    raise TransportError(f"a skip of {self.capacity - at} bytes; {self._seen - cursor} were written")
                continue
            whole, start = words[word + 1], words[word + 2]
            need = (size + 2 * LINE - 1) & -LINE
            if size < 0 or need > self._seen - cursor or at + need > self.capacity:
                raise TransportError(
                    f"a record of {size} bytes at {at} in a ring of {self.capacity}; {self._seen - cursor} were written"
                )
            self._cursor = cursor + need
            body = self._data[at + LINE : at + LINE + size]
            if whole == size and self._gathered is None and start == 0:
                return body
            done = self._gather(body, whole, start)
            if done is not None:
                return done

    def _look(self) -> bool:
        """Read the writer's counter; raises `TransportError` if its value is impossible."""
        written = self._counters[_WRITTEN]
        if written == self._seen:
            return False
        if written % LINE or not self._seen < written <= self._released + self.capacity:
            raise TransportError(
                f"a ring's writer says {written} bytes were written, after {self._seen}; "
                f"{self._released} were given back of {self.capacity} that fit"
            )
        self._seen = written
        return True

    def _gather(self, body: memoryview, whole: int, start: int) -> memoryview | None:
        """Append a fragment to those before. Memory grows with the bytes received, not with the announced length."""
        if self._gathered is None:
            self._gathered, self._whole = bytearray(), whole
        if whole != self._whole or start != len(self._gathered) or not 0 < len(body) <= whole - start:
            raise TransportError(
                f"a fragment of {len(body)} bytes for place {start} of {whole}; "
                f"{len(self._gathered)} of {self._whole} are here"
            )
        self._gathered += body
        if len(self._gathered) < whole:
            return None
        done, self._gathered = memoryview(self._gathered), None
        return done

    def release(self) -> None:
        """Give back the space of all records read; views of them must not be used any more."""
        if self._released != self._cursor:
            self._released = self._cursor
            self._counters[_GIVEN_BACK] = self._cursor

    def close(self) -> None:
        """Release the memory. If views of a record still exist, it is freed with the last of them."""
        for view in (self._counters, self._words, self._data):
            try:
                view.release()
            except BufferError:
                continue


def size_of(parts: Sequence[Part]) -> int:
    """Returns the total number of bytes of the parts."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, bytes) else part.nbytes
    return size


def flat(part: Part) -> memoryview:
    """Returns the bytes of a part, contiguous; without a copy if they already are."""
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def copied(part: Part) -> bytes:
    """Returns the bytes of a part, contiguous; always one copy."""
    return part.tobytes() if isinstance(part, np.ndarray) else bytes(flat(part))
