"""Server: uvicorn in a thread of this process. It serves from its construction until `close`.

The socket is bound first, so a port that is in use is an `OSError` before anything else is done. uvicorn gets no
signal handlers, no access log, and no headers of proxies to believe.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import threading
from contextlib import suppress
from typing import Any

from ampnet.errors import AmpnetError

PATIENCE = 5
"""Seconds that requests in progress have to end when the server is closed."""
CONNECTIONS = 512
"""The maximal number of connections; further ones get 503."""


class Server:
    """See the head of this file."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        """``app``: the ASGI application. ``port`` 0: any that is free."""
        uvicorn = import_uvicorn()
        from ampnet.serve.connection import TimedConnection

        self._socket = bound(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # the terminal belongs to the run
        config = uvicorn.Config(
            app,
            http=TimedConnection,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=PATIENCE,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="serve", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    @property
    def address(self) -> str:
        """The address of the page."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def finish(self) -> None:
        """Accept no more connections; requests in progress go on. Does not wait."""
        self._server.should_exit = True

    @property
    def running(self) -> bool:
        """Whether requests may still be in progress."""
        return self._thread.is_alive()

    def close(self) -> None:
        """End the server: requests in progress have `PATIENCE` seconds."""
        self.finish()
        self._thread.join()
        # Worker processes have a copy of the socket; this closes it for all of them.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def import_uvicorn() -> Any:
    """Returns the module. Raises `AmpnetError` if the extra is not installed."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise AmpnetError(f"serving needs {error.name}, which is not installed: pip install 'ampnet[serve]'") from None
    del starlette
    return uvicorn


def bound(host: str, port: int) -> socket.socket:
    """Returns a socket that listens on an address."""
    name = "127.0.0.1" if host == "localhost" else host
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(name).version == 6 else socket.AF_INET
    except ValueError:
        raise AmpnetError(f"{host!r} is no address to listen on: give one like 127.0.0.1, 0.0.0.0 or ::") from None
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY on such only
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((name, port))
        made.listen(128)
    except BaseException:
        made.close()
        raise
    made.set_inheritable(False)
    return made
