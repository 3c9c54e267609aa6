"""What was found by attack: runs that fail before there are workers, copies of the maker, loaders that block, settings
that make no sense. Each was a hang, a traceback of a worker, or a worker too many."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
import torch

from ampnet import AmpnetError, Instance, NodeError, Processes, Stream, Update, feed, replicate
from ampnet.errors import DataError, WorkerDied
from ampnet.placement import Trial
from ampnet.runtime import children as graves
from tests.replicas.small import chain, rows
from tests.runtime.conftest import children
from tests.runtime.test_failures import goes_on, line, points, two

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
SGD = partial(torch.optim.SGD, lr=1e-4)


# Before there are workers


def interrupted(instances: list[Instance]) -> Iterator[Instance]:
    yield from instances
    raise KeyboardInterrupt


@pytest.mark.parametrize("times", [1, 3])
def test_an_interrupt_while_the_first_instances_are_read(times: int) -> None:
    """Once, the run after it hung for ever: workers were made with an era that the controller had left behind."""
    with two(line()) as runtime:
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt):
                runtime.train(interrupted(points(1)))
            assert not children()
        goes_on(runtime)
        assert runtime.stats().engine == "waves"


def test_an_interrupt_while_workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, those that had been forked by then worked on for as long as this process lived, and nobody knew of them."""
    before, fork = signal.signal(signal.SIGINT, signal.default_int_handler), graves.fork

    def disturbed(work: Callable[[], None]) -> int:
        pid = fork(work)
        os.kill(os.getpid(), signal.SIGINT)
        return pid

    try:
        with two(line()) as runtime:
            monkeypatch.setattr(graves, "fork", disturbed)
            with pytest.raises(KeyboardInterrupt):
                runtime.train(points(3))
            assert not children()
            monkeypatch.setattr(graves, "fork", fork)
            goes_on(runtime)
    finally:
        signal.signal(signal.SIGINT, before)


def test_bad_data_in_the_trial_of_the_placement() -> None:
    with two(line(), affinity="auto", wave_size=1) as runtime:
        bad = Instance({"x": feed(torch.zeros(1, 7)), "y": feed(torch.zeros(1, 2))})
        with pytest.raises(NodeError, match="node 'first' failed in forward"):
            runtime.train([bad, *points(1, 2)])
        goes_on(runtime)


def test_an_interrupt_before_there_are_replicas() -> None:
    """Once, the run after it ended in a wrong StallError."""
    graph = chain("linear", "tanh", "linear")
    replicate(graph, None, 2)
    with Processes(graph, workers=2, update=Update(SGD)) as runtime:
        with pytest.raises(KeyboardInterrupt):
            runtime.train(interrupted(rows(1)))
        assert runtime.train(rows(1, 2, 3)).instances == 3
        assert not runtime.held()


@pytest.mark.parametrize("where", ["loader", "trial"])
def test_a_stop_before_there_are_workers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, it was lost, and the run went on for ever."""
    read = 0

    def endless() -> Iterator[Instance]:
        nonlocal read
        while True:
            read += 1
            if where == "loader":
                runtime.stop()
            yield points(read % 5)[0]

    meant(monkeypatch, where, lambda: runtime.stop())
    with two(line(), affinity="auto", max_active_keys=20) as runtime:
        (stats,) = runtime.run([Stream(endless())])
        assert (stats.complete, stats.instances) == (False, 0)
        assert read == (1 if where == "loader" else 20)
        goes_on(runtime)


@pytest.mark.parametrize("where", ["loader", "trial"])
def test_a_close_before_there_are_workers(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, it was lost, and the workers stayed."""

    def closing() -> Iterator[Instance]:
        if where == "loader":
            runtime.close()
        yield from points(1, 2, 3)

    meant(monkeypatch, where, lambda: runtime.close())
    runtime = two(line(), affinity="auto")
    with pytest.raises(AmpnetError, match="this runtime has ended: it was closed"):
        runtime.train(closing())
    assert not children()


def meant(monkeypatch: pytest.MonkeyPatch, where: str, act: Callable[[], None]) -> None:
    run = Trial.run

    def tried(trial: Trial, instances: Any) -> Any:
        costs = run(trial, instances)
        if where == "trial":
            act()
        return costs

    monkeypatch.setattr(Trial, "run", tried)


# In a run


@pytest.mark.parametrize("threaded", [False, True])
def test_a_close_in_a_run_ends_it(threaded: bool) -> None:
    """By the one who runs it, or by another thread."""

    def endless() -> Iterator[Instance]:
        while True:
            yield from points(1, 2)

    def turned(progress: object) -> None:
        if threaded:
            thread = threading.Thread(target=runtime.close)
            thread.start()
            thread.join()
        else:
            runtime.close()

    runtime = two(line())
    with pytest.raises(AmpnetError, match="this runtime has ended: it was closed"):
        runtime.run([Stream(endless())], on_turn=turned, turn_seconds=0.0)
    assert not children()
    runtime.close()


def test_a_copy_of_the_maker_leaves_the_workers_alone() -> None:
    """Once, whoever forked and closed the runtime in the child ended the parent's workers."""
    with two(line()) as runtime:
        runtime.train(points(1, 2))
        out, into = os.pipe()
        copy = os.fork()
        if not copy:
            said = b""
            try:
                for use in (lambda: runtime.train(points(1)), runtime.held, runtime.stats):
                    with pytest.raises(AmpnetError, match=f"process {os.getppid()} made the workers; this is a copy"):
                        use()
                runtime.close()
                said = b"refused"
            finally:
                os.write(into, said)
                os._exit(0)
        os.close(into)
        with os.fdopen(out) as lines:
            assert lines.read() == "refused"
        os.waitpid(copy, 0)
        assert len(children()) == 2
        goes_on(runtime)


