"""Ctrl-C, SIGTERM and SIGHUP: how a command ends when it is asked to.

    start   imports, data, compilation             training                     results are written
    ────────────────────────────────────>──────────────────────────────────>─────────────────────────>
    leaving()                              Stopping()
    one line, exit code; temporary         1st: `asked`; instances in flight complete, model, JSON and log are written
    files are removed                      2nd: `Interrupted` is raised, all workers end, temporary files are removed

    signal          SIGINT (Ctrl-C)  SIGTERM  SIGHUP (the terminal is closed)
    exit code       130              143      129

A signal that this process ignores (a background job, nohup) stays ignored. Handlers are set in the main thread only.
Most commands have nothing to unwind, so they `leave` at once: an exception in the middle of an import or a callback
would be a traceback, or be lost. Those that have (downloads, benchmarks) get `Interrupted` instead.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from ampnet.checkpoint.output import discard_all

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Handler = Callable[[int, FrameType | None], None]


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end of the process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def code_of(number: int) -> int:
    """Returns the exit code of a process that a signal has ended."""
    return 128 + number


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """A context with this handler for the signals that are not ignored."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


def leave(number: int, frame: FrameType | None = None) -> None:
    """End the process at once, with one line. Its worker processes end with it."""
    discard_all()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    with suppress(OSError):
        os.write(2, b"ampnet: interrupted\n")
    os._exit(code_of(number))


def unwind(number: int, frame: FrameType | None = None) -> None:
    """Raise `Interrupted`; another signal ends the process at once."""
    for other in SIGNALS:
        if signal.getsignal(other) is not signal.SIG_IGN:
            signal.signal(other, leave)
    raise Interrupted(number)


class Stopping:
    """A context in which the first signal sets ``asked``, and the second raises `Interrupted`."""

    def __init__(self) -> None:
        self.asked = False
        self.code = code_of(signal.SIGINT)
        """The exit code after the signal."""
        self._context = handling(self._hear)
        self._terminal: list[int] = []

    def __enter__(self) -> Stopping:
        self._terminal = [number for number in (1, 2) if os.isatty(number)]
        self._context.__enter__()
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise Interrupted(number)
        self.asked, self.code = True, code_of(number)
        if number == signal.SIGHUP:  # the terminal is gone: what is still printed must not fail
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in self._terminal:
                os.dup2(nowhere, stream)
            os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        self._context.__exit__(None, None, None)
