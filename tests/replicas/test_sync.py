"""What brings replicas together: every policy, with every optimizer, in one process."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet import Graph, Inline, Instance, Replicate, Stream, Sync, Update, replicate
from ampnet.errors import NodeError
from ampnet.events.check import assert_kept, check
from ampnet.events.log import Backward, Epoch, Event, EventLog, Forward, Synced, Updated, without_time
from ampnet.instance import StreamStats
from ampnet.lang import Model, compile, loss
from ampnet.nodes import Function
from ampnet.replicas.member import Member
from ampnet.replicas.sync import KINDS
from ampnet.testing import TickClock, assert_close
from tests.replicas.small import (
    ADAM,
    MODELS,
    MOMENTUM,
    OPTIMIZERS,
    SGD,
    assert_alike,
    assert_equal,
    both_ways,
    case,
    chain,
    copies,
    remembered,
    rows,
    weights,
)

MOVING = ("epoch", "updates", "ring")
"""Policies that average weights."""


def twins(n: int = 2, sync: Sync | str = "epoch", route: Any = "instance", part: Any = None) -> Graph:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, part, n, route=route, sync=sync)
    return graph


def streams(*lengths: int, each: int = 2) -> Iterator[Stream]:
    """Training streams of so many instances, with an inference between any two."""
    for number, count in enumerate(lengths):
        yield Stream(rows(*[each] * count, seed=number), True, f"train {number}")
        yield Stream(rows(1, 2, seed=90 + number), False, f"valid {number}")


def applied(events: list[Event]) -> Counter[str]:
    """How many gradients updates have applied, by replica."""
    out: Counter[str] = Counter()
    for event in events:
        if isinstance(event, Updated):
            out[event.node] += event.count
    return out


def test_settings_that_make_no_sense() -> None:
    for wrong, said in (
        ({"when": "weekly"}, "sync must be one of epoch, updates, ring, shared, gradients; got 'weekly'"),
        ({"every": 0}, "every must be 1 or more, got 0"),
        ({"optimizer": "forget"}, "optimizer must be average or keep, got 'forget'"),
    ):
        with pytest.raises(ValueError, match=said):
            Sync(**wrong)


# Equal, to the bit (P9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("memory", ["average", "keep"])
def test_all_replicas_are_equal_after_every_training_stream(kind: Any, optimizer: str, memory: Any) -> None:
    graph = twins(3, Sync(kind, every=2, optimizer=memory))
    log, ended = EventLog(), []

    def end(stats: StreamStats) -> None:
        ended.append(stats.name)
        if stats.train:
            assert_equal(graph)
            for group in graph.replicas.values():
                first, *others = (remembered(graph, name) for name in group.members)
                for other in others if memory == "average" and kind != "gradients" else ():
                    assert_alike(first, other)

    update = Update(OPTIMIZERS[optimizer], 2)
    with Inline(graph, update=update, max_active_keys=4, listeners=[log]) as runtime:
        runtime.run(streams(11, 1, 6), on_end=end)
        runtime.run(streams(5), on_end=end)
    assert ended == ["train 0", "valid 0", "train 1", "valid 1", "train 2", "valid 2", "train 0", "valid 0"]
    assert_kept(log)
    counted = applied(log.events)
    assert {name: sum(counted[m] for m in group.members) for name, group in graph.replicas.items()} == {
        "linear1": 2 * 23, "linear3": 2 * 23,
    }  # fmt: skip
    if memory == "keep" and kind != "gradients" and optimizer != "sgd":
        states = [remembered(graph, name) for name in ("linear1#1", "linear1#2")]
        with pytest.raises(AssertionError):
            assert_alike(*states)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_under_every_policy(name: str) -> None:
    of = case(name)
    before = {key: value.clone() for key, value in of.model.state_dict().items()}
    try:
        for i, kind in enumerate(KINDS):
            graph, log = of.graph(replicas=Replicate(2 + i % 2, "shortest", Sync(kind, 2))), EventLog()  # type: ignore[arg-type]
            update = Update(OPTIMIZERS[("adam", "sgd", "momentum")[i % 3]], 1 + i % 2, ("messages", "instances")[i % 2])
            with Inline(graph, update=update, max_active_keys=3, listeners=[log]) as runtime:
                for _ in range(2):
                    runtime.train(of.instances(graph))
                    assert_equal(graph)
                runtime.infer(of.instances(graph))
            assert_kept(log)
    finally:
        of.model.load_state_dict(before)


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS), st.integers(2, 4), st.sampled_from(["instance", "position", "round-robin", "shortest"]),
    st.sampled_from(sorted(OPTIMIZERS)), st.integers(1, 4), st.sampled_from(["messages", "instances"]),
    st.integers(1, 3), st.lists(st.integers(0, 8), min_size=1, max_size=4), st.booleans(), st.integers(0, 99),
    st.sampled_from(["sweep", "fifo", "backward-first", "random"]), st.sampled_from(["current", "stash"]),
    st.booleans(),
)  # fmt: skip
def test_any_policy_in_any_order(
    kind: Any, n: int, route: Any, optimizer: str, frequency: int, count: Any, every: int, lengths: list[int],
    together: bool, seed: int, schedule: str, seen: Any, barrier: bool,
) -> None:  # fmt: skip
    """Streams of any length, also empty ones, one by one and together: all promises, and equal weights at the end."""
    part = None if route in ("instance", "shortest") and seed % 2 else "linear*"
    graph, log = twins(n, Sync(kind, every), route, part), EventLog()
    update = Update(OPTIMIZERS[optimizer], frequency, count, weights="current" if kind == "shared" else seen)
    how: dict[str, Any] = {"schedule": schedule, "seed": seed, "max_active_keys": 1 + seed % 6}
    how |= both_ways((None, 1, 3)[seed % 3])[seed // 3 % 2]
    with Inline(graph, update=update, listeners=[log], **how) as runtime:
        ended = runtime.run(streams(*lengths, each=1 + seed % 3), together=together, barrier=barrier and not together)
        assert sum(s.instances for s in ended if s.train) == sum(lengths)
        assert_equal(graph)
    assert check(log) == []


# Means of weights


def test_the_mean_is_the_mean() -> None:
    """n = 2, SGD, one message an instance, by hand: each replica goes its own way, and in the end they meet halfway."""
    graph, instances = chain("linear"), rows(*[1] * 6, seed=3)
    (start, bias), lr = [w.clone() for w in graph.parameterised()["linear1"].updater.weights], 0.05
    replicate(graph, None, 2)
    with Inline(graph, update=Update(SGD), max_active_keys=1) as runtime:
        runtime.train(instances)
    ends = []
    for number in (0, 1):
        w, b = start.clone().requires_grad_(), bias.clone().requires_grad_()
        for instance in instances[number::2]:
            x, y = (instance.feeds[name].payload for name in ("x", "y"))
            assert isinstance(x, Tensor)
            assert isinstance(y, Tensor)
            dw, db = torch.autograd.grad(((x @ w.T + b - y) ** 2).mean(), [w, b])
            w, b = (p.detach().sub(lr * d).requires_grad_() for p, d in ((w, dw), (b, db)))
        ends.append((w.detach(), b.detach()))
    want = {"w": (ends[0][0] + ends[1][0]) / 2, "b": (ends[0][1] + ends[1][1]) / 2}
    for w, b in copies(graph, "linear1"):
        assert_close({"w": w, "b": b}, want)


@pytest.mark.parametrize(("waves", "steps"), [(True, [3.0, 2.0]), (False, [6.0, 3.0])])
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "fused"])
def test_what_optimizers_remember_is_averaged_and_the_steps_are_those_of_the_busiest(
    optimizer: str, waves: bool, steps: list[float]
) -> None:
    """The same run with "keep" says what each had: an update for every instance of its own (waves), or message."""
    states = {}
    for memory in ("keep", "average"):
        graph = twins(2, Sync("epoch", optimizer=memory))
        with Inline(graph, update=Update(OPTIMIZERS[optimizer]), max_active_keys=2, waves=waves) as runtime:
            runtime.train(rows(1, 2, 3, 1, 2))
        states[memory] = [remembered(graph, f"linear1#{i}") for i in (1, 2)]
    for parameter in (0, 1):
        one, two = (state[parameter] for state in states["keep"])
        both = states["average"][0][parameter]
        assert both.keys() == one.keys() == two.keys()
        for name, value in both.items():
            wanted = torch.maximum(one[name], two[name]) if name == "step" else (one[name] + two[name]) / 2
            assert_close({name: value}, {name: wanted})
    if optimizer != "momentum":
        assert [float(state[0]["step"]) for state in states["keep"]] == steps


def test_a_replica_without_an_update_takes_the_memory_of_the_others() -> None:
    """Three replicas and two instances: the third has no momentum to give, and does not count."""
    kept, graph = (twins(3, Sync("epoch", optimizer=memory)) for memory in ("keep", "average"))
    for one in (kept, graph):
        Inline(one, update=Update(MOMENTUM), max_active_keys=2).train(rows(2, 3))
    alone = [remembered(kept, f"linear3#{i}")[0] for i in (1, 2, 3)]
    assert alone[2] == {}
    mean = (alone[0]["momentum_buffer"] + alone[1]["momentum_buffer"]) / 2
    for i in (1, 2, 3):
        assert_close(remembered(graph, f"linear3#{i}")[0], {"momentum_buffer": mean})


def test_a_parameter_of_one_number_has_steps_and_memory_too() -> None:
    """Once, the steps of Adam were averaged where the parameter itself was a single number of the same shape."""

    class Scaled(Model):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.5))

        def forward(self, x: Tensor, y: Tensor) -> None:
            loss(x * self.scale, y, "squared_error")

    data = [tuple(torch.randn(2, 3, generator=torch.Generator().manual_seed(i))) for i in range(5)]
    graph = compile(Scaled(), *data[0], replicas=2)
    with Inline(graph, update=Update(ADAM), max_active_keys=2) as runtime:
        runtime.train(graph.instances(data))
    (group,) = graph.replicas.values()
    assert [float(remembered(graph, name)[0]["step"]) for name in group.members] == [3.0, 3.0]


def test_an_optimizer_that_wants_more_than_gradients_keeps_what_it_remembers() -> None:
    class Shy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            if all(float(p.grad.abs().sum()) == 0 for group in self.param_groups for p in group["params"]):
                raise RuntimeError("a step without a gradient")
            return super().step(closure)

    graph = twins(2)
    with Inline(graph, update=Update(partial(Shy, lr=0.1, momentum=0.9)), max_active_keys=2) as runtime:
        runtime.train(rows(1, 2, 3))
    assert_equal(graph)


# Updates, and rings


def rounds(events: list[Event], group: str) -> dict[int, dict[str, Synced]]:
    out: dict[int, dict[str, Synced]] = defaultdict(dict)
    for event in events:
        if isinstance(event, Synced) and event.group == group:
            out[event.round][event.node] = event
    return out


@pytest.mark.parametrize("how", [{"waves": False}, {"wave_size": 1}, {"wave_size": 1, "schedule": "fifo"}], ids=str)
@pytest.mark.parametrize("kind", ["updates", "ring"])
@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("frequency", [1, 2])
def test_rounds_come_as_often_as_promised(kind: Any, every: int, frequency: int, how: dict[str, Any]) -> None:
    graph, log = twins(2, Sync(kind, every)), EventLog()
    with Inline(graph, update=Update(SGD, frequency), max_active_keys=4, listeners=[log], **how) as runtime:
        runtime.train(rows(*[2] * 30))
        runtime.train(rows(*[2] * 30, seed=1))
    assert_kept(log)
    for group in graph.replicas.values():
        found = rounds(log.events, group.name)
        assert sorted(found) == list(range(1, len(found) + 1))
        total = 60 // frequency if "waves" in how else 30  # updates of a replica in both streams
        assert 2 + 2 * (total // 2 // every) - 2 <= len(found) <= 2 + total // every
        for members in found.values():
            assert set(members) == set(group.members)
        early = [members for number, members in found.items() if number not in (len(found), _last(log.events))]
        for members in early:
            must = group.members if kind == "updates" else group.members[:1]
            assert all(members[name].updates >= every for name in must)


def _last(events: list[Event]) -> int:
    """The round that ended the first stream."""
    end = next(i for i, e in enumerate(events) if isinstance(e, Epoch))
    seen = [e.round for e in events[:end] if isinstance(e, Synced)]
    return max(seen)


def test_no_update_is_lost_while_a_replica_waits() -> None:
    """Instances go to the first replica four times as often, so it waits for the second, and updates late."""
    graph, log = twins(2, Sync("updates", 2), lambda s: s.instance % 5 == 0, "linear*"), EventLog()
    with Inline(graph, update=Update(SGD, 2), max_active_keys=3, listeners=[log]) as runtime:
        runtime.train(rows(*[3] * 40))
    assert_kept(log)
    made = [e for e in log if isinstance(e, Updated)]
    assert {e.reason for e in made} >= {"full", "late"}
    assert max(e.count for e in made if e.reason == "late") > 2
    counted = applied(log.events)
    for name in ("linear1", "linear3"):
        assert counted[f"{name}#1"] + counted[f"{name}#2"] == 120
        assert counted[f"{name}#1"] == 96


@pytest.mark.parametrize("kind", MOVING)
def test_drift_is_what_was_between_the_replicas(kind: Any) -> None:
    graph, log = twins(2, Sync(kind, 2)), EventLog()
    with Inline(graph, update=Update(SGD), max_active_keys=2, listeners=[log]) as runtime:
        runtime.train(rows(*[2] * 8))
    drifts = [e.drift for e in log if isinstance(e, Synced)]
    assert all(0 <= drift < 1 for drift in drifts)
    assert max(drifts) > 0


# Gradients


def test_gradients_together_never_drift_and_a_step_is_that_of_one_model() -> None:
    """n replicas, each with one message of a round, take the step of one model with min_update_frequency n."""
    for n in (2, 3):
        one, many = chain("linear", "tanh", "linear"), twins(n, "gradients")
        instances = rows(*[1] * (4 * n), seed=n)
        with Inline(one, update=Update(MOMENTUM, n), max_active_keys=n, schedule="fifo") as runtime:
            runtime.train(instances)

        def watch(event: Event, graph: Graph = many) -> None:
            if isinstance(event, Forward):  # wherever it is, no round is half done at a node that works
                equal_versions(graph)

        with Inline(many, update=Update(MOMENTUM), max_active_keys=n, schedule="fifo", listeners=[watch]) as runtime:
            runtime.train(instances)
        assert_equal(many)
        for name in ("linear1", "linear3"):
            want = dict(enumerate(one.parameterised()[name].updater.weights))
            for found in copies(many, name):
                assert_close({str(i): w for i, w in enumerate(found)}, {str(i): w for i, w in want.items()})
            assert [many.parameterised()[m].updater.version for m in many.replicas[name].members] == [4] * n


def equal_versions(graph: Graph) -> None:
    """Replicas of one version have the same weights."""
    for group in graph.replicas:
        by_version: dict[int, list[Tensor]] = {}
        for name in graph.replicas[group].members:
            updater = graph.parameterised()[name].updater
            first = by_version.setdefault(updater.version, updater.weights)
            assert all(torch.equal(a, b) for a, b in zip(first, updater.weights, strict=True))


def test_gradients_together_after_a_run_that_was_cut_short() -> None:
    """Once, every replica made the step by itself; after an error they differed for ever, by what optimizers knew."""
    graph = twins(3, "gradients")
    for name, policy in {"adam": Update(ADAM), "momentum": Update(MOMENTUM)}.items():
        with Inline(graph, update=policy, max_active_keys=3) as runtime:
            for step in range(5):
                take, left = Member._take, [7 + step]

                def cut(member: Member, token: Any, left: list[int] = left, take: Any = take) -> Any:
                    left[0] -= 1
                    if left[0] == 0:
                        raise KeyboardInterrupt
                    return take(member, token)

                with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
                    patch.setattr(Member, "_take", cut)
                    runtime.train(rows(*[2] * 9, seed=step))
                runtime.train(rows(*[2] * 6, seed=step))
                assert_equal(graph)
                assert not runtime.held(), name


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("count", ["messages", "instances"])
def test_one_step_together_holds_the_sum_of_all_gradients(average: bool, count: Any) -> None:
    graph, plain = twins(3, "gradients"), chain("linear", "tanh", "linear")
    instances = rows(2, 3, 1, 2, 2)
    policy = Update(partial(torch.optim.SGD, lr=1.0), 100, count, average=average)
    before = weights(plain)
    log = EventLog()
    Inline(graph, update=policy, max_active_keys=5, listeners=[log]).train(instances)
    Inline(plain, update=policy, max_active_keys=5).train(instances)
    assert before["linear1"][0].ne(weights(plain)["linear1"][0]).any()
    for name in ("linear1", "linear3"):
        for found in copies(graph, name):
            mine = {str(i): w for i, w in enumerate(found)}
            assert_close(mine, {str(i): w for i, w in enumerate(plain.parameterised()[name].updater.weights)})
    assert {e.reason for e in log if isinstance(e, Updated)} == {"together"}
    assert applied(log.events).total() == 2 * (10 if count == "messages" else 5)


# Shared weights


@pytest.mark.parametrize(
    ("how", "updates"), [({"waves": False}, 6), ({}, 3), ({"wave_size": 1, "schedule": "fifo"}, 3)], ids=str
)
def test_shared_weights_are_one_memory_and_every_update_is_seen_by_all(how: dict[str, Any], updates: int) -> None:
    """By messages a replica updates with each of its 6; a wave has one instance for each of them."""
    graph = twins(3, "shared")
    updaters = [graph.parameterised()[name].updater for name in graph.replicas["linear1"].members]
    pointers = {tuple(w.data_ptr() for w in updater.weights) for updater in updaters}
    assert len(pointers) == 1
    log = EventLog()
    with Inline(graph, update=Update(SGD), max_active_keys=3, listeners=[log], **how) as runtime:
        runtime.train(rows(*[2] * 9))
    assert {tuple(w.data_ptr() for w in updater.weights) for updater in updaters} == pointers
    assert [updater.version for updater in updaters] == [updates] * 3
    assert_kept(log)


def test_shared_weights_without_memory_are_plain_training() -> None:
    """One instance in flight, SGD: whichever replica makes the update, the course is that of one model."""
    plain, graph = chain("linear", "tanh", "linear"), twins(3, "shared")
    for one in (plain, graph):
        Inline(one, update=Update(SGD, 1, "instances"), max_active_keys=1).train(rows(*[2] * 9))
    for name in ("linear1", "linear3"):
        want = {str(i): w for i, w in enumerate(plain.parameterised()[name].updater.weights)}
        assert_close({str(i): w for i, w in enumerate(copies(graph, name)[1])}, want)


def test_shared_weights_and_streams_that_run_together() -> None:
    """Once, a replica that updated itself while others had yet to be told made the log say that they differ."""
    for seed in range(8):
        graph, log = twins(3, Sync("shared")), EventLog()
        with Inline(
            graph, update=Update(MOMENTUM), max_active_keys=4, listeners=[log], schedule="random", seed=seed
        ) as r:
            r.run([Stream(rows(*[2] * size, seed=size), True, f"{size}") for size in (3, 9, 5)], together=True)
        assert_kept(log)


# Determinism, leaks, staleness, inference (P4, P5, P7, P10)


def recorded(seed: int, kind: Any, schedule: str = "random") -> tuple[Any, dict[str, list[Tensor]]]:
    graph, log = twins(3, Sync(kind, 2), "shortest", "linear*"), EventLog()
    how: dict[str, Any] = {"schedule": schedule, "seed": seed, "clock": TickClock(), "max_active_keys": 4}
    Inline(graph, update=Update(ADAM, 2), listeners=[log], **how).run(streams(7, 5))
    return without_time(log), weights(graph)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_log_and_the_same_weights(kind: Any) -> None:
    first, again, other = recorded(1, kind), recorded(1, kind), recorded(2, kind)
    assert first[0] == again[0]
    assert all(torch.equal(a, b) for name in first[1] for a, b in zip(first[1][name], again[1][name], strict=True))
    assert first[0] != other[0]


@pytest.mark.parametrize("kind", MOVING)
def test_under_stashing_a_backward_sees_the_weights_of_its_forward(kind: Any) -> None:
    """Also where a synchronisation came in between. A Linear's input gradient tells which weights were used."""
    graph, log = twins(2, Sync(kind, 1)), EventLog()
    seen: dict[tuple[str, int, int], Tensor] = {}
    checked = Counter[bool]()
    for name in graph.replicas["linear3"].members:
        node = graph.parameterised()[name]
        _watch(node, seen, checked)
    update = Update(SGD, 1, weights="stash")
    how: dict[str, Any] = {"schedule": "random", "max_active_keys": 8, "max_batch": 2, "waves": False}
    with Inline(graph, update=update, listeners=[log], seed=5, **how) as runtime:
        for epoch in range(3):
            runtime.train(rows(*[2] * 16, seed=epoch))
    assert_kept(log)
    assert any(lag for e in log if isinstance(e, Backward) for lag, _ in e.lags)
    assert checked[True] > 10
    assert checked[False] > 10


