"""Link: frames to and from one other party, over connections that break. Knows no sockets: messages in, messages out.

    sender                                                            receiver
    put(record) ──> chunks, numbered 0 1 2 3 4 5 ...
                    first     cursor          made                    delivered     received
                      |.........|...............|                        |.............|
            received? [ in flight, at most the  ] wait for room          [ inbox: in order, not yet taken by `frames`
                      [ window; kept            ]
                                   DATA 3 ─────────────────────────> 3 is next: into the inbox
                                   DATA 5 ─────────────────────────> 4 is missing: dropped          [1]
                     cursor = 4 <───────────────────────── AGAIN 4
                                   DATA 4, DATA 5 ─────────────────>
    first = 6, 4 and 5 are freed <──────────────────── delivered 6    in the head of any message, or an ACK         [2]
    nothing came back for a while: ASK 6 ──────────────────────────>  all before 6 here? ACK : AGAIN                [3]

A connection (TCP, by libzmq) keeps the order of messages, and loses some when it breaks. So a message that came too
early means that those before it are lost [1], and so does an ASK for numbers that are not here [3]. Nothing is sent
again on a mere guess: a party that computes for a minute answers late, and gets nothing twice for that. ``round``
counts how often the sender has gone back; an AGAIN of an earlier round is out of date.

A chunk is acknowledged when `frames` has handed it out [2], not before: so at most a window of bytes lies in the inbox,
and a sender whose chunks are all acknowledged may end.

**Interrupts.** Ctrl-C between any two lines of `put`, `take` or `sent` loses and doubles nothing: each change takes
effect with one assignment, and what was done twice is dropped as a duplicate.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import NamedTuple

from ampnet.errors import TransportError
from ampnet.runtime.transport.ring import Record, flat, size_of

WINDOW = 32 << 20
"""Bytes in flight to one party: beyond that, chunks wait in the sender's memory."""
CHUNK = 64 << 10
"""Bytes of a frame in one message. Heartbeats and other parties' messages do not wait for the whole of a large one, and
one chunk is encrypted while the other party decrypts the one before."""
LARGEST = 2 << 30
"""Bytes in the largest frame that is sent."""
LATE = 5e-3
"""Seconds after which chunks are acknowledged, if no message goes the other way before."""
OFTEN = 256
"""Chunks after which they are acknowledged at once; or a quarter of the window."""
PROBE = 1.0
"""Seconds without progress after which the sender asks; doubled each time, up to `PROBE_MOST`."""
PROBE_MOST = 8.0

HEAD = Struct("<8s7q")
"""Token of the run, generation, kind, round, number, start in the frame, bytes of the frame, delivered."""
DATA, ACK, AGAIN, ASK = range(1, 5)
_NEVER = float("inf")


class Chunk(NamedTuple):
    """A piece of a frame on its way."""

    start: int
    whole: int
    """Bytes of the frame."""
    body: memoryview
    end: int = 0
    """Bytes ever put into the link, up to the end of this one."""


