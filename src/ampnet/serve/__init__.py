"""Serve: predictions of a model over HTTP, while it trains and afterwards.

    with Inline(graph, update=update) as runtime, serve(runtime, port=8000) as server:
        print(server.address)                                 # http://127.0.0.1:8000/
        fit(runtime, train=..., epochs=10, callbacks=[server])

    HTTP server's thread   guard ──> body, form ──> desk ──┐                 ┌──> response
    training's thread      turn ── turn ── turn ── [a batch of predictions]──┘── turn ──      (`runtime.beside`)

    app        the ASGI application                      desk      requests to batches
    guard      hosts, rates, tokens                      openapi   the description, page: for people
    body       bytes to instances and back               server    uvicorn in a thread, connection: time limits
    form       the JSON form of an instance, from `fields`, those of its arguments

Needs the extra ``serve`` (starlette, uvicorn), which is imported when a server is made. `docs/serve.md` is the manual.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampnet.runtime.runtime import Runtime
    from ampnet.serve.serving import Serving

__all__ = ["serve"]


def serve(
    runtime: Runtime,
    *,
    port: int | None = 0,
    host: str = "127.0.0.1",
    token_file: Path | None = None,
    rate: float | None = 100.0,
    max_body: int = 8 << 20,
    seconds: float = 30.0,
    **more: Any,
) -> Serving:
    """Serve predictions of a runtime's model: during its runs, and between them. Returns a context manager.

    It is also a callback for `fit`, which tells it the number of the epoch. ``port`` 0 takes any free port; one that is
    in use raises `OSError`; None makes the ASGI application only (``app.asgi``). A ``host`` that other machines can
    reach needs a token: from ``token_file``, from ``$AMPNET_TOKEN``, or a new one in a file that only this user can
    read (`Serving.token_file`).

    ``rate``: requests a second of one client (None: any number). ``max_body``: bytes of a request. ``seconds``: its
    time. ``more``: see `Serving`.
    """
    from ampnet.serve.server import import_uvicorn

    import_uvicorn()
    from ampnet.serve.desk import Desk
    from ampnet.serve.serving import Serving, Trained

    desk = Desk()
    limits: dict[str, Any] = {"rate": rate, "max_body": max_body, "seconds": seconds}
    return Serving(desk, Trained(runtime, desk), port=port, host=host, token_file=token_file, **limits, **more)
