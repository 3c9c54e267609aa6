"""TCP endpoints on loopback for tests. Their ports are known before they exist: so forked processes can make them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ampnet.runtime.transport.keys import make_keys
from ampnet.runtime.transport.tcp import TcpEndpoint

QUICK = {"beat": 0.1, "dead": 0.4, "probe": 0.1}
"""Faults are noticed soon. A machine with too much to do may take one for another: connections are then made again."""


def reserved(host: str = "127.0.0.1") -> socket.socket:
    """A socket that keeps its port from others: an endpoint may listen there as long as this one does not."""
    out = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    out.bind((host, 0))
    return out


class Network:
    """Addresses and keys for a number of parties. ``way`` may put something between: it gets the numbers of sender and
    receiver and the receiver's port, and returns the port to connect to."""

    def __init__(self, parties: int, way: Callable[[int, int, int], int] | None = None, **how: Any) -> None:
        self.keys = make_keys(parties)
        self.parties, self._how = parties, how
        self._reserved = [reserved() for _ in range(parties)]
        self.ports = [each.getsockname()[1] for each in self._reserved]
        self._way = way or (lambda sender, receiver, port: port)
        self._made = ExitStack()
        self._pid = os.getpid()
        self._ends: dict[tuple[int, int], TcpEndpoint] = {}

    def endpoint(self, party: int) -> TcpEndpoint:
        """This party's endpoint, made and connected in the process that calls."""
        if (os.getpid(), party) in self._ends:
            return self._ends[os.getpid(), party]
        made = TcpEndpoint(self.keys[party], port=self.ports[party], **self._how)
        self._ends[os.getpid(), party] = made
        if os.getpid() == self._pid:
            self._made.callback(made.close, 0.0)
        others = (q for q in range(self.parties) if q != party)
        made.connect({q: f"tcp://127.0.0.1:{self._way(party, q, self.ports[q])}" for q in others})
        return made

    def close(self) -> None:
        self._made.close()
        for each in self._reserved:
            each.close()


@contextmanager
def network(parties: int, way: Callable[[int, int, int], int] | None = None, **how: Any) -> Iterator[Network]:
    made = Network(parties, way, **how)
    try:
        yield made
    finally:
        made.close()
