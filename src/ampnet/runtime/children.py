"""Children: single child processes: fork, exit status, termination.

    with undisturbed():        # no Ctrl-C between a fork and the note of its number
        pid = fork(work)       # the child calls work() and never returns from it
    how_it_ended(pid)          # None while it runs; does not fail if another waitpid() has reaped it
    end(pids, parent, patience)# waits a little, kills, and waits for all of them

The kernel kills a child when the **thread** that forked it ends (PR_SET_PDEATHSIG), whatever the child is doing. A
process whose children must live as long as itself forks them in a thread that lives as long: see
`ampnet.runtime.crew`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

_PR_SET_PDEATHSIG = 1
_NAP = 0.005
"""Polling interval in seconds, while processes are about to end."""


def fork(work: Callable[[], None]) -> int:
    """Fork a process that calls ``work`` and ends; returns its pid. Must be called inside `undisturbed`."""
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the children do not use
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _begin(parent)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(status)


def _begin(parent: int) -> None:
    """Set up a child: ignores Ctrl-C and a closed terminal (the parent handles them), and ends on SIGTERM or when the
    parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A context that defers Ctrl-C until its end.

    Blocking the signal in this thread is not enough if there are others (torch has some): another thread receives it,
    and Python still runs the handler in the main thread. So the handler is replaced for that time. (Threads other than
    the main one never run handlers.)
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


def how_it_ended(pid: int) -> str | None:
    """Returns a text that says how a child ended; None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # another part of this process has reaped it
        return "is gone"
    if not done:
        return None
    if not os.WIFSIGNALED(status):
        return f"ended by itself, with status {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name if number in set(signal.Signals) else "of no name"
    hint = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
    return f"was killed by signal {number} ({name}){hint}"


def on_debugger(tell: Callable[[], None]) -> None:
    """In a child: call ``tell`` if it runs under a Python debugger (or another trace function), now or later.

    Only Python's audit hooks report ``pdb.set_trace`` and ``breakpoint``.
    """

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event in ("builtins.breakpoint", "sys.settrace"):
            tell()

    if sys.gettrace() is not None:
        tell()
    sys.addaudithook(hook)


def end(pids: Sequence[int], parent: int, patience: float = 0.0) -> None:
    """Wait up to ``patience`` seconds for processes to end, kill the others, and wait for those. Does nothing in a
    process forked from the ``parent``."""
    if os.getpid() != parent:
        return
    left = [pid for pid in pids if how_it_ended(pid) is None]
    until = time.monotonic() + patience
    while left and time.monotonic() < until:
        time.sleep(_NAP)
        left = [pid for pid in left if how_it_ended(pid) is None]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in left:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
