"""Promises P11 and P12 on worker processes: whatever fails is raised once, soon, by name, and nothing is left behind.

An error in a node, an optimizer, a loss or the loader ends the run; the workers stay, with nothing in flight, and the
next run goes as if nothing had been. A worker that is gone ends the runtime.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ampnet.runtime
from ampnet import (
    AmpnetError,
    DataError,
    Graph,
    GraphError,
    Inline,
    Instance,
    NodeError,
    Processes,
    StallError,
    Stream,
    Update,
    feed,
)
from ampnet.data.list_reduction import generate
from ampnet.errors import LossError, WorkerDied
from ampnet.events.check import check
from ampnet.events.log import Begin, Event, EventLog, Pump, Rest
from ampnet.models import list_reduction
from ampnet.nodes import Concat, Cond, Function, Linear, Loss, Module, Phi, Sink
from ampnet.runtime import children as graves
from ampnet.runtime.events import ended
from ampnet.runtime.host import Host
from ampnet.runtime.post import Post
from ampnet.runtime.protocol import Kind
from ampnet.runtime.transport import Note
from ampnet.state import States
from ampnet.testing import assert_close
from tests.runtime.conftest import children
from tests.runtime.test_processes import small

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
SGD = partial(torch.optim.SGD, lr=1e-4)
APART = {"first": 0, "odd": 1, "last": 0, "loss": 1}


def line(odd: Callable[[Tensor], Tensor] = lambda x: x, on_nan: Any = "stop") -> Graph:
    """x -> first -> odd -> last -> loss, on two workers in turns."""
    torch.manual_seed(0)
    graph = Graph("line")
    graph.add("first", Linear(2, 2))
    graph.add("odd", Function(odd))
    graph.add("last", Linear(2, 2))
    graph.add("loss", Loss("squared_error", on_nan=on_nan))
    graph.input("x", "first")
    graph.input("y", "loss.label")
    graph.chain("first", "odd", "last")
    graph.connect("last", "loss.prediction")
    return graph


def points(*values: float) -> list[Instance]:
    return [Instance({"x": feed(torch.tensor([[v, 1.0]])), "y": feed(torch.zeros(1, 2))}) for v in values]


def two(graph: Graph, **settings: Any) -> Processes:
    """Two workers; the loss of one is an error (see test_recovery for the rest)."""
    common = {"workers": 2, "affinity": APART, "max_active_keys": 3, "update": Update(SGD), "max_restarts": 0}
    return Processes(graph, **common | settings)


def goes_on(runtime: Processes) -> None:
    """After an error: nothing is in flight, and a run goes as if nothing had been."""
    assert not runtime.held()
    assert runtime.train(points(1, 2, 3, 4)).instances == 4


def trap(after: int, act: Callable[[], object], *, forward: bool = False) -> Callable[[Tensor], Tensor]:
    """A function of rows that acts up once: in its n-th call in a process; ``forward``: of those on the way there.

    (On the way back a Function is repeated under autograd.)
    """
    calls = itertools.count(1)

    def odd(x: Tensor) -> Tensor:
        if not (forward and torch.is_grad_enabled()) and next(calls) == after:
            act()
        return x

    return odd


def slow(progress: object) -> None:
    """A controller that is slow to look at what has arrived."""
    time.sleep(0.003)


def fails(error: BaseException) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    "error", [ValueError("v"), MemoryError("m"), KeyError("k"), RecursionError("r"), AssertionError("a")]
)
def test_an_exception_in_a_node_is_raised_with_its_own_kind(error: Exception) -> None:
    with two(line(trap(4, fails(error), forward=True))) as runtime:
        runtime.train(points(1))
        with pytest.raises(NodeError, match="'odd' failed in forward.*worker1") as caught:
            runtime.train(points(*range(20)))
        assert type(caught.value.__cause__) is type(error)
        assert "in worker 'worker1':\nTraceback" in caught.value.__cause__.__notes__[0]
        goes_on(runtime)


def test_an_exception_of_a_kind_that_only_the_worker_knows() -> None:
    class Strange(Exception):
        def __init__(self) -> None:
            super().__init__("strange")

    with (
        two(line(trap(2, fails(Strange())))) as runtime,
        pytest.raises(NodeError, match="RuntimeError: Strange: strange"),
    ):
        runtime.train(points(*range(20)))


def test_an_exception_in_an_optimizer_step() -> None:
    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if getattr(self, "steps", 0) == 3:
                raise FloatingPointError("step 4")
            self.steps = getattr(self, "steps", 0) + 1
            return super().step(closure)

    updates = {"last": Update(partial(Fails, lr=0.1))}
    with two(line(), updates=updates) as runtime:
        with pytest.raises(NodeError, match="'last' failed in update on worker 'worker0': FloatingPointError: step 4"):
            runtime.train(points(*range(30)))
        assert not runtime.held()


def test_an_exception_in_the_flush_at_the_end_of_an_epoch() -> None:
    """The last instance has retired by then: the run must still hear of it."""

    class Fails(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise FloatingPointError("flush")

    with (
        two(line(), updates={"last": Update(partial(Fails, lr=0.1), 1000)}) as runtime,
        pytest.raises(NodeError, match="'last' failed in update.*flush"),
    ):
        runtime.train(points(1, 2, 3))


def test_an_exception_in_a_state_function() -> None:
    def crash(s: States) -> Any:
        if bool((s.t == 3).any()):
            raise KeyError("t is 3")
        return np.zeros(len(s), dtype=np.int64)

    graph = Graph()
    graph.add("cond", Cond(lambda s: s.t * 0, ("a", "b")))
    graph.nodes["cond"].function.function = crash  # type: ignore[attr-defined]
    graph.add("phi", Phi(("a", "b")))
    graph.add("loss", Loss("squared_error", key=("instance",)))
    graph.input("x", "cond", ("t",))
    graph.input("y", "loss.label")
    graph.connect("cond.a", "phi.a")
    graph.connect("cond.b", "phi.b")
    graph.connect("phi", "loss.prediction")
    given = [Instance({"x": feed(torch.ones(1, 2), t=t), "y": feed(torch.ones(1, 2))}) for t in range(5)]
    with Processes(graph, workers=2, affinity={"cond": 1, "phi": 0, "loss": 0}) as runtime:
        with pytest.raises(NodeError, match=r"'cond' failed in forward at .*t=3.*worker\d.*KeyError"):
            runtime.train(given)
        assert not runtime.held()
        assert runtime.train(given[:2]).instances == 2


def test_a_loss_that_is_not_finite_stops_or_is_skipped() -> None:
    """A payload that is not finite is refused at the door; here it overflows on the way."""
    values = (1.0, 3e38, 2.0)
    with two(line()) as runtime:
        with pytest.raises(
            NodeError, match="'loss' failed in forward.*worker1.*the loss is (inf|nan) at .instance=1"
        ) as caught:
            runtime.train(points(*values))
        assert isinstance(caught.value.__cause__, LossError)
        goes_on(runtime)
        with pytest.raises(DataError, match="input 'x' has a payload that is not finite at .instance="):
            runtime.train(points(float("nan")))
        goes_on(runtime)
    with two(line(on_nan="skip")) as runtime:
        stats = runtime.train(points(*values))
        assert (stats.instances, stats.skipped) == (3, 1)
        goes_on(runtime)


@pytest.mark.parametrize("before", [0, 1, 30])
def test_an_exception_in_the_loader(before: int) -> None:
    """With 0 and 1 it comes while the first instances are looked at to place the nodes."""

    def loader() -> Iterator[Instance]:
        yield from points(*range(before))
        raise OSError("disk gone")

    with two(line(), affinity="auto") as runtime:
        said = f"stream 'train': the loader failed at instance {before + 1}: OSError: disk gone"
        with pytest.raises(DataError, match=said):
            runtime.train(loader())
        goes_on(runtime)


def test_exceptions_of_callbacks_and_listeners() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("callback")

    with two(line()) as runtime:
        with pytest.raises(RuntimeError, match="callback"):
            runtime.run([Stream(points(1, 2, 3))], on_end=fail)
        with pytest.raises(RuntimeError, match="callback"):
            runtime.run([Stream(points(*range(500)))], on_turn=fail, turn_seconds=0.0)
        goes_on(runtime)

    def disk_full(event: Event) -> None:
        raise OSError("disk full")

    with (
        two(line(), listeners=[disk_full]) as runtime,
        pytest.raises(OSError, match="disk full"),
    ):
        runtime.train(points(1, 2, 3))


@pytest.mark.parametrize("status", [0, 3])
def test_a_worker_that_ends_by_itself(status: int) -> None:
    with (
        two(line(trap(4, lambda: os._exit(status)))) as runtime,
        pytest.raises(WorkerDied, match=f"worker1' ended by itself, with status {status}"),
    ):
        runtime.train(points(*range(30)))


def test_an_exit_in_a_node(capfd: pytest.CaptureFixture[str]) -> None:
    with (
        two(line(trap(4, sys.exit))) as runtime,
        pytest.raises(WorkerDied, match="worker1' ended by itself, with status 1"),
    ):
        runtime.train(points(*range(30)))
    assert "SystemExit" in capfd.readouterr().err


@pytest.mark.parametrize("sort", [signal.SIGUSR1, signal.SIGTERM, signal.SIGRTMIN + 3])
def test_other_signals_are_named(sort: int) -> None:
    with (
        two(line(trap(4, lambda: os.kill(os.getpid(), sort)))) as runtime,
        pytest.raises(WorkerDied, match=f"worker1' was killed by signal {int(sort)} "),
    ):
        runtime.train(points(*range(30)))


def test_a_worker_killed_between_runs_and_whoever_asks_then() -> None:
    with two(line()) as runtime:
        runtime.train(points(1, 2))
        os.kill(runtime.pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match="worker0.*SIGKILL"):
            runtime.held()
        assert not children()
        assert runtime.held() == {}
        with pytest.raises(AmpnetError, match="this runtime has ended: worker 'worker0' was killed"):
            runtime.train(points(1))


def test_a_worker_buried_by_somebody_else() -> None:
    """Once, a program that waits for all of its children made the runtime raise ChildProcessError."""
    with two(line()) as runtime:
        runtime.train(points(1, 2))
        os.kill(runtime.pids[1], signal.SIGKILL)
        os.waitpid(runtime.pids[1], 0)
        with pytest.raises(WorkerDied, match="worker1' is gone"):
            runtime.train(points(1, 2))


def test_all_workers_killed_while_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    end = graves.end

    def killing(pids: list[int], *args: Any) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        end(pids, *args)

    monkeypatch.setattr(graves, "end", killing)
    with two(line()) as runtime:
        runtime.train(points(1, 2))


def test_a_worker_that_does_not_listen_is_killed_by_close() -> None:
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    with (
        two(line(trap(4, stop)), stuck_after=0.5) as runtime,
        pytest.raises(WorkerDied, match=r"worker1' has made no step for 0.5 s in node 'odd'"),
    ):
        runtime.train(points(*range(30)))


def test_a_fork_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the workers made before it were forgotten."""
    fork, calls = os.fork, itertools.count(1)

    def sometimes() -> int:
        if next(calls) == 2:
            raise BlockingIOError("no more processes")
        return fork()

    monkeypatch.setattr(os, "fork", sometimes)
    with (
        two(line()) as runtime,
        pytest.raises(BlockingIOError, match="no more processes"),
    ):
        runtime.train(points(1, 2))
    assert not children()