def _watch(node: Any, seen: dict[tuple[str, int, int], Tensor], checked: Counter[bool]) -> None:
    forward, backward = node.forward, node.backward

    def forwards(port: int, messages: Any) -> Any:
        for i, t in zip(messages.states.instance.tolist(), messages.states.t.tolist(), strict=True):
            seen[node.name, i, t] = node.updater.weights[0].clone()
        return forward(port, messages)

    def backwards(port: int, messages: Any) -> Any:
        now = node.updater.weights[0].clone()
        out = backward(port, messages)
        given = {(i, t): g for i, t, g in _rows(messages)}
        for _, _, sent in out:
            for i, t, g in _rows(sent):
                then = seen.pop((node.name, i, t))
                assert_close({"dx": g}, {"dx": given[i, t] @ then})
                checked[torch.equal(then, now)] += 1
        return out

    node.forward, node.backward = forwards, backwards


def _rows(messages: Any) -> Iterator[tuple[int, int, Tensor]]:
    return zip(messages.states.instance.tolist(), messages.states.t.tolist(), messages.payload, strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_inference_changes_nothing(kind: Any) -> None:
    graph = twins(3, Sync(kind, 1))
    with Inline(graph, update=Update(ADAM), max_active_keys=3) as runtime:
        runtime.train(rows(*[2] * 7))
        before, memory = weights(graph), [remembered(graph, name) for name in graph.parameterised()]
        memory = [[{k: v.clone() for k, v in state.items()} for state in states] for states in memory]
        versions = [node.updater.version for node in graph.parameterised().values()]
        runtime.infer(rows(*[3] * 8, seed=4))
        assert versions == [node.updater.version for node in graph.parameterised().values()]
        for states, name in zip(memory, graph.parameterised(), strict=True):
            assert_alike(states, remembered(graph, name))
    for name, now in weights(graph).items():
        assert all(torch.equal(a, b) for a, b in zip(before[name], now, strict=True))


@settings(max_examples=15)
@given(st.sampled_from(KINDS), st.integers(0, 999))
def test_inference_beside_training_changes_nothing(kind: Any, seed: int) -> None:
    """Two runs that differ in the numbers of the inference that runs beside them only."""
    found = []
    for other in (1, 2):
        graph = twins(2, Sync(kind, 2))
        with Inline(graph, update=Update(MOMENTUM), max_active_keys=3, schedule="random", seed=seed) as runtime:
            aside = Stream(rows(*[1, 2] * 4, seed=other), False, "valid")
            runtime.run([Stream(rows(*[2] * 8, seed=seed), True, "train"), aside], together=True)
        found.append(weights(graph))
    for name, now in found[0].items():
        assert all(torch.equal(a, b) for a, b in zip(found[1][name], now, strict=True))


def breaking(kind: Any, n: int = 2) -> tuple[Graph, list[bool]]:
    """x -> linear1 -> trap -> loss, whole in copies; the trap fails while the list says so."""
    graph, armed = chain("linear", "tanh", "linear"), [False]

    def trap(x: Tensor) -> Tensor:
        if armed[0] and bool((x.abs().sum(1) > 0).any()):
            raise ValueError("a trap")
        return x * 1.0

    node = Function(trap)
    node.name = "tanh2"
    graph.nodes["tanh2"] = node
    replicate(graph, None, n, sync=Sync(kind, 2))
    return graph, armed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3])
