"""Children: the processes of a runtime, from the fork to the grave.

    with undisturbed():        # no Ctrl-C between a fork and the note of its number
        pid = fork(work)       # the child calls work() and never comes back from it
    how_it_ended(pid)          # None while it runs; whoever else may have buried it, it is not waited for
    Quiet(pid).look(step, now) # seconds for which it has neither made a step nor used the processor
    end(pids, patience)        # waits a little, kills, and buries all of them

**Stuck or at work.** A process that makes no step may be in one long operation, or in a debugger. It is stuck only if
it uses no processor time either (`Quiet`), if none of its threads is about to run, and if nobody traces it (`waits`).
A process that was stopped, or that sleeps without end, is found; one in an endless loop is not.

Nothing here knows what a child does.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LOOK = 0.1
"""Seconds between two looks at how much processor time a process has used."""
_GAP = 0.5
"""Seconds that count at most between two looks: who did not look (stopped by Ctrl-Z, in a debugger) knows nothing."""


def fork(work: Callable[[], None]) -> int:
    """A new process that calls ``work`` and ends; returns its number. To be called ``undisturbed``."""
    parent, main = os.getpid(), threading.current_thread() is threading.main_thread()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: children have no use for theirs
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _begin(parent, main)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def _begin(parent: int, main: bool) -> None:
    """Ctrl-C is for the parent, which tells its children; SIGTERM ends this one, and so does the parent's death.

    A child looks after its parent by itself, but not while it is stuck. (The signal is sent when the thread that
    forked ends: a process lives as long as its main thread, but perhaps longer than another one.)
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if main:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def undisturbed() -> Iterator[None]:
    """No Ctrl-C in here: it comes when this is over.

    To block the signal in this thread is not enough where there are others (torch has some): one of them takes it, and
    Python lets the main thread handle it all the same. So its handler is another one meanwhile. (In other threads than
    the main one nothing is ever handled.)
    """
    came: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    swap = threading.current_thread() is threading.main_thread() and callable(handler)
    if swap:
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if swap:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def watch(pid: int) -> int:
    """A file descriptor that becomes readable when a process ends; -1 where there is none to be had."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def how_it_ended(pid: int) -> str | None:
    """In words; None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody waits for all children of this process
        return "is gone"
    if not done:
        return None
    if not os.WIFSIGNALED(status):
        return f"ended by itself, with status {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else "of no name"
    hint = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"was killed by signal {number} ({name}){hint}"


class Quiet:
    """For how long a process has neither made a step nor used the processor."""

    def __init__(self, pid: int, now: float) -> None:
        self.pid = pid
        self._step, self._ticks, self._looked, self._seconds = -1, -1, now, 0.0

    def begin(self, step: int, now: float) -> None:
        """It was just seen to be well."""
        self._step, self._looked, self._seconds = step, now, 0.0

    def look(self, step: int, now: float) -> float:
        """Seconds without a step or processor time, up to now. ``step``: how many it has made, as it says itself."""
        gap = now - self._looked
        if step != self._step:
            self.begin(step, now)
        elif gap >= _LOOK:
            ticks = _ticks(self.pid)
            self._seconds = self._seconds + min(gap, _GAP) if ticks == self._ticks else 0.0
            self._ticks, self._looked = ticks, now
        return self._seconds


def waits(pid: int) -> bool:
    """Whether no thread of a process runs or is about to, and no debugger holds it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        states = [_fields(path)[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # it is gone, or its threads come and go: they do something
        return False
    traced = next((line.split()[1] for line in status.splitlines() if line.startswith("TracerPid:")), "0")
    return traced == "0" and "R" not in states


def _ticks(pid: int) -> int:
    """The processor time that all threads of a process have used, in ticks of the system's clock; -1: unknown."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
    except OSError:
        return -1
    return int(fields[11]) + int(fields[12])


def _fields(path: Path) -> list[str]:
    """Of a file ``stat``, those after the name: state, parent, ..."""
    return path.read_text().rsplit(")", 1)[1].split()


def on_debugger(tell: Callable[[], None]) -> None:
    """In a child: call ``tell`` if it runs under a Python debugger (or another trace function), now or later.

    Nobody hears of ``pdb.set_trace`` and ``breakpoint`` but Python's audit hooks.
    """

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in ("builtins.breakpoint", "sys.settrace"):
            tell()

    if sys.gettrace() is not None:
        tell()
    sys.addaudithook(hook)


def end(pids: Sequence[int], parent: int, patience: float = 0.0) -> None:
    """Wait a little for processes to end, kill those that do not, and bury all. Nothing in a copy of the parent."""
    if os.getpid() != parent:
        return
    left = [pid for pid in pids if how_it_ended(pid) is None]
    until = time.monotonic() + patience
    while left and time.monotonic() < until:
        fd = watch(left[0])
        if fd >= 0:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(1e3 * max(0.0, until - time.monotonic()))
            os.close(fd)
        else:
            time.sleep(0.01)
        left = [pid for pid in left if how_it_ended(pid) is None]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