def test_a_stall_after_an_abandoned_run_is_still_noticed() -> None:
    """Once, answers that came with an error were not counted, and no stall was ever seen again."""
    graph = Graph("stalls")
    calls = itertools.count(1)

    def odd(x: Tensor) -> Tensor:
        if (x < 0).any() and next(calls) % 20 == 0:
            raise ValueError("odd")
        return x

    graph.add("odd", Function(odd))
    graph.add("both", Concat(("a", "b")))
    graph.add("loss", Loss("squared_error"))
    graph.input("a", "odd")
    graph.input("b", "both.b")
    graph.input("y", "loss.label")
    graph.connect("odd", "both.a")
    graph.connect("both", "loss.prediction")

    def given(count: int, *names: str, value: float = 1.0) -> list[Instance]:
        shapes = {"a": (1, 1), "b": (1, 1), "y": (1, 2)}
        return [Instance({n: feed(torch.full(shapes[n], value)) for n in names}) for _ in range(count)]

    affinity = {"odd": 1, "both": 0, "loss": 0}
    with Processes(graph, workers=2, affinity=affinity, max_active_keys=16, wave_size=2) as runtime:
        for _ in range(10):
            with pytest.raises(NodeError, match="odd"):
                runtime.run([Stream(given(200, "a", "b", "y", value=-1.0))], on_turn=slow, turn_seconds=0.0)
        with pytest.raises(StallError, match="wait for port 'b'"):
            runtime.train(given(2, "a", "y"))
        assert not runtime.held()
        assert runtime.train(given(3, "a", "b", "y")).instances == 3