class Link:
    """See the head of this file. ``token`` and ``generation`` are those of the run's `Keys`."""

    def __init__(
        self,
        token: bytes,
        generation: int,
        *,
        window: int = WINDOW,
        chunk: int = CHUNK,
        largest: int = LARGEST,
        probe: float = PROBE,
    ) -> None:
        self.token, self.generation = token, generation
        self.window, self.chunk, self.largest = window, chunk, largest
        # The sender's side.
        self._chunks: dict[int, Chunk] = {}
        self.first = self.cursor = self.made = 0
        """Numbers of the first chunk that is not acknowledged, the next to be sent, and the next to be made."""
        self._most = 0
        """The number of chunks that were ever sent."""
        self._end = self._freed = 0
        """Bytes put into the link, and bytes acknowledged."""
        self._round = 0
        self._probe = self._pause = probe
        self._ask = _NEVER
        """When to send an ASK."""
        self.again = 0
        """The number of times that chunks were sent again."""
        # The receiver's side.
        self._inbox: deque[Chunk] = deque()
        self.delivered = self._told = 0
        """Chunks handed out, and the number last acknowledged."""
        self._untold = 0
        """Bytes handed out that are not acknowledged."""
        self._late = _NEVER
        """When to send an ACK."""
        self._gathered: bytearray | None = None
        self._whole = 0
        self._gap = -1
        """The last round in which an AGAIN was sent for a gap."""
        self._answer: tuple[int, int] | None = None
        """The kind and round of an answer that is due at once."""

    # Sending.

    def put(self, record: Record) -> None:
        """Append a frame's record. Its bytes are copied."""
        whole = size_of(record)
        if whole > self.largest:
            raise TransportError(
                f"a frame of {whole:,} bytes cannot be sent over TCP: the limit is {self.largest:,} (`largest`). "
                "Send its arrays in several notes"
            )
        view = memoryview(b"".join(map(flat, record)))
        number, before = self.made, self._end
        for start in range(0, whole, self.chunk):
            body = view[start : start + self.chunk]
            self._chunks[number] = Chunk(start, whole, body, before + start + len(body))
            number += 1
        self._end = before + whole
        self.made = number

    def pending(self) -> int:
        """Returns the number of chunks that the other party has not acknowledged."""
        return self.made - self.first

    def outgoing(self) -> bytes | None:
        """Returns the next chunk's message, or None if there is none, or no room in the window. Then call `sent`."""
        if not self.can_send():
            return None
        chunk = self._chunks[self.cursor]
        head = self._head(DATA, self._round, self.cursor, chunk.start, chunk.whole)
        return b"".join((head, chunk.body))

    def can_send(self) -> bool:
        """Whether `outgoing` has a message."""
        if self.cursor >= self.made:
            return False
        return self._chunks[self.cursor].end - self._freed <= self.window or self.cursor == self.first

    def sent(self, now: float) -> None:
        """The message of `outgoing` was sent."""
        if self._ask == _NEVER:
            self._ask = now + self._pause
        self._tell()
        self._most = max(self._most, self.cursor + 1)
        self.cursor += 1

    def due(self, now: float) -> bytes | None:
        """Returns the ACK, AGAIN or ASK message that is due now, or None. Call it until it returns None."""
        if self._answer is not None:
            (kind, round_), self._answer = self._answer, None
            self._tell()
            return self._head(kind, round_, self.received)
        if now >= self._late:
            self._tell()
            return self._head(ACK)
        if now >= self._ask:
            self._pause = min(2 * self._pause, PROBE_MOST)
            self._ask = now + self._pause
            return self._head(ASK, self._round, self.cursor)
        return None

    def last(self) -> bytes:
        """Returns an ACK message, to be sent before the end: the other party need not wait for it."""
        return self._head(ACK)

    def alarm(self) -> float:
        """Returns the time at which something is `due`."""
        return 0.0 if self._answer is not None else min(self._late, self._ask)

    def reconnected(self) -> None:
        """A new connection was made: whether something was lost with the old one is asked at once."""
        if self.first < self.cursor:
            self._ask = 0.0

    def _head(self, kind: int, round_: int = 0, number: int = 0, start: int = 0, whole: int = 0) -> bytes:
        return HEAD.pack(self.token, self.generation, kind, round_, number, start, whole, self.delivered)

    def _tell(self) -> None:
        self._told, self._untold, self._late = self.delivered, 0, _NEVER

    # Receiving.

    @property
    def received(self) -> int:
        """The number of the next chunk that is taken."""
        return self.delivered + len(self._inbox)

    def take(self, message: memoryview, now: float) -> bool:
        """Take in a message of the other party. Returns False if it is dropped: it is none of this run and generation,
        or no message that a link could have sent.
        """
        if len(message) < HEAD.size:
            return False
        token, generation, kind, round_, number, start, whole, delivered = HEAD.unpack_from(message)
        if token != self.token or generation != self.generation:
            return False
        body = message[HEAD.size :]
        if kind == DATA:
            right = 0 <= start < start + len(body) <= whole <= self.largest
        elif kind == AGAIN:
            right = not (len(body) or start or whole) and round_ <= self._round and delivered <= number <= self._most
        else:
            right = kind in (ACK, ASK) and not (len(body) or start or whole)
        if not right or round_ < 0 or number < 0 or not 0 <= delivered <= self._most:
            return False
        self._acknowledged(delivered, now)
        if kind == DATA:
            self._take_chunk(round_, number, Chunk(start, whole, body), now)
        elif kind == AGAIN and round_ == self._round:
            self._go_back(number, now)
        elif kind == ASK:
            self._answer = (ACK if self.received >= number else AGAIN, round_)
        return True

    def _take_chunk(self, round_: int, number: int, chunk: Chunk, now: float) -> None:
        received = self.received
        if number == received:
            self._inbox.append(chunk)
        elif number > received and round_ > self._gap:  # [1]
            self._gap, self._answer = round_, (AGAIN, round_)
        elif number < received and self._late == _NEVER:  # a duplicate: its acknowledgement was lost, or is on its way
            self._late = now + LATE

    def _acknowledged(self, delivered: int, now: float) -> None:
        if delivered <= self.first:
            return
        self._freed = self._chunks[delivered - 1].end
        self.cursor = max(self.cursor, delivered)
        self.first = delivered
        while self._chunks and (number := next(iter(self._chunks))) < delivered:
            del self._chunks[number]
        self._pause = self._probe
        self._ask = now + self._pause if self.first < self.cursor else _NEVER

    def _go_back(self, number: int, now: float) -> None:
        self._round += 1
        self.cursor = max(number, self.first)
        self._ask = now + self._pause
        self.again += 1

    def ready(self) -> bool:
        """Whether `frames` has chunks to hand out."""
        return bool(self._inbox)

    def frames(self, now: float) -> list[memoryview]:
        """Returns the records of all frames that have arrived whole, in order. They belong to the caller."""
        out = []
        while self._inbox:
            chunk = self._inbox.popleft()
            self.delivered += 1
            self._untold += len(chunk.body)
            record = self._gather(chunk)
            if record is not None:
                out.append(record)
        if self.delivered > self._told:
            if 4 * self._untold >= self.window or self.delivered - self._told >= OFTEN:
                self._answer = self._answer or (ACK, 0)
            self._late = min(self._late, now + LATE)
        return out

    def _gather(self, chunk: Chunk) -> memoryview | None:
        """Append a chunk to those before it. Memory grows with the bytes received, not with the announced length."""
        start, whole, body, _ = chunk
        if self._gathered is None and len(body) == whole:
            return body
        gathered = bytearray() if self._gathered is None else self._gathered
        if start != len(gathered) or (start and whole != self._whole):
            self._gathered = None
            raise TransportError(
                f"a chunk of {len(body)} bytes at {start} of a frame of {whole}; {len(gathered)} of it are here"
            )
        gathered += body
        self._gathered, self._whole = gathered, whole
        if len(gathered) < whole:
            return None
        self._gathered = None
        return memoryview(gathered)
