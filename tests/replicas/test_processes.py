"""Replicas on real worker processes: equal after every synchronisation, side by side, and one named error soon."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Graph, GraphError, Inline, Instance, NodeError, Processes, Replicate, Stream, Sync, Update, replicate
from ampnet.errors import AmpnetError, WorkerDied
from ampnet.events.check import assert_kept
from ampnet.events.log import Event, EventLog, Played, Synced, Updated, Wave
from ampnet.instance import StreamStats
from ampnet.nodes import Function
from ampnet.replicas.group import Table
from ampnet.replicas.member import Member
from ampnet.replicas.replicate import ROUTES
from ampnet.replicas.sync import KINDS
from ampnet.runtime import distributed
from ampnet.runtime.host import Host
from ampnet.testing import assert_close
from ampnet.update.updater import Updater
from tests.replicas.small import (
    ADAM,
    MODELS,
    MOMENTUM,
    OPTIMIZERS,
    SGD,
    assert_equal,
    case,
    chain,
    rows,
    taken,
    weights,
)
from tests.runtime.conftest import children

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def twins(n: int = 2, sync: Any = "epoch", route: Any = "instance", part: Any = None) -> Graph:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, part, n, route=route, sync=sync)
    return graph


HOMES = {"*#1": 0, "*#2": 1}
"""Without a trial: where everything of two replicas goes by hand."""


def applied(events: EventLog) -> Counter[str]:
    out: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Updated):
            out[event.node.partition("#")[0]] += event.count
    return out


# Results


@pytest.mark.parametrize("route", ROUTES)
def test_single_nodes_by_every_route_have_the_gradients_of_one(route: Any) -> None:
    of = case("list-reduction")
    graph, log = of.graph(), EventLog()
    replicate(graph, ("cell", "classify"), 2, route=route)
    affinity = {"*": 0, "*#2": 1, "classify_*": 1}
    with Processes(graph, workers=2, affinity=affinity, update=None, max_active_keys=4, listeners=[log]) as runtime:
        for _ in range(2):
            stats = runtime.train(of.instances(graph))
            assert not runtime.held()
        known = runtime.infer(of.instances(graph))
    assert stats.loss == pytest.approx(known.loss, abs=1e-12)
    assert_close(of.found(graph), {name: 2 * total for name, total in of.want.items()})
    assert_kept(log)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("route", ["instance", "shortest"])
def test_every_model_on_two_and_three_workers(name: str, n: int, route: Any) -> None:
    of = case(name)
    for workers in (2, 3):
        graph, log = of.graph(replicas=Replicate(n, route)), EventLog()
        with Processes(graph, workers=workers, update=None, max_active_keys=4, listeners=[log]) as runtime:
            runtime.train(of.instances(graph))
            assert not runtime.held()
        assert_close(of.found(graph), of.want)
        assert_kept(log)


@pytest.mark.parametrize("listens", [False, True])
@pytest.mark.parametrize("n", [2, 3])
def test_replicas_of_the_whole_model_with_and_without_somebody_who_listens(n: int, listens: bool) -> None:
    """One replica on a worker, or two."""
    of, log = case("sentiment"), EventLog()
    graph = of.graph(replicas=n)
    how: dict[str, Any] = {"listeners": [log]} if listens else {}
    affinity = {f"*#{i + 1}": i % 2 for i in range(n)}
    with Processes(graph, workers=2, affinity=affinity, update=None, max_active_keys=5, **how) as runtime:
        stats = [runtime.train(of.instances(graph)) for _ in range(2)]
        assert runtime.controller.teams == n
        assert runtime.stats().engine == "waves"
        assert runtime.stats().instances == 2 * len(of.data)
        again = runtime.infer(of.instances(graph))
    assert [s.instances for s in stats] == [len(of.data)] * 2
    assert [s.loss for s in stats] == pytest.approx([again.loss] * 2, abs=1e-12)
    assert stats[0].metrics == pytest.approx(again.metrics)
    assert_close(of.found(graph), {name: 2 * total for name, total in of.want.items()})
    assert_kept(log)


@pytest.mark.parametrize("schedule", ["backward-first", "random"])
@pytest.mark.parametrize("name", ["sentiment", "qm9"])
def test_replicas_of_the_whole_model_that_are_parted_themselves(name: str, schedule: str) -> None:
    """Three replicas: two with two workers each, and one on a worker that has a part of another."""
    of, log = case(name), EventLog()
    graph = of.graph(replicas=3)
    rng = np.random.default_rng(0)
    homes = [(0, 1), (2, 3), (3, 3)]
    affinity = {node: homes[copy.number][int(rng.integers(2))] for node, copy in graph.copies.items()}
    how: dict[str, Any] = {"update": None, "max_active_keys": 9, "wave_size": 2, "schedule": schedule}
    with Processes(graph, workers=4, affinity=affinity, listeners=[log], **how) as runtime:
        stats = [runtime.train(of.instances(graph)) for _ in range(2)]
        again = runtime.infer(of.instances(graph))
        assert runtime.controller.teams == 3
        assert runtime.stats().engine == "waves"
        assert runtime.stats().instances == 3 * len(of.data)
        assert not runtime.held()
    assert [s.loss for s in stats] == pytest.approx([again.loss] * 2, abs=1e-12)
    assert_close(of.found(graph), {name: 2 * total for name, total in of.want.items()})
    assert_kept(log)


def test_one_at_a_time_is_inline_training() -> None:
    """With one instance in flight, the order of things is that of the inline runtime, and so are the weights."""
    for kind in ("epoch", "shared"):  # else it is a matter of time when the token comes
        found = []
        for processes_ in (False, True):
            graph = twins(2, kind)
            how: dict[str, Any] = {"update": Update(ADAM, 1, "instances"), "max_active_keys": 1}
            with Processes(graph, workers=2, affinity=HOMES, **how) if processes_ else Inline(graph, **how) as runtime:
                losses = [runtime.train(rows(*[2] * 7, seed=i)).loss for i in range(2)]
            found.append((losses, {f"{n}.{i}": w for n, ws in weights(graph).items() for i, w in enumerate(ws)}))
        assert found[0][0] == pytest.approx(found[1][0], abs=1e-10)
        assert_close(found[0][1], found[1][1])


# Synchronisation (P9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", ["messages", "instances"])
def test_replicas_are_equal_after_every_training_stream(kind: Any, count: Any) -> None:
    graph, log, ended = twins(2, Sync(kind, 3), "shortest"), EventLog(), []

    def end(stats: StreamStats) -> None:
        ended.append(stats.name)
        if stats.train:
            assert_equal(graph)

    optimizer = OPTIMIZERS[("adam", "momentum", "fused", "adagrad", "sgd")[KINDS.index(kind)]]
    update = Update(optimizer, 2, count)
    streams = [Stream(rows(*[3] * 20, seed=i), train, f"{i}") for i, train in enumerate([True, False, True, True])]
    with Processes(graph, workers=2, affinity=HOMES, update=update, max_active_keys=6, listeners=[log]) as runtime:
        runtime.run(streams, on_end=end)
        assert not runtime.held()
        runtime.run(streams[:1], on_end=end)
    assert ended == ["0", "1", "2", "3", "0"]
    assert_kept(log)
    if count == "messages":
        assert set(applied(log).values()) == {4 * 60}
    synced = [e for e in log if isinstance(e, Synced)]
    assert len({e.worker for e in synced}) == 2
    if kind in ("updates", "ring"):
        assert max(e.round for e in synced) > 4


SINGLE = ("position", "round-robin", "shortest", "function")
PAIRS = [(kind, route, (i + j) % 2 == 0) for i, kind in enumerate(KINDS) for j, route in enumerate(SINGLE)]


@pytest.mark.parametrize(
    ("kind", "route"),
    [pytest.param(kind, route, marks=[] if now else [pytest.mark.slow]) for kind, route, now in PAIRS],
)
def test_messages_of_an_instance_at_replicas_on_two_workers(kind: Any, route: Any) -> None:
    way = (lambda s: (s.instance * 7 + s.t * 3) % 3) if route == "function" else route
    graph, log = twins(3, Sync(kind, 2), way, "linear*"), EventLog()
    affinity = {"*": 0, "*#2": 1, "linear3#3": 1}
    with Processes(
        graph, workers=2, affinity=affinity, update=Update(SGD, 2), max_active_keys=5, listeners=[log]
    ) as runtime:
        for i in range(2):
            runtime.train(rows(*[4] * 12, seed=i))
            assert_equal(graph)
    assert_kept(log)
    assert set(applied(log).values()) == {96}


@pytest.mark.parametrize("kind", ["updates", "ring", "gradients"])
def test_updates_wait_and_come_late_and_none_is_lost(kind: Any) -> None:
    """The second replica sleeps at every synchronisation, so the first has to wait for it."""
    graph, log = twins(2, Sync(kind, 1)), EventLog()
    plain = Table.divide

    def slowly(table: Table, members: int) -> None:
        time.sleep(2e-3)
        plain(table, members)

    give = Member._give

    def given(member: Member) -> None:
        if member.number == 1:
            time.sleep(1e-3)
        give(member)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Table, "divide", slowly)
        patch.setattr(Member, "_give", given)
        how: dict[str, Any] = {"affinity": HOMES, "update": Update(SGD), "max_active_keys": 8, "listeners": [log]}
        with Processes(graph, workers=2, **how) as runtime:
            for _ in range(3):
                runtime.train(rows(*[2] * 60))
            assert_equal(graph)
    assert_kept(log)
    assert set(applied(log).values()) == {360}
    if kind != "gradients":
        assert any(e.reason == "late" for e in log if isinstance(e, Updated))


def test_shared_weights_are_one_memory_in_all_processes() -> None:
    graph, log = twins(2, "shared"), EventLog()
    with Processes(graph, workers=2, affinity=HOMES, update=Update(SGD), listeners=[log]) as runtime:
        runtime.train(rows(*[2] * 10))
        for name in graph.replicas:
            first, second = (graph.parameterised()[f"{name}#{i}"].updater for i in (1, 2))
            for mine, theirs in zip(first.weights, second.weights, strict=True):
                assert mine.data_ptr() == theirs.data_ptr()
        graph.parameterised()["linear3#1"].updater.weights[1].fill_(3.0)  # seen by both workers at once
        with torch.no_grad():
            means = runtime.infer(rows(*[1] * 6), keep_predictions=True).predictions
        assert len(means) == 6
    assert_kept(log)
    assert [graph.parameterised()[f"linear1#{i}"].updater.version for i in (1, 2)] == [5, 5]


@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_run_together_and_a_log_that_says_so(kind: Any) -> None:
    """Once, shared weights that one replica went on to change made the log say that another one's differ."""
    for _ in range(2):
        graph, log = twins(2, Sync(kind, 2)), EventLog()
        how: dict[str, Any] = {"affinity": HOMES, "update": Update(MOMENTUM, 1), "max_active_keys": 8}
        with Processes(graph, workers=2, listeners=[log], **how) as runtime:
            some = [Stream(rows(*[2] * size, seed=size), True, f"{size}") for size in (6, 30, 14, 1)]
            some.append(Stream(rows(1, 2, 3), False, "valid"))
            stats = runtime.run(some, together=True)
            assert sorted(s.instances for s in stats) == [1, 3, 6, 14, 30]
            assert_equal(graph)
            assert not runtime.held()
        assert_kept(log)