def test_a_stall_is_noticed_while_somebody_listens() -> None:
    """Once, the answers of workers who were asked for their events were taken for news, and no stall was ever seen."""
    graph = Graph("stalls")
    graph.add("both", Concat(("a", "b")))
    graph.add("loss", Loss("squared_error"))
    graph.input("a", "both.a")
    graph.input("b", "both.b")
    graph.input("y", "loss.label")
    graph.connect("both", "loss.prediction")
    lacking = Instance({"a": feed(torch.zeros(1, 1)), "y": feed(torch.zeros(1, 2))})
    with (
        Processes(graph, affinity={"both": 0, "loss": 1}, listeners=[EventLog()]) as runtime,
        pytest.raises(StallError, match="wait for port 'b'"),
    ):
        runtime.train([lacking])


def test_all_places_open_where_no_loss_hears_of_instances() -> None:
    """Once, they stayed closed for all of a run whose instances end in Sinks: only reports of losses opened them.

    (P6: the pump is never idle while there is data and a place is free.)
    """
    graph = Graph("aside")
    graph.add("which", Cond(lambda s: s.way, ("judged", "aside")))
    graph.add("loss", Loss("squared_error"))
    graph.add("sink", Sink())
    graph.input("x", "which", fields=("way",))
    graph.input("y", "loss.label", fields=("way",))
    graph.connect("which.judged", "loss.prediction")
    graph.connect("which.aside", "sink")
    aside = [Instance({"x": feed(torch.zeros(1, 1), way=1)}) for _ in range(100)]
    log = EventLog()
    affinity = {"which": 0, "loss": 1, "sink": 1}
    with Processes(graph, affinity=affinity, max_active_keys=8, listeners=[log]) as runtime:
        assert runtime.train(aside).instances == 100
        assert max(event.in_flight for event in log.events if isinstance(event, Pump)) == 8


