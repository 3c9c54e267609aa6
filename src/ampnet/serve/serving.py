"""Serving: a server, and who plays its predictions.

    Trained     beside a runtime that trains: in its runs, and at rest in a thread    ampnet.serve, ampnet train --serve
    Alone       a runtime that does nothing else, in the thread that calls `run`      ampnet serve

Both play one batch at a time, and see only instances that were built without a fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ampnet.fitting import Callback
from ampnet.fitting.records import EpochRecord
from ampnet.instance import Instance
from ampnet.lang.prediction import Prediction
from ampnet.runtime.beside import Beside
from ampnet.runtime.runtime import Runtime
from ampnet.serve.app import App, Limits
from ampnet.serve.desk import Desk, Predictor
from ampnet.serve.form import LIMIT, Form, Tell
from ampnet.serve.guard import RequestGuard, find_token, is_loopback, names_of
from ampnet.serve.server import Server

REST = 0.2
"""Seconds between two checks whether a thread is to end."""
ENDS = "the server ends"


class Trained:
    """Plays beside a runtime that trains; see `ampnet.runtime.beside`."""

    def __init__(self, runtime: Runtime, desk: Desk) -> None:
        self.epoch: int | None = None
        self._desk = desk
        self._beside = Beside(runtime, desk.most, desk.due, lambda: desk.play(self))
        self.graph: Prediction = self._beside.graph
        self._thread = threading.Thread(target=self._at_rest, name="predictions at rest", daemon=True)

    def predict(self, instances: Sequence[Instance]) -> list[Any]:
        return self._beside.predict(instances)

    def weights(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "updates": self._beside.updates()}

    def start(self) -> None:
        """Play at rest, too."""
        self._thread.start()

    def _at_rest(self) -> None:
        desk, beside = self._desk, self._beside
        while desk.closed is None:
            if desk.wait_for_batch(REST) and not beside.at_rest():
                with beside.rest:
                    beside.rest.wait_for(lambda: not beside.inside or desk.closed is not None, REST)

    def close(self) -> None:
        """Stop playing. The desk is closed already."""
        if self._thread.ident is not None:
            self._thread.join()
        self._beside.close()


class Alone:
    """Plays on a runtime that does nothing else."""

    def __init__(self, runtime: Runtime, weights: dict[str, Any]) -> None:
        self._runtime, self._weights = runtime, weights
        self.graph: Prediction = runtime.graph.prediction  # type: ignore[assignment]

    def predict(self, instances: Sequence[Instance]) -> list[Any]:
        return self._runtime.predict(instances)

    def weights(self) -> dict[str, Any]:
        return self._weights


class Serving(Callback):
    """A server of predictions: a context manager, and a callback of `fit`. Made by `ampnet.serve`."""

    def __init__(
        self,
        desk: Desk,
        player: Predictor,
        *,
        port: int | None = 0,
        host: str = "127.0.0.1",
        token_file: Path | None = None,
        rate: float | None = 100.0,
        max_body: int = 8 << 20,
        seconds: float = 30.0,
        max_elements: int = LIMIT,
        tell: Tell | None = None,
        told: str = "",
        name: str | None = None,
        about: str = "",
    ) -> None:
        """``port`` None: no server, only its application (``app.asgi``). ``max_elements``: of a sequence, tree or set
        of edges, and rounds of a loop. ``tell``, ``told``: as in `Form`. ``name``, ``about``: for the page."""
        self.desk, self._player = desk, player
        self.server: Server | None = None
        self.token_file: Path | None = None
        """The file with the token that was made for this server; None if it was given, or none is needed."""
        self._lasting = token_file is not None
        try:
            form = Form(player.graph, limit=max_elements, tell=tell, told=told)
            player.predict([form.read(form.shown())[0]])  # plans it, and shows faults before anybody asks
            token, self.token_file = find_token(token_file, not is_loopback(host))
            guard = RequestGuard(names=names_of(host), token=token, rate=rate)
            self.app = App(
                form,
                desk,
                guard,
                name=name or form.graph.name,
                about=about,
                limits=Limits(max_body, seconds, desk.queued),
                weights=player.weights,
            )
            if isinstance(player, Trained):
                player.start()
            if port is not None:
                self.server = Server(self.app.asgi, host, port)
        except BaseException:
            self.stop()
            raise

    @property
    def address(self) -> str:
        """The address of the page."""
        assert self.server is not None
        return self.server.address

    def on_epoch_end(self, record: EpochRecord) -> None:
        if isinstance(self._player, Trained):
            self._player.epoch = record.epoch

    def run(self, asked: Callable[[], bool]) -> None:
        """Play until ``asked()`` is true and all requests in progress have their responses. For `Alone`."""
        while not asked() and self.desk.closed is None:
            if self.desk.wait_for_batch(REST):
                self.desk.play(self._player)
        if self.server is not None:
            self.server.finish()
            while self.server.running:
                if self.desk.wait_for_batch(REST / 10):
                    self.desk.play(self._player)

    def stop(self) -> None:
        """End the server. Waiting requests get 503."""
        self.desk.close(ENDS)
        if self.server is not None:
            self.server.close()
        if isinstance(self._player, Trained):
            self._player.close()
        if self.token_file is not None and not self._lasting:
            self.token_file.unlink(missing_ok=True)
            self.token_file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
