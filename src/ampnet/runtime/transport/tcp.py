"""TcpEndpoint: an endpoint for parties on different machines, over ``tcp://`` sockets of pyzmq.

                 party 0                                     party 1
    send ──> Link to 1 ──> PUSH ─── one connection ────> PULL ──> Link to 0 ──> receive      frames; acknowledgements
    receive <── Link to 1 <── PULL <── another one ──── PUSH <── Link to 0 <── send          of those of the other way

Each party binds one PULL socket for all others, and connects one PUSH socket to each of them. Connections are made,
watched by heartbeats and made again by libzmq's IO thread; what is lost when one breaks is sent again by a `Link`.
Frames are in the format of `ampnet.runtime.transport.wire`: parsed, never unpickled.

**Who may connect.** Connections are encrypted and authenticated with the run's `Keys` (CURVE): the server knows all
parties' public keys and refuses others (`Guard`), the client knows the server's. The sender of a message is the owner
of the key of its connection, whatever the message says.

**Memory.** `send` copies the frame and never blocks. A frame is kept until the other party has taken it: what is beyond
the window (`link.WINDOW`, 32 MiB a party) waits in the sender's memory, without a limit, as frames wait in the outbox
of a `Mesh`; runtimes limit the instances in flight, and so that. At the receiver lies at most a window for each sender,
and the frame that is being put together. Frames to one party are sent in order: behind 100 MB of weights, others wait
(those to and from other parties do not).

**The end.** `flush` returns True when the other parties have taken all frames: then this process may end without loss.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from ampnet.errors import TransportError
from ampnet.runtime.transport.frames import Frame
from ampnet.runtime.transport.keys import Guard, Keys, import_zmq
from ampnet.runtime.transport.link import CHUNK, HEAD, LARGEST, PROBE, WINDOW, Link
from ampnet.runtime.transport.wire import decode, encode

if TYPE_CHECKING:
    from zmq import Context, Socket

BEAT = 1.0
"""Seconds between two heartbeats of a connection."""
DEAD = 5.0
"""Seconds without any byte after which a connection is given up, and made again."""
RETRY = 20, 1000
"""Milliseconds between two attempts to connect: the first, and the most."""
_AGAIN = 0.05
"""Seconds before a socket that libzmq has given up is replaced by another one."""
_TEND = 5e-3
"""Seconds between two looks at who wants to connect, and at what is due, while frames are coming."""
_CURVE = 64
"""Bytes that encryption adds to a message: 33, and some to spare."""
_MOST = 4096
"""Messages taken in one after the other: `receive` returns in between, however fast they come."""


class TcpEndpoint:
    """Sends and receives frames of party ``keys.party``, over TCP. One thread at a time uses it, in the process
    that made it.

        endpoint = TcpEndpoint(keys, "10.0.0.7")      # binds to a free port of this interface
        tell_everybody(endpoint.address)              # "tcp://10.0.0.7:40213"
        endpoint.connect({0: ..., 2: ...})            # the addresses of the other parties
        endpoint.send(2, note)

    Guarantees, as `Endpoint`: frames of one sender arrive once, whole and in order, whatever their kinds and however
    often connections break. Received frames belong to the receiver. Arrays may be overwritten as soon as `send` has
    returned. Frames may be sent before `connect`, and before the other party exists: they wait.
    """

    def __init__(
        self,
        keys: Keys,
        bind_host: str = "127.0.0.1",
        port: int = 0,
        *,
        window: int = WINDOW,
        chunk: int = CHUNK,
        largest: int = LARGEST,
        beat: float = BEAT,
        dead: float = DEAD,
        probe: float = PROBE,
    ) -> None:
        """``bind_host``: the IP address (v4 or v6) or name of the interface, as others reach it. ``port``: 0 for a free
        one. ``largest``: the limit of a frame, in bytes. ``beat``, ``dead``, ``probe``: seconds, see `BEAT`, `DEAD` and
        `link.PROBE`."""
        self._zmq = zmq = import_zmq()
        host = _ip(bind_host)
        self.party, self._keys = keys.party, keys
        self._beat, self._dead = beat, dead
        self._links = {
            party: Link(keys.token, keys.generation, window=window, chunk=chunk, largest=largest, probe=probe)
            for party in keys.others
        }
        self._out: dict[int, Socket[bytes]] = {}
        self._news: dict[int, Socket[bytes]] = {}
        """For each party the socket that tells when its connection is made and lost."""
        self._addresses: dict[int, str] = {}
        self._made = dict.fromkeys(self._links, 0.0)
        """When the socket to each party was made."""
        self._alive = dict.fromkeys(self._links, False)
        self._heard = dict.fromkeys(self._links, time.monotonic())
        self._tended = 0.0
        self.writing = False
        """Always False: an interrupt leaves no frame half sent."""
        self.dropped = 0
        """The number of received messages that were none of this run and generation, and were dropped."""
        self._context: Context[Socket[bytes]] = zmq.Context()
        try:
            self._guard = Guard(self._context, keys)
            self._in = self._socket(zmq.PULL, ":" in host)
            self._in.set(zmq.CURVE_SERVER, 1)
            self._in.set(zmq.ZAP_DOMAIN, b"ampnet")
            self._in.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a guard nobody gets in
            self._in.set(zmq.MAXMSGSIZE, HEAD.size + chunk + _CURVE)
            self._poller = zmq.Poller()
            self._poller.register(self._in, zmq.POLLIN)
            self._poller.register(self._guard.socket, zmq.POLLIN)
            try:
                self._in.bind(f"tcp://{_shown(host)}:{port or '*'}")
            except zmq.ZMQError as error:
                raise TransportError(f"party {self.party} cannot listen at {bind_host}, port {port}: {error}") from None
            self.address = self._in.get_string(zmq.LAST_ENDPOINT)
            """Where others connect to."""
        except BaseException:
            self._context.destroy(0)
            raise

    def _socket(self, kind: int, ipv6: bool) -> Socket[bytes]:
        zmq = self._zmq
        made: Socket[bytes] = self._context.socket(kind)
        made.set(zmq.CURVE_SECRETKEY, self._keys.secret)
        made.set(zmq.CURVE_PUBLICKEY, self._keys.public[self.party])
        made.set(zmq.IPV6, int(ipv6))
        made.set(zmq.SNDHWM, 0)  # the window limits it
        made.set(zmq.LINGER, 0)  # `close` gives some time; an endpoint that is only dropped does not hang
        made.set(zmq.HEARTBEAT_IVL, round(1e3 * self._beat))
        made.set(zmq.HEARTBEAT_TIMEOUT, round(1e3 * self._dead))
        made.set(zmq.HANDSHAKE_IVL, round(2e3 * self._dead))
        made.set(zmq.RECONNECT_IVL, RETRY[0])
        made.set(zmq.RECONNECT_IVL_MAX, RETRY[1])
        return made

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Connect to other parties, at their `address`. Does not wait for them; may be called again with others."""
        for party, address in addresses.items():
            if party == self.party or party in self._out:
                continue
            if party not in self._links:
                raise TransportError(f"there is no party {party} in the keys of this run; there are {self._parties()}")
            self._connect(party, address)
        self._pump()

    def _connect(self, party: int, address: str) -> None:
        zmq = self._zmq
        made = self._socket(zmq.PUSH, "[" in address)
        made.set(zmq.CURVE_SERVERKEY, self._keys.public[party])
        news = made.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            made.connect(address)
        except zmq.ZMQError as error:
            made.disable_monitor()
            news.close(0)
            made.close(0)
            raise TransportError(f"party {party} cannot be reached at '{address}': {error}") from None
        self._poller.register(news, zmq.POLLIN)
        self._addresses[party], self._out[party], self._news[party] = address, made, news
        self._heard[party] = self._made[party] = time.monotonic()

    def _connect_again(self, party: int) -> None:
        """Replace a connection that libzmq has given up: it does not make one again after bytes that were corrupted."""
        news, gone, heard = self._news.pop(party), self._out.pop(party), self._heard[party]
        self._poller.unregister(news)
        gone.disable_monitor()
        news.close(0)
        gone.close(0)
        self._connect(party, self._addresses[party])
        self._heard[party] = heard

    def _parties(self) -> list[int]:
        return sorted(self._links)

    # Sending.

    def send(self, to: int, frame: Frame) -> None:
        """Send a frame to another party: to its connection, or into the outbox while there is no room. Never blocks."""
        link = self._links.get(to)
        if link is None:
            raise TransportError(f"party {self.party} cannot send to party {to}; it can to {self._parties()}")
        link.put(encode(frame))
        if not link.can_send():  # the window is full: acknowledgements may have come
            self._take_in()
        self._push(to, link, time.monotonic())

    def flush(self) -> bool:
        """Send what there is room for. Returns whether the other parties have received all frames."""
        self._take_in()
        self._tend()
        self._pump()
        return not self.pending()

    def pending(self) -> int:
        """Returns the number of records (frames, or chunks of large ones) that other parties have not taken yet."""
        return sum(link.pending() for link in self._links.values())

    def fragile(self) -> bool:
        """Whether an interrupt of `wait` could leave a frame half written: never."""
        return False

    def _pump(self) -> None:
        now = time.monotonic()
        for party, link in self._links.items():
            self._push(party, link, now)

    def _push(self, party: int, link: Link, now: float) -> None:
        out = self._out.get(party)
        if out is None:
            return
        nowait = self._zmq.NOBLOCK
        try:
            while (message := link.outgoing()) is not None:
                out.send(message, nowait)
                link.sent(now)
            while (message := link.due(now)) is not None:
                out.send(message, nowait)
        except self._zmq.Again:  # libzmq has given up this connection: `_tend` makes another one
            return

    # Receiving.

    def receive(self) -> list[tuple[int, Frame]]:
        """Returns all received frames as (sender, frame), in order for each sender."""
        self._take_in()
        now = time.monotonic()
        out: list[tuple[int, Frame]] = []
        for sender, link in self._links.items():
            if link.ready():
                try:
                    out += [(sender, decode(record)) for record in link.frames(now)]
                except TransportError as error:
                    raise TransportError(f"party {self.party} cannot read what party {sender} sent: {error}") from error
            if link.alarm() <= now or link.can_send():
                self._push(sender, link, now)
        if now - self._tended > _TEND:
            self._tend()
        return out

    def _take_in(self) -> None:
        """Hand all messages that have arrived to the links of their senders."""
        nowait, empty = self._zmq.NOBLOCK, self._zmq.Again
        now = time.monotonic()
        for _ in range(_MOST):
            try:
                message = self._in.recv(nowait, copy=False)
            except empty:
                return
            self._take(int(message.get("User-Id")), message.buffer, now)

    def _take(self, sender: int, message: memoryview, now: float) -> None:
        link = self._links.get(sender)
        if link is None or not link.take(message, now):
            self.dropped += 1
        else:
            self._heard[sender] = now

    # Sleeping.

    def wait(self, timeout: float) -> bool:
        """Sleep until a frame may have arrived, or other parties have received one. Returns False after ``timeout``
        seconds without either.
        """
        before = self.pending()
        deadline = time.monotonic() + timeout
        while True:
            self._take_in()
            if any(link.ready() for link in self._links.values()) or self.pending() < before:
                return True
            self._pump()
            now = time.monotonic()
            if now >= deadline:
                return False
            alarms = [link.alarm() for party, link in self._links.items() if party in self._out]
            if not all(self._alive.values()):
                alarms.append(now + _AGAIN)
            until = min([deadline, *alarms])
            events = self._poller.poll(max(1e3 * (until - now), 0.0) + 0.5)
            if len(events) != 1 or events[0][0] is not self._in:
                self._tend()

    def _tend(self) -> None:
        """Answer who wants to connect, and read which connections were made and lost."""
        zmq = self._zmq
        self._tended = now = time.monotonic()
        self._guard.answer()
        for party, address in self._addresses.items():
            if party not in self._news:  # an interrupt came between the end of one connection and the next
                self._connect(party, address)
            news = self._news[party]
            while news.get(zmq.EVENTS) & zmq.POLLIN:
                event = int.from_bytes(news.recv_multipart(zmq.NOBLOCK)[0][:2], "little")
                self._alive[party] = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                self._heard[party] = now
                if self._alive[party]:
                    self._links[party].reconnected()
            gone = not self._alive[party] and now - self._made[party] > _AGAIN
            if gone and not self._out[party].get(zmq.EVENTS) & zmq.POLLOUT:
                self._connect_again(party)

    @property
    def tended(self) -> float:
        """When this endpoint last looked at its connections, by `time.monotonic`. Any thread may ask."""
        return self._tended

    def unconnected(self) -> list[int]:
        """Returns the parties without a connection from here, as of the last look at it. Any thread may ask. A party
        that computes for long and looks at nothing has no new connections either."""
        return [party for party, alive in self._alive.items() if not alive]

    def silent(self, seconds: float = 0.0) -> dict[int, float]:
        """Returns the parties without a sign of life for more than ``seconds`` seconds, and for how long.

        A sign of life is a message, or a connection whose heartbeats are answered: also by a process that computes for
        a long time, not by one that was stopped or whose machine is gone (after `DEAD` seconds).
        """
        self._tend()
        now = time.monotonic()
        since = {party: now - self._heard[party] for party in self._links if not self._alive[party]}
        return {party: gone for party, gone in since.items() if gone > seconds}

    # The end.

    def close(self, linger: float = 0.5) -> None:
        """Acknowledge what was received, and close all connections. Frames in the outbox are dropped; what was handed
        to a connection has ``linger`` seconds to leave."""
        if self._context.closed:
            return
        for party, made in self._out.items():
            self._push(party, self._links[party], time.monotonic())
            with suppress(self._zmq.Again):
                made.send(self._links[party].last(), self._zmq.NOBLOCK)
            made.disable_monitor()
        self._guard.close()
        self._context.destroy(round(1e3 * linger))
        self._out, self._news = {}, {}

    def __enter__(self) -> TcpEndpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TcpEndpoint(party {self.party} at {self.address}, generation {self._keys.generation})"


def _ip(host: str) -> str:
    """Returns the IP address of an interface; raises `TransportError` for one that others could not reach."""
    try:
        found = str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        try:
            found = str(sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise TransportError(f"there is no address for '{host}': {error}") from error
    if ipaddress.ip_address(found).is_unspecified:
        raise TransportError(f"'{host}' is no address that others can connect to; name the address of one interface")
    return found


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