@pytest.mark.parametrize("kind", ["epoch", "ring", "gradients"])
@pytest.mark.parametrize("barrier", [False, True])
def test_many_streams_and_empty_ones_end_in_their_order(kind: Any, barrier: bool) -> None:
    """Once, a stream without an instance ended before the one before it, whose replicas were not equal yet."""
    graph, log, names = twins(2, Sync(kind, 2)), EventLog(), []
    given = [
        Stream([], True, "nothing"),
        Stream(rows(2, 3, 1), True, "a"),
        Stream([], True, "none"),
        Stream([], False, "neither"),
        Stream(rows(1), False, "b"),
        Stream(iter(rows(*[2] * 7)), True, "c"),
        Stream([], False, "no"),
        Stream(rows(2), True, "d"),
    ]
    with Processes(graph, workers=2, affinity=HOMES, update=Update(ADAM, 3), listeners=[log]) as runtime:
        runtime.run(given, on_end=lambda stats: names.append(stats.name), barrier=barrier)
        assert_equal(graph)
        assert runtime.run([]) == []
        assert runtime.train([]).instances == 0
    assert names == ["nothing", "a", "none", "neither", "b", "c", "no", "d"]
    assert_kept(log)


@pytest.mark.parametrize("kind", ["updates", "shared", "gradients"])
@pytest.mark.parametrize("together", [False, True])
def test_stop_in_the_middle(kind: Any, together: bool) -> None:
    graph, log = twins(2, Sync(kind, 2)), EventLog()

    def endless() -> Iterator[Instance]:
        for number in range(10**6):
            if number == 60:
                runtime.stop()
            yield from rows(2, seed=number)

    with Processes(graph, workers=2, affinity=HOMES, update=Update(SGD, 3), listeners=[log]) as runtime:
        stats = runtime.run([Stream(endless(), True, "a"), Stream(rows(*[1] * 200), True, "b")], together=together)
        assert not all(s.complete for s in stats)
        assert_equal(graph)
        assert not runtime.held()
        runtime.train(rows(2, 2))
    assert_kept(log)


