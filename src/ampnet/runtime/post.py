"""Post: the controller's connection to its workers: ordered notes, and queries to all workers.

    send(worker, note)      adds the era; never blocks
    take_in()               dispatches received notes of this era
    ask()                   ASK to all, wait for every ANSWER: counts and queues
    save()                  SAVE to all, without waiting; `states` are those of the last SAVE that all have answered
    show()                  SHOW to all, at intervals, without waiting. Once every worker has sent its events, all
                            events older than the SHOW go to the listeners
    abandon()               a new era: frames in transit are dropped on arrival

**Interrupts.** Ctrl-C may come anywhere. In the middle of sending or receiving it may leave a ring in an inconsistent
state: `broken` is true then, and no note can be sent any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ampnet.errors import CheckpointError, TransportError
from ampnet.runtime.answers import Answers
from ampnet.runtime.events import InOrder, events_of
from ampnet.runtime.protocol import Kind, state_from
from ampnet.runtime.transport import AnyEndpoint, Note
from ampnet.update.state import UpdaterState

_NAP = 0.02
"""The maximal sleep, in seconds."""
_SHOW = 0.25
"""The interval in seconds at which workers are asked for events, if there are listeners."""


class Post:
    """See the head of this file."""

    def __init__(
        self,
        endpoint: AnyEndpoint,
        workers: int,
        events: InOrder,
        clock: Callable[[], float],
        hear: Callable[[int, Note], None],
        look: Callable[[], None],
    ) -> None:
        """``hear`` is called with notes that are not handled here, ``look`` when none has arrived."""
        self.endpoint, self.workers, self.clock = endpoint, workers, clock
        self._events, self._hear, self._look = events, hear, look
        self.broken = False
        """Whether a frame is being sent or received, or was at an interrupt."""
        self.era = self._asked = self._token = 0
        self.answers = Answers()
        """The last ones."""
        self.heard = self._shown = time.monotonic()
        """The time when the last note other than an answer arrived."""
        self.states: dict[str, UpdaterState] = {}
        """The states of all nodes with parameters; empty before the first SAVE is answered."""
        self.faults: dict[str, str] = {}
        """By node: why it is not among the states."""
        self.saved = 0.0
        """The time when the last answer to the SAVE arrived."""
        self._saving: tuple[int, set[int], dict[str, UpdaterState], dict[str, str]] | None = None
        """The last SAVE: its token, the workers that have not answered yet, and the states and faults received."""
        self._showing: tuple[int, float, set[int]] | None = None
        """The last SHOW: its token, its time, and the workers that have not answered yet."""

    # -- sending

    def send(self, worker: int, note: Note) -> None:
        """Send a note of this era to a worker."""
        note.data["era"] = self.era
        self.broken = True
        try:
            self.endpoint.send(worker, note)
        except TransportError:
            self.broken = self.endpoint.writing  # a note that cannot be encoded fails before it is written
            raise
        self.broken = False

    def everybody(self, kind: Kind, **data: Any) -> None:
        """Send a note to all workers."""
        for worker in range(self.workers):
            self.send(worker, Note(kind, dict(data)))

    # -- receiving

    def turn(self) -> None:
        """Dispatch received notes; if there are none, check the workers and sleep briefly."""
        if self._events.listeners and time.monotonic() - self._shown > _SHOW:
            self.show()
        if not self.take_in():
            self._look()
            self._wait()

    def _wait(self) -> None:
        self.broken = self.endpoint.fragile()
        self.endpoint.wait(_NAP)
        self.broken = False

    def take_in(self) -> bool:
        """Dispatch received notes; returns whether there were any."""
        self.broken = True
        if self.endpoint.pending():
            self.endpoint.flush()
        arrived = self.endpoint.receive()
        self.broken = False
        for sender, note in arrived:
            assert isinstance(note, Note)
            if note.data["era"] != self.era:
                continue
            if note.kind == Kind.ANSWER:
                if note.data["token"] == self._asked:
                    self.answers[sender] = note.data
            elif note.kind == Kind.EVENTS:
                self._events.collect(events_of(note))
                self._showed(sender, note.data["token"])
            elif note.kind == Kind.STATE:
                self._saved(sender, note)
            elif note.kind == Kind.PEEK:  # no progress of the run
                self._hear(sender, note)
            else:
                self.heard = time.monotonic()
                self._hear(sender, note)
        return bool(arrived)

    # -- asking

    def ask(self) -> Answers:
        """Ask all workers for counts and queues, and wait for their answers."""
        self._asked += 1
        self.answers, self._showing = Answers(), None
        asked = self.clock()
        self.everybody(Kind.ASK, token=self._asked)
        while len(self.answers) < self.workers:
            if not self.take_in():
                self._look()
                self._wait()
        self._events.release(asked)
        return self.answers

    def save(self, *, weights: bool) -> None:
        """Ask workers for the states of their nodes, without waiting for them."""
        self._token += 1
        self._saving = (self._token, set(range(self.workers)), {}, {})
        self.everybody(Kind.SAVE, token=self._token, weights=weights)

    @property
    def saving(self) -> bool:
        """Whether a SAVE has not been answered by all workers."""
        return self._saving is not None

    def _saved(self, worker: int, note: Note) -> None:
        if self._saving is None or self._saving[0] != note.data["token"]:
            return
        _, missing, states, faults = self._saving
        node = note.data["node"]
        if node is not None and note.data["fault"] is not None:
            faults[node] = note.data["fault"]
            return
        if node is not None:
            states[node] = state_from(note)
            return
        missing.discard(worker)
        if not missing:
            self.states, self.faults, self._saving = states, faults, None
            self.saved = time.monotonic()

    def await_states(self) -> dict[str, UpdaterState]:
        """Wait until all workers have answered the last SAVE; returns the states. Raises `CheckpointError` if a state
        cannot be saved."""
        while self._saving is not None:
            if not self.take_in():
                self._look()
                self._wait()
        for node, fault in self.faults.items():
            raise CheckpointError(f"node '{node}': {fault}")
        return self.states

    def show(self) -> None:
        """Ask workers for their events, without waiting for them."""
        self._shown = time.monotonic()
        if self._showing is None:
            self._token += 1
            self._showing = (self._token, self.clock(), set(range(self.workers)))
            self.everybody(Kind.SHOW, token=self._token)

    def _showed(self, worker: int, token: int | None) -> None:
        if self._showing is not None and self._showing[0] == token:
            _, asked, missing = self._showing
            missing.discard(worker)
            if not missing:
                self._showing = None
                self._events.release(asked)

    # -- the end of a run

    def abandon(self) -> None:
        """Begin a new era."""
        self.era += 1
        self._showing = self._saving = None
        self._events.drop()
        self.everybody(Kind.ABANDON)
