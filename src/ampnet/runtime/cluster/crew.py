"""Crew of a cluster: watches the workers of one generation. What `ampnet.runtime.crew` is for forked processes.

    keeper thread   [1] every call of `serve` is still open?     its process has died if Ray ends the call
                    [2] every worker answers `beat`?             its machine is gone, cut off or stopped if not
                    [3] does it make steps, or use its processor?   it is stuck if not

[1] is noticed within a fraction of a second if the process is killed, and when Ray gives up a machine. [2] and [3] are
checked once a second. A connection that breaks for less than ``silence`` seconds is no loss: frames are sent again.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ampnet.instance import Instance
from ampnet.runtime.cluster.assignment import Refusal
from ampnet.runtime.cluster.seats import Seat
from ampnet.runtime.crew import ALARM
from ampnet.runtime.watch import GAP, Lost

_LOOK = 0.25
"""Seconds between two looks."""
_BEAT = 1.0
"""Seconds between two questions."""


class ClusterCrew:
    """See the head of this file. Offers what `Crew` does."""

    def __init__(
        self, ray: Any, seats: Sequence[Seat], calls: Sequence[Any], stuck_after: float | None, silence: float
    ) -> None:
        """``calls``: the open call of `serve` of each seat."""
        self.maker = os.getpid()
        self.seats, self.pids = seats, [seat.pid for seat in seats]
        self._ray, self._calls = ray, list(calls)
        self._stuck_after, self._silence = stuck_after, silence
        self.lost: Lost | None = None
        """The first lost worker, if any."""
        self.reading = False
        """Whether the main thread is in `read`."""
        now = time.monotonic()
        self._asked: dict[int, tuple[Any, float]] = {}
        """By worker: the question that it has not answered, and its time."""
        self._steps = [(-1, -1, now)] * len(seats)
        """By worker: its steps and processor time, and since when they have not changed."""
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True, name="keeper")
        self._keeper.start()

    @property
    def mine(self) -> bool:
        """Whether this is the process that made the workers."""
        return os.getpid() == self.maker

    def look(self) -> Lost | None:
        """Returns a worker that is lost, or None."""
        return self.lost

    def read(self, source: Iterator[Instance]) -> Instance:
        """Returns the next item of an iterator that may block; a lost worker interrupts it, in the main thread."""
        self.reading = threading.current_thread() is threading.main_thread()
        try:
            return next(source)
        finally:
            self.reading = False

    def end(self, patience: float = 0.0) -> None:
        """Stop watching. The processes stay."""
        self._over.set()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()
        self._asked = {}

    def ended(self, worker: int, patience: float) -> bool:
        """Wait for the end of a worker's loop. Returns whether it ended well, so that its process can be kept."""
        try:
            return self._ray.get(self._calls[worker], timeout=patience) is None
        except Exception:  # of Ray: dead, or not in time
            return False

    def forget(self) -> None:
        """Drop the calls: they must not outlive the connection to Ray."""
        self._calls = []

    # -- the keeper

    def _keep(self) -> None:
        main, looked = threading.main_thread().ident or 0, time.monotonic()
        while not self._over.is_set():
            try:
                lost = self._look(looked)
            except Exception as error:  # Ray itself is gone
                lost = Lost(0, f"cannot be watched any more: {type(error).__name__}: {error}")
            looked = time.monotonic()
            if lost is not None and not self._over.is_set():
                self.lost = lost
                while not self._over.wait(_LOOK):
                    if self.reading:
                        signal.pthread_kill(main, ALARM)

    def _look(self, before: float) -> Lost | None:
        done, _ = self._ray.wait(self._calls, timeout=_LOOK)  # [1]
        if self._over.is_set():
            return None
        if done:
            worker = self._calls.index(done[0])
            return Lost(worker, self._how(worker))
        now = time.monotonic()
        gap = now - before > GAP + _LOOK  # this process was stopped, or the machine asleep
        for worker, seat in enumerate(self.seats):
            if worker not in self._asked:
                self._asked[worker] = (seat.actor.beat.remote(), now)
            question, asked = self._asked[worker]
            if self._ray.wait([question], timeout=0)[0]:
                self._beat(worker, question, now, gap)
                if now - asked >= _BEAT:
                    del self._asked[worker]
            elif gap:
                self._asked[worker] = (question, now)
            elif now - asked > self._silence:  # [2]
                return Lost(worker, f"on machine {seat.machine} has not answered for {self._silence:g} s")
            _, _, since = self._steps[worker]
            if self._stuck_after is not None and now - since > self._stuck_after and not gap:  # [3]
                return Lost(worker, f"on machine {seat.machine} has made no step for {self._stuck_after:g} s{self._at}")
        return None

    _at = ""

    def _beat(self, worker: int, question: Any, now: float, gap: bool) -> None:
        steps, ticks, node = self._ray.get(question)
        if gap or (steps, ticks) != self._steps[worker][:2]:
            self._steps[worker] = (steps, ticks, now)
        elif node:
            self._at = f", in node '{node}'"

    def _how(self, worker: int) -> str:
        """Returns how a worker ended, as text."""
        seat = self.seats[worker]
        try:
            found = self._ray.get(self._calls[worker])
        except self._ray.exceptions.RayActorError as error:
            machine_gone = "node" in str(error).lower() and "node has died" in str(error).lower()
            why = "left the cluster with its machine" if machine_gone else f"died (process {seat.pid})"
            return f"on machine {seat.machine} {why}"
        if isinstance(found, Refusal):
            return f"on machine {seat.machine} failed: {found.kind}: {found.text}"
        return f"on machine {seat.machine} ended by itself"