def test_stop_when_a_stream_has_ended() -> None:
    graph, log = twins(2, "updates"), EventLog()
    endless = (Stream(rows(*[2] * 9, seed=i), True, f"{i}") for i in range(10**6))
    with Processes(graph, workers=2, affinity=HOMES, update=Update(SGD), listeners=[log]) as runtime:
        stats = runtime.run(endless, on_end=lambda s: runtime.stop() if s.name == "2" else None)
        assert [s.name for s in stats if s.complete][:3] == ["0", "1", "2"]
        assert len(stats) <= 4
        assert_equal(graph)
    assert_kept(log)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run_and_the_next_one(kind: Any) -> None:
    graph, log = twins(2, Sync(kind, 2)), EventLog()
    how: dict[str, Any] = {"affinity": HOMES, "update": Update(MOMENTUM), "max_active_keys": 4}
    with Processes(graph, workers=2, listeners=[log], **how) as runtime:
        for seed in range(4):
            with pytest.raises(KeyboardInterrupt):
                runtime.train(interrupted(rows(*[2] * (10 + seed), seed=seed)))
        stats = runtime.train(started(graph, rows(2, 2, 2)))
        assert stats.instances == 3
        assert_equal(graph)
        assert not runtime.held()
    assert_kept(log, complete=False)


