"""Watch: is a worker dead, stopped or stuck?

    dead       the process has ended
    quiet      it makes no step, uses no processor time, and no thread of it is about to run (or waits for a disk):
               after `stuck_after` seconds of that it is taken for **stopped** (SIGSTOP) or **stuck**

A worker that is idle wakes up now and then and makes a step, so one that is stopped while it is idle is found as well.
One in a long operation uses the processor; one in an endless loop does too, and is not found. Nobody is taken for stuck
who runs under a debugger.

**Who did not look knows nothing.** Seconds count only where looks follow one another closely. After a gap (this process
was stopped as well, the laptop was asleep, the machine is very busy) counting begins anew:

    looks           |  |  |  |  |  |  |                    |  |  |  |
    steps           1  1  1  1  1  2  2                    2  2  2  2
    processor time  3  3  4  4  4     6                    6  6  6  6
    quiet           0  1  0  1  2  0  0                    0  1  2  3       in looks
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ampnet.runtime import children
from ampnet.state import Ints

LOOK = 0.1
"""Seconds between two looks at the processor time of a process."""
GAP = 1.0
"""Seconds between two looks from which on it is not known what happened in between."""
BEAT, IDLE, NODE, DEBUGGED = range(4)
"""What a worker notes of itself in its row of the pulse: steps, whether it has nothing to do, the node it is in,
whether it runs under a debugger."""
PULSE = 8
"""Words of a row."""


class Lost(NamedTuple):
    """A worker that is not there any more, or might as well not be."""

    worker: int
    how: str


class Watch:
    """Looks after the workers. Any thread may look."""

    def __init__(
        self,
        pids: Sequence[int],
        pulse: Ints,
        nodes: Sequence[Sequence[str]],
        stuck_after: float | None,
        now: float,
    ) -> None:
        """``nodes``: of each worker, the names of its nodes by their numbers in the pulse."""
        self._pids, self._pulse, self._nodes, self._stuck_after = pids, pulse, nodes, stuck_after
        self._quiet = [Quiet(pid, now) for pid in pids]
        self._lock = threading.Lock()
        self.lost: Lost | None = None
        """The first that was found to be lost."""

    def look(self, now: float) -> Lost | None:
        """Look at all workers. Returns the first that was ever found to be lost."""
        with self._lock:
            if self.lost is None:
                found = (self._look_at(number, now) for number in range(len(self._pids)))
                self.lost = next((lost for lost in found if lost is not None), None)
            return self.lost

    def _look_at(self, number: int, now: float) -> Lost | None:
        how = children.how_it_ended(self._pids[number])
        if how is not None:
            return Lost(number, how)
        if self._stuck_after is None:
            return None
        row, quiet = self._pulse[number], self._quiet[number]
        if row[DEBUGGED]:
            quiet.begin(int(row[BEAT]), now)
        if quiet.look(int(row[BEAT]), now) < self._stuck_after:
            return None
        at, names = int(row[NODE]), self._nodes[number]
        where = f" in node '{names[at]}'" if not row[IDLE] and 0 <= at < len(names) else ""
        why = (
            ": it was stopped (SIGSTOP)"
            if quiet.stopped
            else ", and has used no processor time: it waits for what does not come. Where nodes may wait that long, "
            "for a network say, give a larger stuck_after, or None"
        )
        return Lost(number, f"has made no step for {self._stuck_after:g} s{where}{why}")


class Quiet:
    """For how many seconds a process has neither made a step, nor used the processor, nor been about to."""

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self.stopped = False
        """Whether it was stopped when it was looked at last."""
        self._step, self._ticks, self._looked, self._seconds = -1, -1, now, 0.0

    def begin(self, step: int, now: float) -> None:
        """It was just seen to be well."""
        self._step, self._looked, self._seconds = step, now, 0.0

    def look(self, step: int, now: float) -> float:
        """The seconds, up to now. ``step``: how many steps it has made, as it says itself."""
        gap = now - self._looked
        if step != self._step or gap > GAP:
            self.begin(step, now)
        elif gap >= LOOK:
            ticks, states = ticks_of(self.pid), states_of(self.pid)
            self.stopped = "T" in states
            if ticks != self._ticks or not states or "R" in states or "D" in states:
                self.begin(step, now)
            else:
                self._seconds, self._looked = self._seconds + gap, now
            self._ticks = ticks
        return self._seconds


def ticks_of(pid: int) -> int:
    """The processor time that all threads of a process have used, in ticks of the system's clock; -1: unknown."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError):
        return -1


def states_of(pid: int) -> str:
    """The state of each thread of a process: R runs or is about to, S sleeps, D waits for a disk, T is stopped. Empty
    where a debugger holds it, where it is gone, or where its threads come and go."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        states = "".join(_fields(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    except (OSError, IndexError):
        return ""
    traced = next((line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")), "0")
    return states if traced == "0" else ""


def _fields(path: Path) -> list[str]:
    """Of a file ``stat``, the fields after the name: state, parent, ..."""
    return path.read_text().rsplit(")", 1)[1].split()
