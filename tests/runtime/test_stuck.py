"""A worker is stuck if it makes no step and uses no processor time; honest work and debuggers are left alone.

    looks           |    |    |    |    |    |    |    |
    steps           1    1    1    1    1    2    2    2
    processor time  3    3    3    4    4         6    6        in ticks; not looked at where a step was made
    quiet           0    1    2    0    1    0    0    1        in looks

What only computes, or only makes steps, is at work.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ampnet.errors import WorkerDied
from ampnet.runtime import children
from ampnet.runtime.children import Quiet, fork, undisturbed, waits
from tests.runtime.test_failures import line, points, trap, two

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def test_what_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeline at the head of this file."""
    used = iter([3, 3, 3, 4, 4, 6, 6])
    monkeypatch.setattr(children, "_ticks", lambda pid: next(used))
    quiet, found = Quiet(1, 0.0), []
    quiet.begin(1, 0.0)
    for i, step in enumerate([1, 1, 1, 1, 1, 2, 2, 2], start=1):
        found.append(quiet.look(step, 0.125 * i))
    assert found == [0, 0.125, 0.25, 0, 0.125, 0, 0, 0.125]


def test_time_in_which_nobody_looked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and fg, an hour has passed for the controller and no moment for the workers."""
    monkeypatch.setattr(children, "_ticks", lambda pid: 7)
    quiet = Quiet(1, 0.0)
    quiet.begin(1, 0.0)
    assert quiet.look(1, 0.2) == 0
    assert quiet.look(1, 3600.0) < 1


def busy(seconds: float) -> Callable[[], object]:
    """One long operation in Python."""

    def act() -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    return act


def multiply(seconds: float) -> Callable[[], object]:
    """Long operations of torch."""

    def act() -> None:
        until, x = time.process_time() + seconds, torch.rand(500, 500)
        while time.process_time() < until:
            torch.mm(x, x)

    return act


@pytest.mark.parametrize("work", [busy(2.0), multiply(2.0)])
def test_a_node_that_computes_for_long_is_not_stuck(work: Callable[[], object]) -> None:
    """Once, one operation that took longer than stuck_after ended the whole run."""
    with two(line(trap(2, work)), stuck_after=0.3) as runtime:
        assert runtime.train(points(1, 2, 3)).instances == 3
        assert not runtime.held()


def asleep() -> None:
    while True:
        signal.pause()


@pytest.mark.parametrize("act", [asleep, lambda: os.kill(os.getpid(), signal.SIGSTOP)])
@pytest.mark.parametrize("after", [0.3, 1.0])
def test_a_node_that_sleeps_for_ever_or_was_stopped_is_named(act: Callable[[], object], after: float) -> None:
    with (
        two(line(trap(2, act)), stuck_after=after) as runtime,
        pytest.raises(WorkerDied, match=f"worker1' has made no step for {after:g} s in node 'odd'.*no processor time"),
    ):
        runtime.train(points(1, 2, 3))


def test_work_before_the_sleep_does_not_put_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted are seconds since processor time was last used: named after stuck_after, not after twice that."""
    looks: list[float] = []
    look = Quiet.look

    def looked(quiet: Quiet, step: int, now: float) -> float:
        looks.append(look(quiet, step, now))
        return looks[-1]

    monkeypatch.setattr(Quiet, "look", looked)
    with (
        two(line(trap(2, lambda: (busy(0.5)(), asleep()))), stuck_after=0.6) as runtime,
        pytest.raises(WorkerDied, match="no step for 0.6 s"),
    ):
        runtime.train(points(1, 2, 3))
    assert 0.6 < max(looks) <= 0.6 + children._GAP


def held_up(seconds: float) -> Callable[[], object]:
    """A node at a breakpoint: Python's debugger sets a trace function, and waits for somebody to type something."""

    def act() -> None:
        sys.settrace(lambda *_: None)
        time.sleep(seconds)
        sys.settrace(None)

    return act


def test_a_worker_in_a_python_debugger_is_not_stuck() -> None:
    """Once, whoever stepped through a node had four seconds for it."""
    with two(line(trap(2, held_up(1.5))), stuck_after=0.3) as runtime:
        assert runtime.train(points(1, 2, 3)).instances == 3


def test_a_breakpoint_is_told() -> None:
    out, into = os.pipe()

    def work() -> None:
        sys.breakpointhook = lambda *args, **kwargs: None
        children.on_debugger(lambda: os.write(into, b"told") and None)
        os.write(into, b"quiet ")
        breakpoint()

    with undisturbed():
        pid = fork(work)
    os.close(into)
    with os.fdopen(out, "rb") as lines:
        assert lines.read() == b"quiet told"
    os.waitpid(pid, 0)


def child(work: Callable[[], Any], until: str) -> int:
    """A process that is in this state."""
    with undisturbed():
        pid = fork(work)
    while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != until:
        time.sleep(0.01)
    return pid


def test_who_waits() -> None:
    sleeping = child(asleep, "S")
    running = child(busy(1000.0), "R")
    stopped = child(lambda: os.kill(os.getpid(), signal.SIGSTOP), "T")
    try:
        assert waits(sleeping)
        assert waits(stopped)
        assert not waits(running)
    finally:
        children.end([sleeping, running, stopped], os.getpid())
    assert not waits(sleeping)


def test_who_is_traced_does_not_wait() -> None:
    """A process that gdb or strace holds does nothing, and nothing is wrong with it."""

    def work() -> None:
        if ctypes.CDLL(None).ptrace(0, 0, 0, 0):  # PTRACE_TRACEME: the parent is the debugger
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSTOP)

    with undisturbed():
        pid = fork(work)
    try:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFEXITED(status):
            pytest.skip("nobody may trace anybody here")
        assert not waits(pid)
    finally:
        children.end([pid], os.getpid())
