"""Post: the controller's mail with its workers: notes, in order, and questions to all of them.

    send(worker, note)      adds the era; never waits
    take_in()               hands on what has arrived, of this era
    ask()                   ASK to all, wait for every ANSWER: how things are
    show()                  SHOW to all, now and then, without waiting. Once every worker has sent the events it had
                            when it was asked, all that are older than the question go to the listeners
    abandon()               a new era: what is under way is dropped wherever it arrives

**Interrupts.** Ctrl-C may come anywhere. Where it comes in the middle of sending or receiving, a ring may be left in
any condition: `broken` is true then, and nobody can be told anything any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ampnet.errors import TransportError
from ampnet.runtime.answers import Answers
from ampnet.runtime.events import InOrder, events_of
from ampnet.runtime.protocol import Kind
from ampnet.runtime.transport import Endpoint, Note

_NAP = 0.02
"""Seconds to sleep at most."""
_SHOW = 0.25
"""Seconds after which workers are asked for their events, where somebody listens."""


class Post:
    """See the head of this file."""

    def __init__(
        self,
        endpoint: Endpoint,
        workers: int,
        events: InOrder,
        clock: Callable[[], float],
        hear: Callable[[int, Note], None],
        look: Callable[[], None],
    ) -> None:
        """``hear`` gets the notes that are not answered here, ``look`` is called when there are none."""
        self.endpoint, self.workers, self.clock = endpoint, workers, clock
        self._events, self._hear, self._look = events, hear, look
        self.broken = False
        """Whether something is being sent or received, or was when an interrupt came."""
        self.era = self._asked = self._token = 0
        self.answers = Answers()
        """The last ones."""
        self.heard = self._shown = time.monotonic()
        """When something came last that is no answer."""
        self._showing: tuple[int, float, set[int]] | None = None
        """The question for events that was asked last, when, and who has yet to answer it."""

    # -- sending

    def send(self, worker: int, note: Note) -> None:
        """Send a note to a worker, as one of this era."""
        note.data["era"] = self.era
        self.broken = True
        try:
            self.endpoint.send(worker, note)
        except TransportError:
            self.broken = self.endpoint.writing  # a note that cannot be sent is known before it is written
            raise
        self.broken = False

    def everybody(self, kind: Kind, **data: Any) -> None:
        """Send a note to all workers."""
        for worker in range(self.workers):
            self.send(worker, Note(kind, dict(data)))

    # -- receiving

    def turn(self) -> None:
        """Take in what has arrived; if nothing has, look after the workers, and sleep a little."""
        if self._events.listeners and time.monotonic() - self._shown > _SHOW:
            self.show()
        if not self.take_in():
            self._look()
            self._wait()

    def _wait(self) -> None:
        self.broken = self.endpoint.pending() > 0  # else nothing is written while it waits
        self.endpoint.wait(_NAP)
        self.broken = False

    def take_in(self) -> bool:
        """Hand on what has arrived; returns whether anything has."""
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
            else:
                self.heard = time.monotonic()
                self._hear(sender, note)
        return bool(arrived)

    # -- asking

    def ask(self) -> Answers:
        """Ask all workers how they are, and wait for their answers."""
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
        self._showing = None
        self._events.drop()
        self.everybody(Kind.ABANDON)