def test_what_cannot_be_sent_is_a_named_error_and_the_workers_go_on() -> None:
    """Once, a payload without memory of its own ended all workers, "interrupted in the middle of a message"."""
    with two(line()) as runtime:
        for bad in (torch.zeros(1, 2, device="meta"), torch.zeros(1, 2).to_sparse()):
            with pytest.raises(DataError, match="input 'x'.*has no plain memory"):
                runtime.train([Instance({"x": feed(bad), "y": feed(torch.zeros(1, 2))})])
            goes_on(runtime)


def test_parameters_elsewhere_than_on_the_cpu_are_refused() -> None:
    """Once, they were moved to the CPU, silently."""
    graph = line()
    graph.parameterised()["first"].updater.parameters = [nn.Parameter(torch.zeros(2, 2, device="meta"))]
    with two(graph) as runtime, pytest.raises(GraphError, match="'first' has a parameter on device 'meta'"):
        runtime.train(points(1))


@pytest.mark.parametrize("kind", [Inline, Processes])
def test_a_run_within_a_run_is_refused(kind: type[Inline] | type[Processes]) -> None:
    """Once, worker processes took it for the run after an interrupt, and the outer one ended in a stall."""
    with kind(line(), max_active_keys=2) as runtime:
        with pytest.raises(AmpnetError, match="within a run"):
            runtime.run([Stream(points(*range(9)))], on_end=lambda stats: runtime.train(points(1)) and None)
        assert runtime.train(points(1)).instances == 1
        assert runtime.controller.max_active_keys == 2
        assert not runtime.held()


