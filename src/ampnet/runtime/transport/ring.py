"""Ring: a queue of bytes in memory that two processes share. One writes, one reads, and neither ever waits.

      0          128         256 = start of the data, a multiple of 64 long
    [ written  | given back | record | record | skip .... ]
                              ^ starts at a multiple of 64, so that what is in a record can be looked at where it lies

Both counters only grow: bytes ever written (the writer's), bytes ever given back (the reader's). Their difference is
what is in the ring; each lies on cache lines of its own. A record is one line of 64 bytes (how long it is, how long
the whole is, where in the whole it begins) and its bytes. It never wraps: where it does not fit before the end, a
skip mark sends the reader to the start. A ring that is empty is begun anew from its start once it has been filled up
to `FRESH`: so a ring that is kept empty touches, and keeps in the caches, no more memory than it needs.

A record longer than half of the ring goes in fragments, and the reader puts them together:

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
        """Bytes in the largest record that is not cut into fragments."""
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
        """How much memory a ring of this capacity takes."""
        return DATA + capacity

    # The writer's side.

    def try_write(self, parts: Sequence[Part]) -> bool:
        """Write one record made of these parts. False where there is no room now; nothing of it is seen then.

        A record of more than `largest` bytes goes in fragments, as many as there is room for. False then says that
        some are missing: call again with the same parts, and with no other record before. Never blocks.
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
        """Room for a record of ``size`` bytes: where they go, or -1.

        It is theirs once `_next` is the counter: whoever is interrupted before that has written nothing.
        """
        capacity, written = self.capacity, self.written
        need = (size + 2 * LINE - 1) & -LINE
        at = written % capacity
        skip = 0
        if at + need > capacity:
            skip = capacity - at
        elif at >= FRESH and at >= need:  # what is skipped takes room too, until it is read
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
        """Whether there is something that was not read yet: a record, or a fragment of one."""
        return self._counters[_WRITTEN] != self._cursor

    def read(self) -> memoryview | None:
        """The next record where it lies in the ring, or None. Good until `release`."""
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
        """See what was written since. The counter is the writer's word for it, and is not trusted blindly."""
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
        """Put a fragment to those before. What is allocated grows with what came, not with what was announced."""
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
        """Give back the space of all that was read: views of it must not be used any more."""
        if self._released != self._cursor:
            self._released = self._cursor
            self._counters[_GIVEN_BACK] = self._cursor

    def close(self) -> None:
        """Let go of the memory. Not possible while someone looks at a record; then it goes with that last look."""
        for view in (self._counters, self._words, self._data):
            try:
                view.release()
            except BufferError:
                continue


def size_of(parts: Sequence[Part]) -> int:
    """How many bytes the parts have together."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, bytes) else part.nbytes
    return size


def flat(part: Part) -> memoryview:
    """The bytes of a part one after the other; without a copy where they lie so."""
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def copied(part: Part) -> bytes:
    """The bytes of a part one after the other; always a copy, and only one."""
    return part.tobytes() if isinstance(part, np.ndarray) else bytes(flat(part))