def test_after_an_error_in_a_replica_the_next_run_starts_with_equal_replicas(kind: Any, n: int) -> None:
    graph, armed = breaking(kind, n)
    log = EventLog()
    with Inline(graph, update=Update(MOMENTUM, 1), max_active_keys=4, listeners=[log]) as runtime:
        runtime.train(rows(*[2] * 6))
        data = rows(*[2] * 9, seed=1)

        def instances() -> Iterator[Instance]:
            yield from data[:7]
            armed[0] = True
            yield from data[7:]

        with pytest.raises(NodeError, match=r"node 'tanh2#\d' failed in forward .* a trap"):
            runtime.train(instances())
        armed[0] = False
        assert not runtime.held()
        started: list[None] = []

        def check_start() -> Iterator[Instance]:
            assert_equal(graph)
            started.append(None)
            yield from rows(*[2] * 5)

        runtime.train(check_start())
        assert started
        assert_equal(graph)
        assert runtime.infer(rows(2)).instances == 1
    assert_kept(log, complete=False)


def test_weights_loaded_after_an_error_are_not_averaged_away() -> None:
    """Once, replicas took their mean at the start of the run after a failed one, whatever had been loaded meanwhile."""
    graph, armed = breaking("epoch", 3)
    with Inline(graph, update=Update(SGD), max_active_keys=3) as runtime:
        runtime.train(rows(*[2] * 6))
        good = {name: value.clone() for name, value in graph.module().state_dict().items()}
        data = rows(*[2] * 9, seed=1)

        def instances() -> Iterator[Instance]:
            yield from data[:7]
            armed[0] = True
            yield from data[7:]

        with pytest.raises(NodeError):
            runtime.train(instances())
        armed[0] = False
        graph.module().load_state_dict(good)
        runtime.infer(rows(1, 1, 1))
    assert_equal(graph)
    now = graph.module().state_dict()
    assert all(torch.equal(now[name], value) for name, value in good.items())


