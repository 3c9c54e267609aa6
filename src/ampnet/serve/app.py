"""App: the HTTP interface, as an ASGI application on Starlette.

    POST /predict         {"instances": [...]} ──> {"predictions": [...], "weights": {"epoch": 3, "updates": 1200}}
    GET /                 a page: the inputs of the model, a request to try, counters
    GET /openapi.json     the interface, with a JSON schema of each argument
    GET /stats            counters and the version of the weights
    GET /healthz          whether the server answers

    request ──> guard (403, 429, 401) ──> type and size (415, 413) ──> JSON (400) ──> instances (422)
            ──> desk (503) ──> played with others in one batch ──> response, or 504 when its time is over

An error response is ``{"error": "..."}``, and for an instance also its index: ``{"error": "...", "instance": 3}``. An
error of the server itself is logged in one line and answered with 500: no response has a traceback.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ampnet.events.live.server import POLICY
from ampnet.serve import openapi
from ampnet.serve.body import Refused, answered, dumped, instances_of
from ampnet.serve.desk import Busy, Closed, Desk, Faulty
from ampnet.serve.form import Form
from ampnet.serve.guard import RequestGuard
from ampnet.serve.page import page

LARGE = 1 << 16
"""Bodies of more bytes are parsed in another thread, so that the server goes on answering."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request."""

    body: int = 8 << 20
    """Bytes of its body."""
    seconds: float = 30.0
    """From its start to its response."""
    instances: int = 1024
    """Its instances."""


class App:
    """Predictions over HTTP; ``asgi`` is the application. See the head of this file."""

    def __init__(
        self,
        form: Form,
        desk: Desk,
        guard: RequestGuard,
        *,
        name: str,
        about: str = "",
        limits: Limits | None = None,
        weights: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """``name``, ``about``: of the model, for the page. ``weights`` returns the current version of the weights."""
        self.form, self.desk, self.guard, self.name, self.about = form, desk, guard, name, about
        self.limits = limits or Limits()
        self._weights = weights
        most = min(self.limits.instances, desk.queued)
        self._most = most
        self.document = openapi.document(form, name, about, most)
        self.counts: Counter[int] = Counter()
        """By status: the number of responses."""
        self._began = time.monotonic()
        self.asgi = Starlette(
            routes=[
                Route("/", self._guarded(self._page), methods=["GET"]),
                Route("/predict", self._guarded(self._predict), methods=["POST"]),
                Route("/openapi.json", self._guarded(self._openapi), methods=["GET"]),
                Route("/stats", self._guarded(self._stats), methods=["GET"]),
                Route("/healthz", self._guarded(self._healthz), methods=["GET"]),
            ],
            exception_handlers={HTTPException: self._no_route},  # type: ignore[dict-item]
        )
        self.asgi.router.redirect_slashes = False  # a redirect would be sent without the guard, to any Host

    # -- all requests

    def _guarded(self, handle: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Returns an endpoint that checks the request, and turns errors into responses."""

        async def endpoint(request: Request) -> Response:
            try:
                self._check(request)
                async with asyncio.timeout(self.limits.seconds):
                    response: Response = await handle(request)
            except Refused as refused:
                response = _refusal(refused)
            except TimeoutError:
                response = _refusal(Refused(504, f"no answer within {self.limits.seconds:g} seconds"))
            except asyncio.CancelledError:  # by uvicorn, when the server has waited long enough for its end
                response = _refusal(Refused(503, "the server ends"))
            except ClientDisconnect:
                response = _refusal(Refused(400, "the client has gone"))
            except Exception as error:
                what = " ".join(str(error).split())[:300]
                print(f"ampnet: a request failed: {type(error).__name__}: {ascii(what)[1:-1]}", file=sys.stderr)
                response = _refusal(Refused(500, "an error of the server, which its log names"))
            self.counts[response.status_code] += 1
            return response

        return endpoint

    def _check(self, request: Request) -> None:
        client = request.client.host if request.client is not None else ""
        hosts = request.headers.getlist("host")
        self.guard.check(request.scope["path"], client, hosts, request.headers.get("authorization"))

    async def _no_route(self, request: Request, error: HTTPException) -> Response:
        """404 and 405; also for these a request is counted and checked."""

        async def refuse(request: Request) -> Response:
            raise Refused(error.status_code, error.detail, dict(error.headers or {}))

        response: Response = await self._guarded(refuse)(request)
        return response

    # -- predictions

    async def _predict(self, request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "the body must be JSON, with Content-Type: application/json")
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise Refused(415, "the body must not be compressed")
        body = await self._body(request)
        arguments = (body, self.form, self._most)
        asked = instances_of(*arguments) if len(body) <= LARGE else await run_in_threadpool(instances_of, *arguments)
        try:
            future = self.desk.submit([instance for instance, _ in asked])
            results, weights = await asyncio.wrap_future(future)
        except Busy as busy:
            raise Refused(503, str(busy), {"Retry-After": "1"}) from None
        except Closed as closed:
            raise Refused(503, str(closed)) from None
        except Faulty as faulty:
            raise Refused(422, f"instance {faulty.number}: {faulty}", instance=faulty.number) from None
        made = [answer(result) for (_, answer), result in zip(asked, results, strict=True)]
        return _json(answered(made, weights=weights))

    async def _body(self, request: Request) -> bytes:
        """Returns the body; stops reading when it is too large."""
        most = self.limits.body
        too_large = Refused(413, f"the body has more than {most:,} bytes", {"Connection": "close"})
        length = request.headers.get("content-length", "0")
        if len(length) > 18 or (length.isdecimal() and int(length) > most):
            raise too_large
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
        return b"".join(parts)

    # -- the rest

    async def _page(self, request: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        text = page(self.document, self.form, self.stats(), nonce, self.guard.needs_token)
        return _safe(Response(text, media_type="text/html"), nonce)

    async def _openapi(self, request: Request) -> Response:
        return _json(dumped(self.document))

    async def _stats(self, request: Request) -> Response:
        return _json(dumped(self.stats()))

    async def _healthz(self, request: Request) -> Response:
        if self.desk.closed is not None:
            raise Refused(503, self.desk.closed)
        return _json(dumped({"status": "ok"}))

    def stats(self) -> dict[str, Any]:
        """Returns the counters, as plain data."""
        return {
            "weights": self._weights(),
            "responses": {str(status): count for status, count in sorted(self.counts.items())},
            "predictions": self.desk.played,
            "batches": self.desk.batches,
            "waiting": self.desk.waiting,
            "seconds": round(time.monotonic() - self._began, 1),
        }


def _refusal(refused: Refused) -> Response:
    response = _json(dumped({"error": refused.text, **refused.more}), refused.status)
    response.headers.update(refused.headers)
    return response


def _json(body: bytes, status: int = 200) -> Response:
    return _safe(Response(body, status, media_type="application/json"), "none")


def _safe(response: Response, nonce: str) -> Response:
    """Add the headers that every response has."""
    response.headers.update(
        {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Content-Security-Policy": POLICY.format(nonce=nonce),
        }
    )
    return response
