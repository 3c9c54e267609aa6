"""Live: a page about a run in progress, served on this machine only.

    with Live(graph) as live, Inline(graph, update=update, listeners=[live]) as runtime:
        print(live.address)                                  # http://127.0.0.1:40123/
        runtime.train(instances)

    training process ┌ the run ── events, progress ──> LiveData ┐
                     └ a thread: HTTP server <── page <─────────┘──> browser: curves, Gantt chart, workers, graph, nodes

The page has the sections of the report (`ampnet.events.report`), rebuilt about once a second while a browser asks for
them. When the run ends, so does the server; the page says so and keeps its last picture.

Its cost is bounded twice. Operations are sampled (`ampnet.events.sampling`). And the page is built in the process that
trains, so the next is due only when `PATIENCE` times the build time has passed: a large page is refreshed less often.
`docs/pictures.md` has the measurement.

Only browsers on this machine can reach it, and only under a name of this machine: see `ampnet.events.live.server`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from ampnet.controller import Progress
from ampnet.events.live.page import Picture, parts, picture_of, shell
from ampnet.events.live.server import Server
from ampnet.events.live.standing import RunSize
from ampnet.events.live.watch import KINDS, LiveData
from ampnet.events.log import Event
from ampnet.events.sampling import EVERY, MOST
from ampnet.graph import Graph

__all__ = ["Live"]

PATIENCE = 150
"""Building the page takes at most the share 1 / PATIENCE of the time."""


class Live:
    """A listener that serves a page about the run; see the head of this file. A context manager, which closes it.

    It serves from its construction. ``port`` 0 takes any free port; one that is in use raises `OSError`. With the
    ``graph``, the page has its drawing; with the number of ``epochs``, and of ``records`` in the streams "train ..."
    and "valid ...", it has the remaining time. ``most`` operations of each worker are sampled in every ``every``
    seconds. ``clock`` is the run's.
    """

    kinds = KINDS
    """The events it wants."""

    def __init__(
        self,
        graph: Graph | None = None,
        *,
        port: int = 0,
        epochs: int | None = None,
        records: Mapping[str, int] | None = None,
        most: int = MOST,
        every: float = EVERY,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._watch = LiveData(most, every, clock)
        self.sampling = self._watch.sampling
        self._plan = RunSize(epochs, dict(records or {}))
        self._picture: Picture | None = None
        self._every = every
        self._making = threading.Lock()
        self._version, self._made, self._due = 0, b"", 0.0
        if graph is not None:
            self.describe(graph)
        self._server = Server(port, self._page, self._state, every)

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self._server.port}/"

    def describe(self, graph: Graph, epochs: int | None = None, records: Mapping[str, int] | None = None) -> None:
        """Set what is known of the run only after the server was started; see the class."""
        self._picture = picture_of(graph)
        if epochs is not None:
            self._plan = RunSize(epochs, dict(records or {}))

    def __call__(self, event: Event) -> None:
        self._watch(event)

    def turn(self, progress: Progress) -> None:
        """Record the progress of the run."""
        self._watch.turn(progress)

    def _page(self, nonce: str) -> str:
        return shell(self._picture, self._state(False)[1], nonce)

    def _state(self, ended: bool) -> tuple[int, bytes]:
        """Returns the version and the JSON of the parts of the page that change; rebuilt if that is due."""
        with self._making:
            now = time.perf_counter()
            if now >= self._due or ended:
                self._version += 1
                self._made = parts(self._watch, self._plan, self._version, ended, self._picture)
                took = time.perf_counter() - now
                self._due = now + max(0.9 * self._every, PATIENCE * took)
            return self._version, self._made

    def close(self) -> None:
        """Send the last picture to browsers, and end the server."""
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