def test_a_run_that_fails_before_it_trains_changes_no_weight() -> None:
    """Once, the mean of seven equal weights was taken, which is not always that weight again."""
    graph = twins(7)
    with Inline(graph, update=Update(SGD), max_active_keys=3) as runtime:
        runtime.train(rows(*[2] * 9))
        before = weights(graph)
        for _ in range(3):
            with pytest.raises(ValueError, match="give together or barrier"):
                runtime.run([Stream(rows(1))], together=True, barrier=True)
        runtime.infer(rows(1))
    for name, now in weights(graph).items():
        assert all(torch.equal(a, b) for a, b in zip(before[name], now, strict=True))


# Streams


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [{}, {"together": True}, {"barrier": True}])
def test_many_streams_and_empty_ones(kind: Any, how: dict[str, Any]) -> None:
    graph, log = twins(3, Sync(kind, 2)), EventLog()
    names: list[str] = []
    given = [
        Stream([], True, "nothing"),
        Stream(rows(2, 3, 1), True, "a"),
        Stream([], True, "none"),
        Stream(rows(1), False, "b"),
        Stream(iter(rows(*[2] * 7)), True, "c"),
        Stream([], False, "no"),
        Stream(rows(2), True, "d"),
    ]
    with Inline(graph, update=Update(ADAM, 3), max_active_keys=4, listeners=[log]) as runtime:
        runtime.run(given, on_end=lambda stats: names.append(stats.name), **how)
        if not how.get("together"):
            assert names == ["nothing", "a", "none", "b", "c", "no", "d"]
        assert sorted(names) == sorted(stream.name for stream in given)
        assert_equal(graph)
        assert runtime.run([]) == []
    assert_kept(log)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [False, True])