def test_a_runtime_that_nobody_closes_leaves_nothing_behind() -> None:
    """Once, its workers ended with it, and five file descriptors stayed."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    runtime = two(line())
    runtime.train(points(1, 2))
    assert len(children()) == 2
    del runtime
    gc.collect()
    assert not children()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_interrupt_while_undisturbed_whichever_thread_takes_it() -> None:
    """Once, it was blocked in the main thread only: another one took it, and it was raised in the main thread."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    other.start()
    reading, writing = socket.socketpair()
    reading.settimeout(100)
    writing.setblocking(False)
    waking = signal.set_wakeup_fd(writing.fileno())  # tells that the other thread has taken it
    steps = []
    try:
        with pytest.raises(KeyboardInterrupt), graves.undisturbed():
            signal.pthread_kill(other.ident or 0, signal.SIGINT)
            assert reading.recv(1) == bytes([signal.SIGINT])
            steps += [sum(range(n)) for n in range(300)]
        assert len(steps) == 300
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.set_wakeup_fd(waking)
        reading.close()
        writing.close()
        signal.signal(signal.SIGINT, before)
        over.set()
        other.join()


def test_interrupts_at_random_moments() -> None:
    """Ctrl-C at whatever instruction. Caught between messages, the workers go on; within one, the runtime is over."""
    graph = list_reduction.build(8, seed=0)
    data = generate(600, 0)
    rng = np.random.default_rng(0)
    runtime: Processes | None = None
    interrupted = went_on = 0
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(40):
            if runtime is None:
                runtime = Processes(graph, workers=2, max_active_keys=4, affinity={"cell*": 1, "*": 0}, capacity=4096)
                runtime.train(list_reduction.instances(graph, data, 100))
            timer = threading.Timer(
                rng.uniform(0, 0.03), lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            )
            try:
                timer.start()
                while True:
                    runtime.train(list_reduction.instances(graph, data, 10))
            except KeyboardInterrupt:
                interrupted += 1
            finally:
                timer.join()
            if children():
                assert runtime.train(list_reduction.instances(graph, data, 100)).records == 600
                assert not runtime.held()
                went_on += 1
            else:
                with pytest.raises(AmpnetError, match="its workers were interrupted in the middle of a message"):
                    runtime.train([])
                runtime = None
    finally:
        signal.signal(signal.SIGINT, before)
        if runtime is not None:
            runtime.close()
    assert interrupted == 40
    assert went_on >= 5


def test_after_an_error_the_log_begins_anew() -> None:
    """What is left of an abandoned run is in no log: a log is about whole runs, up to where it was cut."""
    log = EventLog()
    with two(line(trap(40, fails(ValueError("odd")))), listeners=[log], update=Update(SGD)) as runtime:
        runtime.train(points(*range(5)))
        whole = len(log)
        with pytest.raises(NodeError):
            runtime.train(points(*range(100)))
        runtime.train(points(*range(5)))
    assert check(log.events[:whole]) == []
    begins = [i for i, e in enumerate(log.events) if isinstance(e, Begin)]
    assert check(log.events[begins[-1] :]) == []
    assert isinstance(log.events[-1], Rest)


