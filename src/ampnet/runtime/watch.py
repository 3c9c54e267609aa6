"""Watch: is a worker dead, stopped or stuck?

    dead       the process has ended
    quiet      it makes no step, uses no processor time, and none of its threads is runnable (or waits for a disk):
               after `stuck_after` seconds of that it counts as **stopped** (SIGSTOP) or **stuck**

An idle worker wakes up at intervals and makes a step, so one that is stopped while idle is detected as well. A worker
in a long operation uses the processor; one in an endless loop does too, and is not detected. A worker under a debugger
never counts as stuck.

**Gaps between looks do not count.** Seconds count only between looks in close succession. After a gap (this process was
stopped as well, the laptop was asleep, the machine is very busy) counting starts again:

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
"""Seconds between two looks from which the interval counts as a gap."""
BEAT, IDLE, NODE, DEBUGGED = range(4)
"""The words of a worker's row of the pulse: its number of steps, whether it is idle, its current node, whether it runs
under a debugger."""
PULSE = 8
"""The number of words in a row."""


class Lost(NamedTuple):
    """A worker that is dead, stopped or stuck."""

    worker: int
    how: str


class Watch:
    """Watches the workers. Any thread may call `look`."""

    def __init__(
        self,
        pids: Sequence[int],
        pulse: Ints,
        nodes: Sequence[Sequence[str]],
        stuck_after: float | None,
        now: float,
    ) -> None:
        """``nodes``: for each worker, the names of its nodes by their numbers in the pulse."""
        self._pids, self._pulse, self._nodes, self._stuck_after = pids, pulse, nodes, stuck_after
        self._quiet = [Quiet(pid, now) for pid in pids]
        self._lock = threading.Lock()
        self.lost: Lost | None = None
        """The first lost worker, if any."""

    def look(self, now: float) -> Lost | None:
        """Check all workers. Returns the first that was ever lost, or None."""
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
            else ", and has used no processor time: it waits for something that does not happen. If nodes may wait "
            "that long, for a network for example, give a larger stuck_after, or None"
        )
        return Lost(number, f"has made no step for {self._stuck_after:g} s{where}{why}")


class Quiet:
    """Measures how long a process has made no step, used no processor time, and had no runnable thread."""

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self.stopped = False
        """Whether it was stopped at the last look."""
        self._step, self._ticks, self._looked, self._seconds = -1, -1, now, 0.0

    def begin(self, step: int, now: float) -> None:
        """Restart the measurement: the process has just made progress."""
        self._step, self._looked, self._seconds = step, now, 0.0

    def look(self, step: int, now: float) -> float:
        """Returns the seconds up to now. ``step``: the number of steps that the process reports."""
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
    """Returns the processor time of all threads of a process, in clock ticks; -1: unknown."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        return int(fields[11]) + int(fields[12])
    except (OSError, IndexError):
        return -1


def states_of(pid: int) -> str:
    """Returns the state of each thread of a process: R running or runnable, S sleeping, D waiting for a disk, T
    stopped. Empty if a debugger holds the process, if it is gone, or if its threads come and go."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        states = "".join(_fields(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    except (OSError, IndexError):
        return ""
    traced = next((line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")), "0")
    return states if traced == "0" else ""


def _fields(path: Path) -> list[str]:
    """Returns the fields of a ``stat`` file after the name: state, parent, ..."""
    return path.read_text().rsplit(")", 1)[1].split()
