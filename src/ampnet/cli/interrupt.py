"""Ctrl-C as a request to stop: the first sets a flag, the second interrupts as usual."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class CtrlC:
    """A context in which the first Ctrl-C sets ``asked``, and the second interrupts as usual.

    A process that ignores Ctrl-C (a background job of a script) continues to ignore it.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> CtrlC:
        # Only the main thread may set handlers; in other threads Ctrl-C is left to the caller.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
            if self._before is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, self._hear)
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