def test_two_runtimes_on_two_graphs_at_the_same_time() -> None:
    graphs = [line(), line()]
    with two(graphs[0]) as one, two(graphs[1], workers=3) as other:
        for _ in range(3):
            losses = one.train(points(1, 2)).loss, other.train(points(1, 2)).loss
        nested: list[float] = []

        def inside(progress: object) -> None:
            if len(nested) < 20:  # there is a turn for every answer
                nested.append(other.train(points(1, 2)).loss)

        one.run([Stream(points(*range(200)))], on_turn=inside, turn_seconds=0.0)
        assert nested
        assert len(children()) == 5
    assert all(np.isfinite(losses))


def test_a_second_runtime_takes_the_graph_over() -> None:
    graph = line()
    with two(graph) as first:
        first.train(points(1, 2))
        with two(graph) as second:
            with pytest.raises(GraphError, match="another runtime was made on this graph since"):
                first.train(points(1))
            second.train(points(1, 2, 3))
            weights = [p.clone() for p in graph.parameterised()["last"].updater.weights]
        with Inline(graph, update=Update(SGD)) as third:
            versions = graph.parameterised()["last"].updater.version
            first.close()
            assert graph.parameterised()["last"].updater.version == versions  # not those of the first
            now = graph.parameterised()["last"].updater.weights
            assert all(bool((a == b).all()) for a, b in zip(weights, now, strict=True))
            third.train(points(1, 2))


