"""Server: HTTP for the live page, in a thread of the process that trains.

    GET /               the page
    GET /state?after=N  its changing parts, as JSON, as soon as their version is above N: the server sets the pace
    anything else       404; other methods than GET 405

It listens on 127.0.0.1, so other machines cannot reach it. A page of another site, open in a browser on this machine,
could, if its domain resolves to 127.0.0.1 (DNS rebinding). Such requests carry that domain in their Host header, and
are refused with 403. Other sites may not read the responses (no CORS header) or put them into frames, and only the
page's own scripts run (Content-Security-Policy).

A request for a version that does not exist yet waits. When the run ends, all waiting requests are answered with the
last picture; browsers ask again right after an answer, so nearly all of them are waiting at any time.
"""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

HERE = "127.0.0.1"
NAMES = (HERE, "localhost", "[::1]")
"""Names of this machine in a Host header."""
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
LINGER = 0.5
"""Seconds that `Server.close` waits for a browser to fetch the last picture, if one has asked within that time."""


class Server:
    """See the head of this file. It serves from its construction."""

    def __init__(
        self, port: int, page: Callable[[str], str], state: Callable[[bool], tuple[int, bytes]], every: float
    ) -> None:
        """``page`` returns the page, whose scripts carry a nonce. ``state`` returns the version and the JSON of the
        changing parts; its argument is whether the run has ended. ``every``: seconds between two calls of it."""
        self._page, self._state, self._every = page, state, every
        self._changed = threading.Condition()
        self._ended = False
        self._asked = self._answered = -1e9
        """The times of the last request, and of the delivery of the last picture, by `time.monotonic`."""
        self._http = _Http((HERE, port), self)
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), name="live view", daemon=True)
        self._thread.start()

    def page(self, nonce: str) -> str:
        """Returns the page."""
        return self._page(nonce)

    def state(self, after: int) -> bytes:
        """Returns the changing parts when their version is above ``after``, or the run has ended."""
        while True:
            ended = self._ended
            version, text = self._state(ended)
            if ended:
                self._answered = time.monotonic()
            self._asked = time.monotonic()
            if version > after or ended:
                return text
            with self._changed:
                self._changed.wait_for(lambda: self._ended, timeout=min(0.1, 0.1 * self._every))

    def close(self) -> None:
        """End the server. A browser with the page open gets the last picture first."""
        if self._ended:
            return
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        closed = time.monotonic()
        looking = closed - self._asked < LINGER
        while looking and self._answered < closed and time.monotonic() - closed < LINGER:
            with self._changed:
                self._changed.wait(0.02)
        self._http.shutdown()
        self._thread.join()
        # Worker processes have a copy of the socket; this closes it for all of them.
        with suppress(OSError):
            self._http.socket.shutdown(socket.SHUT_RDWR)
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], owner: Server) -> None:
        self.owner = owner
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the host name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HERE, int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection: the run continues whatever happens here."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    server_version, sys_version = "ampnet", ""
    timeout = 10.0
    """Seconds after which a silent connection is closed."""

    def do_GET(self) -> None:
        """Answer with the page, its state, or 404."""
        if not self._is_here():
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", b"This page is served to this machine only.\n")
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            nonce = secrets.token_urlsafe(16)
            self._answer(HTTPStatus.OK, "text/html", self.server.owner.page(nonce).encode(), nonce)
        elif asked.path == "/state":
            after = parse_qs(asked.query).get("after", ["0"])[-1]
            number = int(after) if after.isdecimal() and len(after) < 10 else 0
            self._answer(HTTPStatus.OK, "application/json", self.server.owner.state(number))
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", b"There is only /.\n")

    def _refuse(self) -> None:
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"There is only GET.\n")

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _is_here(self) -> bool:
        """Whether the Host header is a name of this machine, with any port: it may be forwarded."""
        host = self.headers.get_all("Host") or []
        name, _, port = host[0].strip().rpartition(":") if len(host) == 1 else ("", "", "")
        if not port.isdecimal():
            name, port = host[0].strip() if len(host) == 1 else "", "80"
        return name.lower() in NAMES

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, nonce: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", POLICY.format(nonce=nonce or "none"))
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the run."""