def started(graph: Graph, instances: list[Instance]) -> Iterator[Instance]:
    """When the first is asked for, replicas are equal."""
    assert_equal(graph)
    yield from instances


def one_run(seed: int) -> None:
    """Anything that can be set is drawn: part, route, policy, counting, placement, and how streams follow."""
    rng = np.random.default_rng(seed)

    def pick(*some: Any) -> Any:
        return some[int(rng.integers(len(some)))]

    kind, n, route = pick(*KINDS), int(rng.integers(2, 5)), pick(*ROUTES, "function")
    part = pick("linear*", "linear3", ("linear1", "tanh2"), None if route in ("instance", "shortest") else "linear*")
    way = (lambda s: (s.instance * 7 + s.t * 3) % n) if route == "function" else route
    graph = twins(n, Sync(kind, int(rng.integers(1, 4)), pick("average", "keep")), way, part)
    workers = int(rng.integers(1, 4))
    affinity = {name: int(rng.integers(workers)) for name in graph.nodes}
    if part is None and rng.random() < 0.7:
        affinity = {f"*#{i + 1}": i % workers for i in range(n)}
    update = Update(
        OPTIMIZERS[pick(*OPTIMIZERS)],
        int(rng.integers(1, 4)),
        pick("messages", "instances"),
        weights="current" if kind == "shared" else pick("current", "stash"),
    )
    how: dict[str, Any] = {
        "workers": workers,
        "affinity": affinity,
        "update": update,
        "max_active_keys": int(rng.integers(1, 10)),
        "wave_size": pick(None, None, 1, 3),
        "schedule": pick("sweep", "fifo", "backward-first", "random"),
        "capacity": pick(1 << 20, 1 << 12),
        "seed": seed,
    }
    log, listens = EventLog(), rng.random() < 0.8
    with Processes(graph, listeners=[log] if listens else [], **how) as runtime:
        for run in range(int(rng.integers(1, 4))):
            sizes = rng.integers(0, 12, int(rng.integers(1, 5))).tolist()
            trains = [bool(rng.random() < 0.7) for _ in sizes]
            streams = [
                Stream(rows(*rng.integers(1, 4, size).tolist(), seed=seed + run), train, f"{i}")
                for i, (size, train) in enumerate(zip(sizes, trains, strict=True))
            ]
            together = bool(rng.random() < 0.4)
            ended = runtime.run(streams, together=together)
            assert sorted(s.instances for s in ended) == sorted(sizes)
            assert_equal(graph)
            assert not runtime.held()
            if rng.random() < 0.3:
                with pytest.raises(KeyboardInterrupt):
                    runtime.train(interrupted(rows(*rng.integers(1, 4, 5).tolist())))
    assert_kept(log, complete=False)