# Loaders


def blocked(runtime: Callable[[], Processes], after: list[str]) -> Iterator[Instance]:
    """Waits for ever once the workers are there; one of them dies meanwhile."""
    yield from points(*range(10))
    timer = threading.Timer(0.2, os.kill, (runtime().pids[1], signal.SIGKILL))
    timer.start()
    try:
        time.sleep(1000)
    finally:
        after.append("over")
        timer.join()


def test_a_worker_killed_while_the_loader_blocks() -> None:
    """Once, that was noticed when the loader came back, if it ever did."""
    after: list[str] = []
    before = signal.getsignal(signal.SIGURG)
    with two(line()) as runtime:
        began = time.monotonic()
        with pytest.raises(WorkerDied, match="worker1' was killed by signal 9"):
            runtime.train(blocked(lambda: runtime, after))
        assert time.monotonic() - began < 5
        assert after == ["over"]
        assert not children()
    assert signal.getsignal(signal.SIGURG) is before


def test_a_loader_that_lets_nothing_through() -> None:
    """It is told again, and the run ends all the same when it comes back."""
    caught = []

    def stubborn() -> Iterator[Instance]:
        yield from points(*range(10))
        os.kill(runtime.pids[0], signal.SIGKILL)
        while len(caught) < 1:
            try:
                time.sleep(1000)
            except AmpnetError as error:
                caught.append(error)
        yield from points(1)

    with two(line()) as runtime, pytest.raises(AmpnetError, match="worker 'worker0' was killed by signal 9"):
        runtime.train(stubborn())
    assert [type(error) for error in caught] == [WorkerDied]


def test_a_loader_in_another_thread_is_not_interrupted() -> None:
    """No signal is handled there: the error comes when the loader does."""
    found: list[BaseException] = []

    def slow() -> Iterator[Instance]:
        yield from points(*range(10))
        os.kill(runtime.pids[0], signal.SIGKILL)
        time.sleep(0.5)
        yield from points(1)

    def train() -> None:
        try:
            runtime.train(slow())
        except AmpnetError as error:
            found.append(error)

    with two(line()) as runtime:
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    assert [type(error) for error in found] == [WorkerDied]


def test_an_alarm_of_somebody_else_is_none_of_ours() -> None:
    """The signal by which loaders are interrupted may be sent by anybody."""
    seen: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before = signal.signal(signal.SIGURG, handler)
    try:

        def alarmed() -> Iterator[Instance]:
            for one in points(*range(20)):
                signal.raise_signal(signal.SIGURG)
                yield one

        with two(line()) as runtime:
            runtime.train(points(1))
            assert runtime.train(alarmed()).instances == 20
        signal.raise_signal(signal.SIGURG)
        assert seen == [signal.SIGURG]
    finally:
        signal.signal(signal.SIGURG, before)


def test_an_error_of_the_loader_is_not_taken_for_a_workers() -> None:
    def broken() -> Iterator[Instance]:
        yield from points(*range(10))
        raise WorkerError("mine")

    class WorkerError(AmpnetError):
        pass

    with two(line()) as runtime:
        with pytest.raises(DataError, match="stream 'train', instance 11: mine"):
            runtime.train(broken())
        goes_on(runtime)


# Settings


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"schedule": "alphabetical"}, "unknown schedule 'alphabetical'; there are backward-first, fifo"),
        ({"schedule": 3}, "unknown schedule 3"),
        ({"seed": -1}, "seed must be a whole number, 0 or more; got -1"),
        ({"seed": "x"}, "seed must be a whole number"),
        ({"threads": 0}, "threads must be a whole number from 1 to"),
        ({"threads": 10**6}, r"threads must be a whole number from 1 to \d+ \(on this machine\), got 1000000"),
        ({"threads": "two"}, "threads must be a whole number"),
        ({"workers": 0}, "workers must be a whole number from 1 to"),
        ({"workers": 10**20}, "workers must be a whole number from 1 to"),
        ({"workers": 2.0}, "workers must be a whole number"),
        ({"wave_size": 0}, "wave_size must be a whole number, 1 or more"),
        ({"max_active_keys": 0}, "max_active_keys must be a whole number, 1 or more"),
        ({"max_active_keys": None}, "max_active_keys must be a whole number"),
        ({"capacity": 10}, "capacity must be a whole number, 1024 or more"),
        ({"stuck_after": 0}, "stuck_after must be a number of seconds above 0, or None"),
        ({"precision": "int4"}, "precision must be float32 or bfloat16"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(settings: dict[str, Any], fault: str) -> None:
    """Once, they surfaced as tracebacks of workers, or ate the memory."""
    with pytest.raises(ValueError, match=fault):
        two(line(), **settings)


def test_several_threads_after_the_maker_has_used_several() -> None:
    """OpenMP's threads belong to the thread that used them first, and of those only that one is in a forked process: it
    would wait for them for ever. Workers are forked from a thread of their own."""
    torch.set_num_threads(2)
    try:
        big = torch.rand(600, 600)
        big = big @ big

        def multiply(x: torch.Tensor) -> torch.Tensor:
            return x + 0 * (big @ big).sum()

        with two(line(multiply), threads=2) as runtime:
            assert runtime.train(points(1, 2, 3)).instances == 3
    finally:
        torch.set_num_threads(1)