def test_stop_in_the_middle(kind: Any, together: bool) -> None:
    graph, log = twins(2, Sync(kind, 2)), EventLog()

    def endless() -> Iterator[Instance]:
        for number in itertools.count():
            if number == 25:
                runtime.stop()
            yield from rows(2, seed=number)

    with Inline(graph, update=Update(SGD, 3), max_active_keys=5, listeners=[log]) as runtime:
        stats = runtime.run([Stream(endless(), True, "a"), Stream(rows(*[1] * 40), True, "b")], together=together)
        assert not all(s.complete for s in stats)
        assert_equal(graph)
        runtime.train(rows(2, 2))
    assert_kept(log)


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_run(kind: Any) -> None:
    graph = twins(3, Sync(kind, 2))

    def interrupted() -> Iterator[Instance]:
        yield from rows(*[2] * 10)
        raise KeyboardInterrupt

    log = EventLog()
    with Inline(graph, update=Update(MOMENTUM), max_active_keys=4, listeners=[log]) as runtime:
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                runtime.train(interrupted())
            assert not runtime.held()
        runtime.train(rows(2, 2))
        assert_equal(graph)
    assert_kept(log, complete=False)


def test_a_learning_rate_schedule_steps_once_an_epoch_at_every_replica() -> None:
    for kind in KINDS:
        graph = twins(2, Sync(kind, 2))  # type: ignore[arg-type]
        update = Update(SGD, schedule=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5))
        with Inline(graph, update=update, max_active_keys=2) as runtime:
            for _ in range(3):
                runtime.train(rows(*[2] * 4))
        steppers = [name for name in graph.parameterised() if kind != "gradients" or name.endswith("#1")]
        rates = [graph.parameterised()[n].updater.optimizer.param_groups[0]["lr"] for n in steppers]  # type: ignore[union-attr]
        assert rates == pytest.approx([0.05 / 8] * len(steppers))


