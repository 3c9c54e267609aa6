"""Crew: the worker processes of a runtime, started together and ended together.

    maker's process                                       worker processes
      main thread     pumps, receives, calls the loader     0   1   2  ...
      keeper thread   [1] forks ───────────────────────────>│   │   │
                      [2] watches them <────pulse───────────┘   │   │       a row of shared memory for each
                      [3] interrupts the loader if one is lost

[1] The kernel kills a child when the thread that forked it ends. The keeper lives as long as the crew, so workers end
with their maker whatever they are doing, whichever thread made the runtime, and however it is killed.
[2] See `ampnet.runtime.watch`. The main thread also checks them when it is idle.
[3] A loader may block for ever. If a worker is lost during its call, the keeper sends the main thread a signal, whose
handler raises. (Other threads run no Python handlers: there, a lost worker is noticed when the loader returns.)

A process forked from the maker has a copy of these objects; in it they do nothing to the workers.
"""

from __future__ import annotations

import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType

import numpy as np

from ampnet.instance import Instance
from ampnet.opened import read_some
from ampnet.runtime import children
from ampnet.runtime.watch import LOOK, PULSE, Lost, Watch
from ampnet.state import Ints

ALARM = signal.SIGURG
"""Ignored by default, so a late signal has no effect."""

Work = Callable[[int, Ints], None]
"""The main function of worker i; it gets the worker's row of the pulse."""


def most() -> int:
    """Returns the maximal number of workers, or of threads per worker."""
    return max(1024, 4 * (os.cpu_count() or 1))


def check_count(name: str, value: object) -> None:
    """Raise a ValueError unless ``value`` is a valid number of processes or threads."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most():
        raise ValueError(f"{name} must be a whole number from 1 to {most()} (on this machine), got {value!r}")


@contextmanager
def alarmed(alarm: Callable[[], None]) -> Iterator[None]:
    """A context in which ``alarm`` is called in the main thread if a worker is lost during `Crew.read`. [3]"""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        alarm()

    before = signal.signal(ALARM, handle)
    try:
        yield
    finally:
        signal.signal(ALARM, before)


class Crew:
    """See the head of this file."""

    def __init__(self, workers: int, work: Work, nodes: Sequence[Sequence[str]], stuck_after: float | None) -> None:
        """Fork ``workers`` processes that call ``work``. ``nodes``, ``stuck_after``: as in `Watch`."""
        self.maker = os.getpid()
        self.pids: list[int] = []
        self._memory = mmap.mmap(-1, mmap.PAGESIZE * (1 + workers * 8 * PULSE // mmap.PAGESIZE))
        self._pulse: Ints = np.frombuffer(self._memory, dtype=np.int64, count=PULSE * workers).reshape(workers, PULSE)
        self._errors: list[BaseException] = []
        self._made, self._over = threading.Event(), threading.Event()
        self.reading = False
        """Whether the main thread is in `read`."""
        self._tasks = [partial(work, number, self._pulse[number]) for number in range(workers)]
        try:
            with children.undisturbed():
                args = (nodes, stuck_after)
                self._keeper = threading.Thread(target=self._keep, args=args, daemon=True, name="keeper")
                self._keeper.start()
                self._made.wait()
            if self._errors:
                raise self._errors[0]
        except BaseException:  # also a deferred Ctrl-C
            self.end()
            raise

    def _keep(self, nodes: Sequence[Sequence[str]], stuck_after: float | None) -> None:
        try:
            while self._tasks:  # [1]
                self.pids.append(children.fork(self._tasks.pop(0)))
        except BaseException as error:
            self._errors.append(error)
            self._tasks.clear()
        self.watch = Watch(self.pids, self._pulse, nodes, stuck_after, time.monotonic())
        self._made.set()
        main = threading.main_thread().ident or 0
        while not self._over.wait(LOOK):  # [2]
            if self.watch.look(time.monotonic()) is not None and self.reading:
                signal.pthread_kill(main, ALARM)  # [3]

    @property
    def mine(self) -> bool:
        """Whether this is the process that made the workers."""
        return os.getpid() == self.maker

    @property
    def lost(self) -> Lost | None:
        """The first worker that is known to be lost."""
        return self.watch.lost

    def look(self) -> Lost | None:
        """Check the workers; returns one that is lost, or None."""
        return self.watch.look(time.monotonic())

    def read(self, source: Iterator[Instance], most: int, into: list[Instance]) -> None:
        """Append the next items of an iterator, which may block, to a list (see `ampnet.opened.Read`). [3]"""
        self.reading = threading.current_thread() is threading.main_thread()
        try:
            read_some(source, most, into)
        finally:
            self.reading = False

    def end(self, patience: float = 0.0) -> None:
        """End the workers: wait up to ``patience`` seconds, then kill them. May be called again."""
        if self.mine:
            children.end(self.pids, self.maker, patience)
            self._over.set()
            if threading.current_thread() is not self._keeper:
                self._keeper.join()
