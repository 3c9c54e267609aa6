"""Ctrl-C in a `fit` with checkpoints: the first lets the instances in flight complete and writes a checkpoint; the
second interrupts as usual."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_ctrl_c(call: Callable[[], None]) -> Iterator[None]:
    """A context in which the first Ctrl-C calls a function; `KeyboardInterrupt` is raised at its end.

    Ctrl-C is left alone in other threads than the main one, and where the caller handles it.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    asked = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        call()

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked:
        raise KeyboardInterrupt