def interrupted(instances: list[Instance]) -> Iterator[Instance]:
    yield from instances
    raise KeyboardInterrupt


@pytest.mark.parametrize("block", [0, *(pytest.param(b, marks=pytest.mark.slow) for b in range(1, 20))])
def test_any_settings(block: int) -> None:
    for seed in range(10 * block, 10 * (block + 1)):
        try:
            one_run(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# Errors (P11, P12)


def breaking(kind: Any, part: Any = None) -> Graph:
    """x -> linear1 -> trap -> linear3 -> loss; the trap fails on a row that starts with 13."""
    graph = chain("linear", "tanh", "linear")
    with torch.no_grad():
        for weight, value in zip(
            graph.parameterised()["linear1"].updater.weights, (torch.eye(3), torch.zeros(3)), strict=True
        ):
            weight.copy_(value)

    def trap(x: Tensor) -> Tensor:
        if bool((x[:, 0] == 13).any()):
            raise ValueError("unlucky")
        return x * 1.0

    node = Function(trap)
    node.name = "tanh2"
    graph.nodes["tanh2"] = node
    replicate(graph, part, 2, sync=Sync(kind, 1))
    return graph


def unlucky(at: int, count: int = 20) -> list[Instance]:
    data = rows(*[1] * count)
    payload = data[at].feeds["x"].payload
    assert payload is not None
    payload[0, 0] = 13
    return data


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_in_a_replica_is_one_named_error_and_the_next_run_works(kind: Any) -> None:
    graph, log = breaking(kind), EventLog()
    how: dict[str, Any] = {"affinity": HOMES, "update": Update(SGD), "updates": {"linear1": None}, "max_active_keys": 4}
    with Processes(graph, workers=2, listeners=[log], **how) as runtime:
        runtime.train(rows(*[1] * 6))
        with pytest.raises(NodeError, match=r"node 'tanh2#2' failed in forward at .*worker1.*unlucky") as caught:
            runtime.train(unlucky(9))
        assert isinstance(caught.value.__cause__, ValueError)
        assert not runtime.held()
        assert runtime.train(started(graph, rows(*[1] * 8))).instances == 8
        assert_equal(graph)
    assert_kept(log, complete=False)


def test_replicas_are_equal_at_the_start_of_the_run_after_an_error() -> None:
    """Once, a worker that had not heard of the error yet made one more update after the mean was taken."""
    graph = breaking("epoch")
    apply = Updater.apply

    def slowly(updater: Updater, reason: str = "full") -> Any:
        time.sleep(0.01)
        return apply(updater, reason)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Updater, "apply", slowly)
        how: dict[str, Any] = {"affinity": HOMES, "update": Update(SGD), "updates": {"linear1": None}}
        with Processes(graph, workers=2, max_active_keys=12, **how) as runtime:
            for at in (9, 11, 13, 15):
                with pytest.raises(NodeError, match="unlucky"):
                    runtime.train(unlucky(at))

                def first(at: int = at) -> Iterator[Instance]:
                    assert_equal(graph)
                    before = weights(graph)
                    time.sleep(0.1)
                    for name, now in weights(graph).items():
                        assert all(torch.equal(a, b) for a, b in zip(before[name], now, strict=True)), at
                    yield from rows(1)

                runtime.train(first())


def test_an_optimizer_that_fails_in_a_replica_is_named() -> None:
    class Broken(torch.optim.SGD):
        left = 5

        def step(self, closure: Any = None) -> Any:
            Broken.left -= 1
            if Broken.left < 0:
                raise RuntimeError("worn out")
            return super().step(closure)

    for kind in ("epoch", "gradients"):
        graph = twins(2, kind)
        Broken.left = 5
        with (
            Processes(graph, workers=2, affinity=HOMES, update=Update(lambda p: Broken(p, lr=0.1))) as runtime,
            pytest.raises(NodeError, match=r"node 'linear\d#\d' failed in update.*worn out"),
        ):
            for _ in range(9):
                runtime.train(rows(*[2] * 9))