@pytest.mark.parametrize("capacity", [1024, 4096])
@pytest.mark.parametrize("name", ["tree", "qm9"])
def test_rings_that_are_nearly_always_full_change_nothing(
    name: str, capacity: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, what the controller said first could come last where a ring was full: a structure after its messages."""
    send = Post.send

    def sent(post: Post, worker: int, note: Note) -> None:
        send(post, worker, note)
        time.sleep(0.003)

    monkeypatch.setattr(Post, "send", sent)
    graph, instances = small(name)
    with Inline(graph, update=None, max_active_keys=6) as inline:
        want = inline.train(instances).loss
    gradients = {n: total.clone() for n, total in graph.gradients().items()}
    rng = np.random.default_rng(0)
    for _ in range(3):
        affinity = {node: int(rng.integers(3)) for node in graph.nodes}
        log = EventLog()
        with (
            Processes(
                graph, workers=3, affinity=affinity, capacity=capacity, max_active_keys=6, listeners=[log]
            ) as runtime,
        ):
            for _ in range(3):
                stats = runtime.run([Stream(instances)], on_turn=slow, turn_seconds=0.0)[0]
                assert stats.loss == pytest.approx(want, abs=1e-10)
                runtime.infer(instances)
        assert_close({n: total / 3 for n, total in graph.gradients().items()}, gradients)
        assert check(log.events) == []


def test_events_reach_listeners_while_a_long_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, they were all kept until its end."""
    monkeypatch.setattr("ampnet.runtime.post._SHOW", 0.01)
    log, seen = EventLog(), []
    graph = list_reduction.build(8, seed=0)
    data = generate(500, 0)
    with Processes(graph, workers=2, max_active_keys=4, update=Update(SGD), listeners=[log]) as runtime:
        endless = (i for _ in range(8) for i in list_reduction.instances(graph, data, 10))
        runtime.run([Stream(endless)], on_turn=lambda progress: seen.append(len(log)), turn_seconds=0.02)
    assert sum(n > 0 for n in seen) > len(seen) // 2
    assert check(log.events) == []
    times = list(map(ended, log.events))
    assert times == sorted(times)


def test_lambdas_closures_and_local_classes_need_no_pickling() -> None:
    """Nothing is pickled, so nothing has to be: not by the transport, not by the runtime."""
    lock = threading.Lock()  # cannot be pickled

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.lock = lock

        def forward(self, x: Tensor) -> Tensor:
            with self.lock:
                return x * self.weight

    graph = Graph("local")
    graph.add("first", Function(lambda x: (lock.locked(), x * 2)[1]))
    graph.add("odd", Module(Local()))
    graph.add("loss", Loss("squared_error"))
    graph.input("x", "first")
    graph.input("y", "loss.label")
    graph.chain("first", "odd")
    graph.connect("odd", "loss.prediction")
    affinity = {"first": 0, "odd": 1, "loss": 0}
    with Processes(graph, workers=2, affinity=affinity, update=Update(SGD)) as runtime:
        assert runtime.train(points(1, 2, 3)).instances == 3
    root = Path(ampnet.runtime.__file__).parent
    sources = sorted(root.rglob("*.py"))
    assert len(sources) > 10
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            strange = [
                n for n in names if n.split(".")[0] in ("pickle", "marshal", "dill", "multiprocessing", "shelve")
            ]
            assert not strange, f"{source.name} imports {strange}"


def test_what_nodes_print_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    """Once, it stayed in the buffers of the worker and was lost."""
    with two(line(trap(1, lambda: print("hello from a node")))) as runtime:
        runtime.train(points(1, 2))
    assert "hello from a node" in capfd.readouterr().out


def loops() -> None:
    while True:
        pass


def holds_the_interpreter() -> None:
    ctypes.PyDLL(None).pause()


@pytest.mark.parametrize("stuck", [loops, holds_the_interpreter])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_stuck_worker_ends_with_its_maker(stuck: Callable[[], None], threaded: bool) -> None:
    """It cannot look after its maker while a node does not come back.

    Once, workers of a runtime that was made in a thread stayed: the kernel looks at the thread that forked.
    """
    out, into = os.pipe()
    maker = os.fork()
    if not maker:
        try:
            train = partial(_train_and_tell, stuck, into)
            if threaded:
                thread = threading.Thread(target=train)
                thread.start()
                thread.join()
            else:
                train()
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as lines:
        pids = [int(pid) for pid in lines.readline().split()]
        assert lines.readline() == "stuck\n"
    assert len(pids) == 2
    os.kill(maker, signal.SIGKILL)
    os.waitpid(maker, 0)
    while any(_runs(pid) for pid in pids):  # for ever, where workers outlive their maker
        time.sleep(0.02)


def _train_and_tell(stuck: Callable[[], None], into: int) -> None:
    def act() -> None:
        os.write(into, b"stuck\n")
        stuck()

    def told() -> Iterator[Instance]:
        yield from points(1, 2, 3)
        os.write(into, b" ".join(str(pid).encode() for pid in runtime.pids) + b"\n")
        yield from points(4, 5, 13)
        time.sleep(1000)

    odd = trap(6, act)
    runtime = two(line(odd), stuck_after=None, max_active_keys=2, wave_size=1)
    runtime.train(told())


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_an_error_of_a_run_that_is_over_is_not_raised_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    send = Host._send

    def late(host: Host, to: int, frame: Any) -> None:
        if isinstance(frame, Note) and frame.kind == Kind.ERROR:
            time.sleep(0.2)
        send(host, to, frame)

    monkeypatch.setattr(Host, "_send", late)

    turns = itertools.count(1)

    def stop(progress: object) -> None:
        if next(turns) == 16:  # by then, the trap has been met
            raise KeyboardInterrupt

    with two(line(trap(3, fails(ValueError("odd"))))) as runtime:
        with pytest.raises((KeyboardInterrupt, NodeError)):
            runtime.run([Stream(points(*range(50)))], on_turn=stop, turn_seconds=0.0)
        goes_on(runtime)
