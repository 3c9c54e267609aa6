"""What a client could do to the server: hold its connections, its time, or go around the guard."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from ampnet import Inline, serve
from ampnet.serve import connection
from ampnet.serve.body import Refused, parsed
from ampnet.serve.guard import RequestGuard
from ampnet.serve.serving import Serving
from tests.serve.asking import reader, update


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """A server whose patience with slow clients is short."""
    monkeypatch.setattr(connection, "PATIENT", 0.2)
    with Inline(reader(), update=update()) as runtime, serve(runtime, rate=None) as made:
        yield made


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"POST /predict HT",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /st",  # the second one
        b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{",  # refused by its type, then slow
    ],
)
def test_a_client_that_sends_half_a_request_is_disconnected(start: bytes, hasty: Serving) -> None:
    """Once such a connection was kept for ever: 512 of them, and nobody else was answered."""
    assert hasty.server is not None
    with socket.create_connection(("127.0.0.1", hasty.server.port), timeout=60) as made:
        made.sendall(start)
        while made.recv(4096):
            pass


def test_there_are_no_redirects(hasty: Serving) -> None:
    """Once /stats/ was redirected to any name in the Host header, before the guard was asked."""
    assert hasty.server is not None
    with socket.create_connection(("127.0.0.1", hasty.server.port), timeout=60) as made:
        made.sendall(b"GET /stats/ HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: made.recv(4096), b""))
    assert text.startswith(b"HTTP/1.1 403 ")
    assert b"location" not in text.lower()


def test_a_key_that_comes_twice_among_many_is_found_at_once() -> None:
    """Once every key was counted in the list of all keys: hours for a body of 8 MB."""
    body = json.dumps({str(n): 0 for n in range(200_000)})[:-1] + ', "199999": 1}'
    with pytest.raises(Refused, match="'199999' twice"):
        parsed(body.encode())


def test_clients_of_ipv4_on_a_socket_of_ipv6_have_rates_of_their_own() -> None:
    guard = RequestGuard(names=None, rate=0.5, clock=lambda: 0.0)

    def asks(client: str) -> Any:
        guard.check("/", client, [], None)

    asks("::ffff:10.0.0.1")
    with pytest.raises(Refused, match="requests a second"):
        asks("::ffff:10.0.0.1")
    asks("::ffff:10.0.0.2")
    with pytest.raises(Refused, match="requests a second"):
        asks("10.0.0.2")
