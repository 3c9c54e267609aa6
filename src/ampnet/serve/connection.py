"""TimedConnection: uvicorn's connection, closed when its client is too slow.

    accepted ── head of a request ──┬── body, prediction ── response ──┬── head of the next ...
    └──────── at most PATIENT ──────┘   (time of a request: `Limits`)  └──────── at most PATIENT
                                                     └── client reads nothing: at most PATIENT

Without it a client that sends half a request, or does not read its response, would hold one of the server's connections
for ever. Import it when uvicorn is installed only.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENT = 10.0
"""Seconds that a client may take; see the head of this file."""


class TimedConnection(H11Protocol):
    """A connection of HTTP/1.1 with time limits."""

    _waits: asyncio.TimerHandle | None = None
    """Closes the connection, if the head of a request is not complete by then."""
    _stuck: asyncio.TimerHandle | None = None
    """Closes it, if the client does not read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waits, self._stuck = _cancel(self._waits), _cancel(self._stuck)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(PATIENT, self.transport.abort)

    def resume_writing(self) -> None:
        self._stuck = _cancel(self._stuck)
        super().resume_writing()

    def _watch(self) -> None:
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            self._waits = _cancel(self._waits)
        else:
            self._waits = self._waits or self.loop.call_later(PATIENT, self.transport.close)


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Returns None."""
    if timer is not None:
        timer.cancel()
    return None