def test_clipping_and_a_frozen_part() -> None:
    for kind in KINDS:
        graph, log = twins(2, Sync(kind, 2)), EventLog()  # type: ignore[arg-type]
        before = weights(graph)
        update = Update(SGD, clip_norm=1e-3)
        with Inline(graph, update=update, updates={"linear3": None}, max_active_keys=3, listeners=[log]) as runtime:
            runtime.train(rows(*[2] * 6))
        now = weights(graph)
        assert all(torch.equal(now[f"linear3#{i}"][0], before["linear3#1"][0]) for i in (1, 2))
        assert 0 < float((now["linear1#1"][0] - before["linear1#1"][0]).norm()) < 1e-2
        assert_kept(log)


def test_narrow_weights_are_averaged_in_float32() -> None:
    graph = chain("linear").to(torch.bfloat16)
    replicate(graph, "linear1", 3)
    weight = torch.tensor([1.0, 1.0078125, 1.0])
    for i, value in enumerate(weight, start=1):
        graph.parameterised()[f"linear1#{i}"].updater.weights[0].fill_(float(value))
    updaters = [graph.parameterised()[f"linear1#{i}"].updater for i in (1, 2, 3)]
    graph.replicas["linear1"].average(updaters)
    assert {float(u.weights[0][0, 0]) for u in updaters} == {float(weight.mean().bfloat16())}
    assert np.isfinite(float(updaters[0].weights[0].sum()))
