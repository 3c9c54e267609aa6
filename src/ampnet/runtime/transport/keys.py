"""Keys: what lets the parties of one run, and nobody else, talk to each other over a network.

    make_keys(3) ──> Keys of party 0     its secret key    public keys of 0, 1, 2    the run's token    generation
                     Keys of party 1     its secret key    public keys of 0, 1, 2    the run's token    generation
                     Keys of party 2     ...

The process that makes a run calls `make_keys` and hands each party its own `Keys` over a channel that it trusts (that
of Ray). They are CURVE key pairs (Curve25519): a connection is encrypted, both ends prove who they are, and a changed
byte ends it. Keys are made for one run and never stored. Parties that are started again get new ones, of the next
**generation**: frames of another run or generation are dropped (`ampnet.runtime.transport.link`).

A secret key is in no ``repr``, no error and no log.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampnet.errors import TransportError

if TYPE_CHECKING:
    from zmq import Context, Socket

TOKEN = 8
"""Bytes of a run's token."""


def import_zmq() -> Any:
    """Returns pyzmq, which is needed for several machines only; raises `TransportError` with the remedy."""
    try:
        import zmq
    except ImportError as error:
        raise TransportError(
            "frames between machines are sent with pyzmq, which is not installed: pip install 'ampnet[cluster]'"
        ) from error
    if not zmq.has("curve"):
        raise TransportError(
            f"libzmq {zmq.zmq_version()} was built without CURVE, and nothing is sent in the clear: "
            "install pyzmq from a wheel (pip install 'ampnet[cluster]')"
        )
    return zmq


@dataclass(frozen=True)
class Keys:
    """The keys of one party. Made by `make_keys`; may be pickled by its maker to be handed out."""

    party: int
    secret: bytes = field(repr=False)
    """The party's own secret key: 40 printable characters (Z85)."""
    public: dict[int, bytes] = field(repr=False)
    """The public keys of all parties, this one's included."""
    token: bytes = field(repr=False)
    """A random number of the run."""
    generation: int = 0

    @property
    def others(self) -> list[int]:
        """The parties that this one may send to."""
        return sorted(party for party in self.public if party != self.party)


def make_keys(parties: int, generation: int = 0) -> list[Keys]:
    """Returns new keys for each of ``parties`` parties of a run."""
    zmq = import_zmq()
    pairs: list[tuple[bytes, bytes]] = [zmq.curve_keypair() for _ in range(parties)]
    public = {party: pair[0] for party, pair in enumerate(pairs)}
    token = secrets.token_bytes(TOKEN)
    return [Keys(party, pair[1], dict(public), token, generation) for party, pair in enumerate(pairs)]


class Guard:
    """Decides who may connect: the owners of the run's keys. Answers the requests of ZAP (ZeroMQ's authentication
    protocol, RFC 27) that libzmq makes for each connection, with the party's number as its user.

    It has no thread: the endpoint calls `answer`. A connection that is not answered yet waits.
    """

    _ADDRESS = "inproc://zeromq.zap.01"

    def __init__(self, context: Context[Socket[bytes]], keys: Keys) -> None:
        zmq = import_zmq()
        from zmq.utils.z85 import decode

        self._empty = zmq.Again
        self._nowait = zmq.NOBLOCK
        self._users = {decode(key): b"%d" % party for party, key in keys.public.items()}
        self.socket: Socket[bytes] = context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.bind(self._ADDRESS)
        self.refused = 0
        """The number of connections that were refused."""

    def answer(self) -> None:
        """Answer all requests that are there."""
        while True:
            try:
                asked = self.socket.recv_multipart(self._nowait)
            except self._empty:
                return
            back, request = asked[: asked.index(b"") + 1], asked[asked.index(b"") + 1 :]
            user = None
            if len(request) == 7 and request[0] == b"1.0" and request[5] == b"CURVE":
                user = self._users.get(request[6])
            number = request[1] if len(request) > 1 else b""
            verdict = [b"400", b"not of this run", b"", b""] if user is None else [b"200", b"OK", user, b""]
            self.refused += user is None
            self.socket.send_multipart([*back, b"1.0", number, *verdict])

    def close(self) -> None:
        """Close the socket; connections are no longer accepted."""
        self.socket.close(0)
