"""Proxy: a bad network on one machine. A TCP proxy on loopback that delays, cuts, resets, corrupts and swallows.

    client ──> proxy.port ═══ faults ═══> server's port

    with Proxy(port) as proxy:        connect the client to 127.0.0.1:proxy.port
        proxy.delay = 0.1             seconds, each way
        proxy.loss = 0.01             the chance that a segment is lost: it and all behind it come `RESENT` s later
        proxy.rate = 1e6              bytes a second, each way of each connection
        proxy.corrupt = 0.01          the chance that a bit of a segment is flipped
        proxy.reset_after = 100_000   a connection is reset once so many bytes have passed through it
        proxy.cut() ... proxy.heal()  nothing passes; nobody is told
        proxy.half_open()             present connections swallow all bytes, for ever; nobody is told
        proxy.reset()                 present connections are reset

A TCP connection hides lost packets: its user sees a delay. That is what ``loss`` does. Random choices follow ``seed``
and the order of segments.
"""

from __future__ import annotations

import random
import selectors
import socket
import struct
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType

SEGMENT = 16 << 10
"""Bytes that are read, delayed and lost together."""
RESENT = 0.2
"""Seconds until a lost segment is sent again (the least that Linux waits)."""
_HELD = 1 << 20
"""Bytes of one way that the proxy holds; beyond, it does not read, as a network would not."""
_RESET = struct.pack("ii", 1, 0)
"""With this linger a socket is closed by RST."""


class _Way:
    """One direction of a connection: what was read and is not written yet."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.held: deque[tuple[float, bytes]] = deque()
        self.size = 0
        self.last = 0.0
        """When the last segment may leave."""
        self.over = False


class _Connection:
    """Two sockets, and the ways between them."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.sockets = (client, server)
        self.ways = {client: _Way(client, server), server: _Way(server, client)}
        self.passed = 0
        self.swallows = False


class Proxy:
    """See the head of this file. A thread does the work; its attributes may be set at any time."""

    def __init__(self, port: int, *, host: str = "127.0.0.1", seed: int = 0) -> None:
        """``port``: the server's, on ``host``."""
        self.delay = self.loss = self.rate = self.corrupt = 0.0
        self.reset_after = 0
        self.connections = 0
        """The number of connections that were ever made."""
        self._to = host, port
        self._random = random.Random(seed)
        self._connections: list[_Connection] = []
        self._is_cut = self._closed = False
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    # Faults.

    def cut(self) -> None:
        """Let nothing pass any more: neither bytes nor new connections."""
        self._is_cut = True

    def heal(self) -> None:
        """End the `cut`."""
        self._is_cut = False

    def half_open(self) -> None:
        """Swallow all further bytes of the present connections, in both directions."""
        with self._lock:
            for connection in self._connections:
                connection.swallows = True

    def reset(self) -> None:
        """Reset the present connections."""
        with self._lock:
            for connection in list(self._connections):
                self._end(connection)

    # The work.

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                moved = self._turn()
            if not moved:
                self._sleep()

    def _sleep(self) -> None:
        """Until a socket can be read, or a millisecond."""
        with selectors.DefaultSelector() as selector, suppress(OSError, ValueError, KeyError):
            if not self._is_cut:
                selector.register(self._listener, selectors.EVENT_READ)
                for connection in self._connections:
                    for way in connection.ways.values():
                        if way.size < _HELD and not way.over:
                            selector.register(way.source, selectors.EVENT_READ)
            selector.select(1e-3)
        if self._is_cut:
            time.sleep(1e-3)

    def _turn(self) -> bool:
        if self._is_cut:
            return False
        moved = self._accept()
        for connection in list(self._connections):
            for way in connection.ways.values():
                if connection in self._connections:
                    moved |= self._read(connection, way) | self._write(connection, way)
        return moved

    def _accept(self) -> bool:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return False
        try:
            server = socket.create_connection(self._to)
        except OSError:  # nobody listens there yet
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # also if a process that was forked meanwhile has a copy of it
            client.close()
            return True
        for each in (client, server):
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.append(_Connection(client, server))
        self.connections += 1
        return True

    def _read(self, connection: _Connection, way: _Way) -> bool:
        if way.size >= _HELD or way.over:
            return False
        try:
            data = way.source.recv(SEGMENT)
        except BlockingIOError:
            return False
        except OSError:
            self._end(connection)
            return True
        if connection.swallows:
            way.over = not data
            return True
        way.over = not data
        if self.corrupt and data and self._random.random() < self.corrupt:
            changed = bytearray(data)
            changed[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
            data = bytes(changed)
        leaves = max(time.monotonic() + self.delay, way.last + (len(data) / self.rate if self.rate else 0.0))
        if self.loss and self._random.random() < self.loss:
            leaves += RESENT
        way.last = leaves
        way.held.append((leaves, data))
        way.size += len(data)
        return True

    def _write(self, connection: _Connection, way: _Way) -> bool:
        moved = False
        while way.held and way.held[0][0] <= time.monotonic():
            leaves, data = way.held.popleft()
            way.size -= len(data)
            if connection.swallows:
                continue
            if not data:
                self._end(connection, reset=False)
                return True
            try:
                sent = way.target.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end(connection)
                return True
            connection.passed += sent
            if sent < len(data):
                way.held.appendleft((leaves, data[sent:]))
                way.size += len(data) - sent
            if self.reset_after and connection.passed >= self.reset_after:
                self._end(connection)
                return True
            if sent < len(data):
                return moved or sent > 0
            moved = True
        return moved

    def _end(self, connection: _Connection, reset: bool = True) -> None:
        self._connections.remove(connection)
        for each in connection.sockets:
            with suppress(OSError):
                if reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                each.close()

    def close(self) -> None:
        """Reset all connections and end the thread."""
        self._closed = True
        self._thread.join()
        for connection in list(self._connections):
            self._end(connection)
        self._listener.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
