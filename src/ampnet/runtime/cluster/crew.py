"""Crew of a cluster: watches the workers of one generation. What `ampnet.runtime.crew` is for forked processes.

    keeper thread   [1] every call of `serve` is still open?     its process has died if Ray ends the call
                    [2] every worker answers `beat`?             its machine is gone, cut off or stopped if not
                    [3] does it make steps, or use its processor?   it is stuck if not
                    [4] are all connections there?               it is cut off if not (`ampnet.runtime.cluster.reach`)

[1] is noticed within a fraction of a second if the process is killed, and when Ray gives up a machine. The others are
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
from ampnet.opened import read_some
from ampnet.runtime.cluster.assignment import Beat, Refusal
from ampnet.runtime.cluster.reach import Reach
from ampnet.runtime.cluster.seats import Seat
from ampnet.runtime.crew import ALARM
from ampnet.runtime.transport.tcp import TcpEndpoint
from ampnet.runtime.watch import GAP, Lost

_LOOK = 0.25
"""Seconds between two looks."""
_BEAT = 1.0
"""Seconds between two questions."""


class ClusterCrew:
    """See the head of this file. Offers what `Crew` does."""

    def __init__(
        self,
        ray: Any,
        seats: Sequence[Seat],
        calls: Sequence[Any],
        endpoint: TcpEndpoint,
        stuck_after: float | None,
        silence: float,
    ) -> None:
        """``calls``: the open call of `serve` of each seat. ``endpoint``: the controller's."""
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
        self._beats = [(Beat(-1, -1, "", ()), now)] * len(seats)
        """By worker: what it did when it last did something else than before, and when it was asked that."""
        self._reach, self._endpoint = Reach(len(seats)), endpoint
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

    def read(self, source: Iterator[Instance], most: int, into: list[Instance]) -> None:
        """Append the next items of an iterator, which may block, to a list (see `ampnet.opened.Read`); a lost worker
        interrupts it, in the main thread."""
        self.reading = threading.current_thread() is threading.main_thread()
        try:
            read_some(source, most, into)
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
            if now - asked >= _BEAT and self._ray.wait([question], timeout=0)[0]:
                del self._asked[worker]
                lost = self._beat(worker, self._ray.get(question), now, gap)
                if lost is not None:
                    return lost
            elif gap:
                self._asked[worker] = (question, now)
            elif now - asked > self._silence:  # [2]
                return Lost(worker, f"on machine {seat.machine} has not answered for {self._silence:g} s")
        return self._cut_off(now, gap)

    def _beat(self, worker: int, beat: Beat, now: float, gap: bool) -> Lost | None:
        before, since = self._beats[worker]
        if beat.steps == before.steps:
            self._reach.busy(worker, now)
        else:
            self._reach.looked(worker, beat.unconnected, now)
        if gap or (beat.steps, beat.ticks) != (before.steps, before.ticks):
            self._beats[worker] = (beat, now)
        elif self._stuck_after is not None and now - since > self._stuck_after:  # [3]
            where = f", in node '{beat.node}'" if beat.node else ""
            machine = self.seats[worker].machine
            return Lost(worker, f"on machine {machine} has made no step for {self._stuck_after:g} s{where}")
        return None

    def _cut_off(self, now: float, gap: bool) -> Lost | None:
        """Returns a worker that others cannot reach [4]."""
        tended, controller = self._endpoint.tended, len(self.seats)
        if gap or now - tended > _BEAT:  # it waits for the loader, or there is no run
            self._reach.busy(controller, now)
        else:
            self._reach.looked(controller, self._endpoint.unconnected(), now)
        found = self._reach.lost(now, self._silence)
        if found is None:
            return None
        worker, other = found
        name = "the controller" if other == controller else f"'worker{other}' on machine {self.seats[other].machine}"
        machine = self.seats[worker].machine
        return Lost(worker, f"on machine {machine} has had no connection to {name} for {self._silence:g} s")

    def _how(self, worker: int) -> str:
        """Returns how a worker ended, as text."""
        seat = self.seats[worker]
        try:
            found = self._ray.get(self._calls[worker])
        except self._ray.exceptions.RayError as error:
            text, why = str(error).lower(), f"died (process {seat.pid})"
            if "node has died" in text:
                why = "left the cluster with its machine"
            elif "low on memory" in text:
                why = "was ended by Ray: its machine is low on memory"
            return f"on machine {seat.machine} {why}"
        if isinstance(found, Refusal):
            return f"on machine {seat.machine} failed: {found.kind}: {found.text}"
        return f"on machine {seat.machine} ended by itself"