def test_a_long_synchronisation_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, only messages were counted: a token that was long on its way looked as if nothing could move."""
    monkeypatch.setattr(distributed, "_QUIET", 0.02)
    plain = Member._give

    def slowly(member: Member) -> None:
        time.sleep(0.06)
        plain(member)

    monkeypatch.setattr(Member, "_give", slowly)
    graph = twins(3)
    with Processes(graph, workers=3, update=Update(SGD), affinity={f"*#{i + 1}": i for i in range(3)}) as runtime:
        for _ in range(2):
            runtime.train(rows(2, 2, 2))
    assert_equal(graph)


def test_replicas_that_never_meet_are_a_stall_that_says_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "_QUIET", 0.05)
    monkeypatch.setattr(Host, "_hand", lambda host, token: None)
    graph = twins(2)
    with Processes(graph, workers=2, update=Update(SGD), affinity=HOMES) as runtime:
        with pytest.raises(
            AmpnetError, match=r"node 'linear1#1' waits for the mean, in synchronisation 1 of 'linear1'"
        ):
            runtime.train(rows(2, 2, 2))
        assert not runtime.held()


# Kills (P13)

POINTS = ("give", "take", "divide", "hand", "over", "late", "memory")


def trap(point: str, victim: int, when: int, patch: pytest.MonkeyPatch) -> None:
    """The victim kills itself when it comes to this point of a synchronisation for the n-th time: before, or after."""
    left = [when]

    def die(worker: str) -> None:
        if worker == f"worker{victim}":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    owner: Any
    owner, name = {
        "give": (Member, "_give"),
        "take": (Member, "_take"),
        "late": (Member, "_after"),
        "divide": (Member, "_pass"),
        "memory": (Member, "flush"),
        "hand": (Host, "_hand"),
        "over": (Host, "_equal"),
    }[point]
    original = getattr(owner, name)

    def trapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        worker = self._worker if isinstance(self, Member) else self.name
        if when % 2:
            die(worker)
        out = original(self, *args, **kwargs)
        if not when % 2:
            die(worker)
        return out

    patch.setattr(owner, name, trapped)


def one_kill(seed: int) -> bool:
    """Whether the worker died. Either way nothing hangs, and nothing is left behind."""
    rng = np.random.default_rng(seed)
    point, kind = POINTS[seed % len(POINTS)], KINDS[int(rng.integers(len(KINDS)))]
    victim, when = int(rng.integers(2)), int(rng.integers(1, 6))
    graph = twins(int(rng.integers(2, 4)), Sync(kind, 1))  # type: ignore[arg-type]
    affinity = {f"*#{i + 1}": i % 2 for i in range(3) if f"linear1#{i + 1}" in graph.nodes}
    with pytest.MonkeyPatch.context() as patch:
        trap(point, victim, when, patch)
        with Processes(
            graph, workers=2, affinity=affinity, update=Update(MOMENTUM), max_active_keys=3, capacity=1 << 14,
            max_restarts=0,
        ) as runtime:  # fmt: skip
            death: WorkerDied | None = None
            try:
                for i in range(3):
                    runtime.train(rows(*[2] * 8, seed=i))
                    assert_equal(graph)
            except WorkerDied as error:
                death = error
            if death is not None:
                assert death.worker == f"worker{victim}"
                assert "SIGKILL" in str(death)
                assert all(bool(w.isfinite().all()) for some in weights(graph).values() for w in some)
                with pytest.raises(AmpnetError, match="this runtime has ended: worker"):
                    runtime.train(rows(1))
    return death is not None


@pytest.mark.parametrize("block", [0, *(pytest.param(b, marks=pytest.mark.slow) for b in range(1, 10))])
def test_a_worker_killed_in_the_middle_of_a_synchronisation(block: int) -> None:
    kids, fds = children(), len(os.listdir("/proc/self/fd"))
    died = 0
    for seed in range(28 * block, 28 * (block + 1)):
        died += one_kill(seed)
        assert children() == kids, seed
        assert len(os.listdir("/proc/self/fd")) <= fds, seed
    assert died >= 10


# Placement


def test_replicas_go_to_workers_of_their_own() -> None:
    graph = twins(3)
    with Processes(graph, workers=3, update=None) as runtime:
        runtime.train(rows(1, 1, 1))
        assert all(runtime.hosts[name] == found.number for name, found in graph.copies.items())
        assert set(runtime.settings["affinity"]) == set(graph.copies)
    graph = twins(5)
    with Processes(graph, workers=2, update=None) as runtime:
        runtime.train(rows(1, 1, 1))
        assert all(runtime.hosts[name] == found.number % 2 for name, found in graph.copies.items())


@pytest.mark.parametrize(
    ("affinity", "want"),
    [
        ({"linear1": 1}, {"linear1#1": 1, "linear1#2": 1, "linear3#1": 0, "linear3#2": 1}),
        ({"linear1#1": 1}, {"linear1#1": 1, "linear1#2": 1, "linear3#1": 0}),
        ({"linear1": 1, "linear1#2": 0}, {"linear1#1": 1, "linear1#2": 0}),
        ({"linear1#2": 0, "linear1": 1}, {"linear1#1": 1, "linear1#2": 0}),
        ({"linear1": 0, "*": 1}, {"linear1#1": 0, "linear1#2": 0, "linear3#1": 1, "loss#1": 1}),
        ({"*#2": 0}, {"linear1#1": 0, "linear1#2": 0, "loss#2": 0}),
        ({"*": 1, "x_route": 0}, {"linear1#1": 1, "x_route": 0, "y_route": 1}),
    ],
)
def test_by_hand_by_the_name_of_all_and_by_a_replicas_own(affinity: dict[str, int], want: dict[str, int]) -> None:
    graph, log = twins(2), EventLog()
    with Processes(graph, workers=2, affinity=affinity, update=Update(SGD), listeners=[log]) as runtime:
        runtime.train(rows(*[2] * 5))
        assert {name: runtime.hosts[name] for name in want} == want
        assert_equal(graph)
    assert_kept(log)


def test_affinity_that_names_nothing() -> None:
    with (
        Processes(twins(2), workers=2, affinity={"linear1#3": 0, "linear1": 5}) as runtime,
        pytest.raises(GraphError, match=r"'linear1#3', but no node is called that.*\n.*worker 5; there are 2"),
    ):
        runtime.train(rows(1))


def test_more_replicas_than_workers_and_one_worker() -> None:
    for workers, n in ((1, 2), (2, 5)):
        graph, log = twins(n, Sync("updates", 2)), EventLog()
        with Processes(graph, workers=workers, update=Update(SGD), max_active_keys=6, listeners=[log]) as runtime:
            runtime.train(rows(*[2] * 30))
            assert_equal(graph)
        assert_kept(log)
        assert set(applied(log).values()) == {60}


# Weights from elsewhere


@pytest.mark.parametrize("kind", KINDS)
def test_weights_loaded_between_runs_are_those_of_all(kind: Any) -> None:
    graph = twins(2, kind)
    with Processes(graph, workers=2, affinity=HOMES, update=Update(SGD)) as runtime:
        runtime.train(rows(*[2] * 6))
        other = {name: torch.full_like(value, 0.25) for name, value in graph.module().state_dict().items()}
        graph.module().load_state_dict(other)
        predicted = runtime.infer(rows(*[1] * 4), keep_predictions=True).predictions
        for name, some in weights(graph).items():
            assert all(bool((w == 0.25).all()) for w in some), name
    plain = chain("linear", "tanh", "linear")
    plain.module().load_state_dict(other)
    with Inline(plain) as inline:
        want = inline.infer(rows(*[1] * 4), keep_predictions=True).predictions
    for place, results in want.items():
        assert_close({"y": predicted[place][0][2]}, {"y": results[0][2]})


def test_gradients_of_both_processes_add_up() -> None:
    graph, plain = twins(2), chain("linear", "tanh", "linear")
    data = rows(3, 1, 4, 1, 5)
    Inline(plain, update=None).train(data)
    with Processes(graph, workers=2, affinity=HOMES, update=None) as runtime:
        runtime.train(data)
    assert_close(taken(graph), taken(plain))


def test_what_is_told_is_told_in_order() -> None:
    """Events of two workers and the controller, put together by the times of their ends."""
    graph = twins(2, Sync("ring", 1))
    seen: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, Played):
            seen.append(event.starts[-1] + event.seconds[-1])
        elif isinstance(event, Wave):  # it begins; what happens in it comes later
            seen.append(event.time)
        else:
            seen.append(event.time + float(getattr(event, "seconds", 0.0)))

    with Processes(graph, workers=2, affinity=HOMES, update=Update(SGD), listeners=[listen]) as runtime:
        runtime.train(rows(*[2] * 20))
    assert seen == sorted(seen)
