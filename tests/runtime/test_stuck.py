"""A worker is stuck if it makes no step and uses no processor time; honest work and debuggers are left alone.

    looks           |    |    |    |    |    |    |    |
    steps           1    1    1    1    1    2    2    2
    processor time  3    3    3    4    4         6    6        in ticks; not looked at where a step was made
    quiet           0    1    2    0    1    0    0    1        in looks

What only computes, or only makes steps, is at work.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from ampnet.errors import WorkerDied
from ampnet.runtime import children, watch
from ampnet.runtime.answers import Answers
from ampnet.runtime.children import fork, undisturbed
from ampnet.runtime.watch import Quiet, states_of
from tests.runtime.test_failures import line, points, trap, two

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def looked_at(monkeypatch: pytest.MonkeyPatch, ticks: list[int], states: str | list[str] = "S") -> Quiet:
    """A process of which nothing is seen but this."""
    used, seen = iter(ticks), itertools.repeat(states) if isinstance(states, str) else iter(states)
    monkeypatch.setattr(watch, "ticks_of", lambda pid: next(used))
    monkeypatch.setattr(watch, "states_of", lambda pid: next(seen))
    quiet = Quiet(1, 0.0)
    quiet.begin(1, 0.0)
    return quiet


def test_what_counts_as_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timeline at the head of this file."""
    quiet, found = looked_at(monkeypatch, [3, 3, 3, 4, 4, 6, 6]), []
    for i, step in enumerate([1, 1, 1, 1, 1, 2, 2, 2], start=1):
        found.append(quiet.look(step, 0.125 * i))
    assert found == [0, 0.125, 0.25, 0, 0.125, 0, 0, 0.125]


def test_time_in_which_nobody_looked_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and fg, or when the lid was closed, an hour has passed for nobody."""
    quiet = looked_at(monkeypatch, [7] * 9)
    assert [quiet.look(1, at) for at in (0.25, 0.5, 1.0)] == [0, 0.25, 0.75]
    assert quiet.look(1, 3600.0) == 0
    assert quiet.look(1, 3600.5) == 0.5


def test_who_is_about_to_run_is_not_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a worker waits for a core, or for the disk, and uses no time. Once, only the last look counted:
    whoever happened to sleep then was taken for stuck."""
    quiet = looked_at(
        monkeypatch,
        [7] * 9,
        [
            "S",
            "S",
            "SR",
            "S",
            "DS",
            "S",
            "T",
            "T",
            "",
        ],
    )
    assert [quiet.look(1, 0.5 * i) for i in range(1, 10)] == [0, 0.5, 0, 0.5, 0, 0.5, 1.0, 1.5, 0]


def test_what_is_a_stall() -> None:
    def workers(*counts: tuple[int, int, int]) -> Answers:
        names = ("steps", "sent", "received")
        return Answers({i: dict(zip(names, some, strict=True)) for i, some in enumerate(counts)})

    still = workers((5, 3, 2), (7, 2, 3))
    assert still.same_as(still)
    assert not still.same_as(Answers())  # nobody was asked before
    assert not still.same_as(workers((4, 3, 2), (7, 2, 3)))
    lost = workers((5, 4, 2), (7, 2, 3))
    assert not lost.same_as(lost)  # something is on its way


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


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("act", "why"),
    [(asleep, "has used no processor time"), (stopped, "it was stopped")],
    ids=["asleep", "stopped"],
)
@pytest.mark.parametrize("after", [0.3, 1.0])
def test_a_node_that_sleeps_for_ever_or_was_stopped_is_named(act: Callable[[], None], why: str, after: float) -> None:
    with (
        two(line(trap(2, act)), stuck_after=after) as runtime,
        pytest.raises(WorkerDied, match=f"worker1' has made no step for {after:g} s in node 'odd'.*{why}"),
    ):
        runtime.train(points(1, 2, 3))


@pytest.mark.parametrize("when", ["busy", "idle", "asleep"])
def test_a_worker_in_trouble_is_named_within_5_seconds(when: str) -> None:
    """With the settings nobody changes. Once, it took 6 seconds, and an idle one that was stopped was never found."""
    act = {"busy": stopped, "asleep": asleep, "idle": lambda: None}[when]
    with two(line(trap(20, act))) as runtime:
        runtime.train(points(1, 2))
        if when == "idle":
            os.kill(runtime.pids[1], signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(WorkerDied, match="worker1' has made no step for 3 s"):
            runtime.train(points(*range(100)))
        assert time.monotonic() - began < 5


def test_a_worker_that_was_stopped_for_a_moment_goes_on() -> None:
    with two(line(), stuck_after=1.0) as runtime:
        runtime.train(points(1, 2))
        os.kill(runtime.pids[1], signal.SIGSTOP)
        timer = threading.Timer(0.5, os.kill, (runtime.pids[1], signal.SIGCONT))
        timer.start()
        assert runtime.train(points(*range(20))).instances == 20
        timer.join()


def test_a_group_of_processes_that_is_suspended_goes_on() -> None:
    """Ctrl-Z, and the lid of a laptop. All are stopped, in any order, for longer than one may be quiet; all go on."""
    script = textwrap.dedent(
        """
        import itertools
        from tests.runtime.test_failures import line, points, two
        with two(line(), stuck_after=1.0) as runtime:
            def tell(progress):
                print(*runtime.pids, flush=True)
                return
            rounds = itertools.count()
            def endless():
                while next(rounds) < 150:
                    import time; time.sleep(0.02)
                    yield from points(1, 2)
            stats = runtime.run([__import__("ampnet").Stream(endless())], on_turn=tell, turn_seconds=0.0)[0]
            print("trained", stats.instances, flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with ExitStack() as stack:
        stack.enter_context(process)
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        try:
            for pids in ([*workers, process.pid], [process.pid, *workers]):
                for sort in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in pids:
                        os.kill(pid, sort)
                        time.sleep(0.2)
                    if sort == signal.SIGSTOP:
                        time.sleep(2.0)
            *_, last = process.stdout
            assert last == "trained 300\n"
        finally:
            process.kill()


def test_a_busy_machine_makes_nobody_stuck() -> None:
    """More processes than cores, all at work: workers wait for a core."""
    others = []
    try:
        for _ in range(4 * len(os.sched_getaffinity(0))):
            with undisturbed():
                others.append(fork(busy(1000.0)))
        with two(line(), stuck_after=0.5) as runtime:
            for _ in range(3):
                assert runtime.train(points(*range(50))).instances == 50
    finally:
        children.end(others, os.getpid())


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
    assert 0.6 <= max(looks) <= 0.6 + watch.GAP


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


def test_the_states_of_processes() -> None:
    sleeping = child(asleep, "S")
    running = child(busy(1000.0), "R")
    stopping = child(stopped, "T")
    try:
        assert set(states_of(sleeping)) == {"S"}
        assert "R" in states_of(running)
        assert set(states_of(stopping)) == {"T"}
    finally:
        children.end([sleeping, running, stopping], os.getpid())
    assert states_of(sleeping) == ""


def test_who_is_traced_is_not_stopped() -> None:
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
        assert states_of(pid) == ""
    finally:
        children.end([pid], os.getpid())
