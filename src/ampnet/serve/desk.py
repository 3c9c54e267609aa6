"""Desk: requests of many clients become few batches, played where and when it is possible.

    server's thread     submit ──> tickets ──┐                          ┌──> Future of each request
                                             │ wait 2 ms, or 64 instances │
    who plays           turn ──> take ───────┴──> one run of the player ──┘

Three may play, one at a time: the loop of a training run between two of its turns, a thread of the desk when the
runtime is at rest, or the main thread of `ampnet serve`. A request is never split: all its results are of the same
weights. If a batch fails, it is halved until the faulty instances are found: only their requests are refused.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from ampnet.errors import AmpnetError, NodeError, TransportError, WorkerDied
from ampnet.instance import Instance
from ampnet.lang.prediction import Prediction

MOST = 64
"""The number of instances that make a batch full."""
WAIT = 0.002
"""Seconds for which a request waits for others to share its batch."""
QUEUED = 1024
"""The maximal number of waiting instances."""


class Busy(Exception):
    """Too many instances wait."""


class Closed(Exception):
    """Nothing is played any more."""


class Faulty(Exception):
    """An instance that the model cannot compute. ``number``: its index in the request."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Predictor(Protocol):
    """Computes predictions."""

    graph: Prediction

    def predict(self, instances: Sequence[Instance]) -> list[Any]:
        """Returns the results, in order."""

    def weights(self) -> dict[str, Any]:
        """Returns the version of the weights that `predict` used last, as plain data."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that waits."""

    instances: Sequence[Instance]
    at: float
    """The time when it was submitted."""
    done: Future[tuple[list[Any], dict[str, Any]]] = field(default_factory=Future)
    """Its results, and the version of the weights."""


class Desk:
    """See the head of this file. Every method may be called from any thread."""

    def __init__(
        self,
        *,
        most: int = MOST,
        wait: float = WAIT,
        queued: int = QUEUED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self.wait, self.queued, self._clock = most, wait, queued, clock
        self._tickets: deque[Ticket] = deque()
        self._count = 0
        self.changed = threading.Condition()
        """Notified when a ticket comes in, and when the desk is closed."""
        self.closed: str | None = None
        """The reason why it is closed."""
        self.batches = self.played = 0
        """Numbers of batches and instances played."""

    def submit(self, instances: Sequence[Instance]) -> Future[tuple[list[Any], dict[str, Any]]]:
        """Add a request. Raises `Busy` or `Closed`. A future that is cancelled in time is not played."""
        ticket = Ticket(instances, self._clock())
        with self.changed:
            if self.closed is not None:
                raise Closed(self.closed)
            if self._count + len(instances) > self.queued:
                raise Busy(f"{self._count:,} instances wait already; try again later")
            self._tickets.append(ticket)
            self._count += len(instances)
            self.changed.notify_all()
        return ticket.done

    @property
    def waiting(self) -> int:
        """The number of waiting instances."""
        return self._count

    def due(self) -> bool:
        """Whether there is a batch to play: it is full, or its first request has waited long enough."""
        tickets = self._tickets
        try:
            return bool(tickets) and (self._count >= self.most or self._clock() - tickets[0].at >= self.wait)
        except IndexError:  # another thread has taken it
            return False

    def wait_for_batch(self, timeout: float) -> bool:
        """Wait until a batch is due; False after ``timeout`` seconds without a request, or if the desk is closed."""
        with self.changed:
            if not self.changed.wait_for(lambda: self._tickets or self.closed is not None, timeout) or self.closed:
                return False
            left = self.wait - (self._clock() - self._tickets[0].at) if self._tickets else 0.0
            self.changed.wait_for(lambda: self._count >= self.most or self.closed is not None, max(0.0, left))
        return self.closed is None

    def _take(self) -> list[Ticket]:
        """Returns the tickets of the next batch: whole requests, at least one."""
        out: list[Ticket] = []
        count = 0
        with self.changed:
            while self._tickets and (not out or count + len(self._tickets[0].instances) <= self.most):
                ticket = self._tickets.popleft()
                self._count -= len(ticket.instances)
                if ticket.done.set_running_or_notify_cancel():
                    out.append(ticket)
                    count += len(ticket.instances)
        return out

    def play(self, player: Predictor) -> None:
        """Play the next batch, if any. Raises only what no request has caused: `WorkerDied`, Ctrl-C."""
        tickets = self._take()
        todo = [(ticket, number) for ticket in tickets for number in range(len(ticket.instances))]
        results: dict[tuple[Ticket, int], Any] = {}
        faults: dict[Ticket, Faulty] = {}
        try:
            self._play(player, todo, results, faults)
        except BaseException as error:
            for ticket in tickets:
                ticket.done.set_exception(Closed(f"the predictions ended ({type(error).__name__})"))
            raise
        weights = player.weights() if tickets else {}
        for ticket in tickets:
            if ticket in faults:
                ticket.done.set_exception(faults[ticket])
            else:
                ticket.done.set_result(([results[ticket, n] for n in range(len(ticket.instances))], weights))

    def _play(
        self,
        player: Predictor,
        todo: Sequence[tuple[Ticket, int]],
        results: dict[tuple[Ticket, int], Any],
        faults: dict[Ticket, Faulty],
    ) -> None:
        todo = [one for one in todo if one[0] not in faults]
        if not todo:
            return
        try:
            found = player.predict([ticket.instances[number] for ticket, number in todo])
        except (WorkerDied, TransportError):
            raise
        except Exception as error:
            if len(todo) == 1:
                ticket, number = todo[0]
                faults[ticket] = Faulty(number, explained(error))
                return
            middle = len(todo) // 2
            self._play(player, todo[:middle], results, faults)
            self._play(player, todo[middle:], results, faults)
            return
        self.batches += 1
        self.played += len(todo)
        results |= zip(todo, found, strict=True)

    def close(self, why: str) -> None:
        """Refuse all waiting and further requests."""
        with self.changed:
            self.closed = self.closed or why
            tickets, self._count = list(self._tickets), 0
            self._tickets.clear()
            self.changed.notify_all()
        for ticket in tickets:
            if ticket.done.set_running_or_notify_cancel():
                ticket.done.set_exception(Closed(why))


def explained(error: Exception) -> str:
    """Returns an error in one line for the client: no traceback, no file."""
    if isinstance(error, NodeError):
        return f"node '{error.node}' failed: {_line(error.__cause__ or error)}"
    if isinstance(error, AmpnetError):
        return _line(error)
    return f"the model cannot compute it ({type(error).__name__})"


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
