"""Several waves in flight: gradients do not depend on it (P3), the throttle holds (P6), staleness is exact (P7)."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, Stream, Update
from ampnet.events.check import assert_kept
from ampnet.events.log import Event, EventLog, Played, Pump, Retire, Wave
from ampnet.events.staleness import StalenessMeter, staleness_of
from ampnet.nodes import Linear
from ampnet.nodes.span import Span
from ampnet.testing import assert_close
from ampnet.update.updater import Updater
from tests.replicas.small import taken
from tests.wave.both import NAMES, Outcome, assert_same, model, outcome, player_of
from tests.wave.test_gradients import F64, chain, rows_of

SGD = partial(torch.optim.SGD, lr=0.1)
ORDERS = [("fifo", 0), ("sweep", 0), ("random", 1), ("random", 2), ("random", 3)]


# Frozen weights: the order decides nothing


@pytest.fixture(scope="module")
def alone() -> Callable[[str], Outcome]:
    """By model: what comes of its instances one at a time."""
    known: dict[str, Outcome] = {}

    def one(name: str) -> Outcome:
        if name not in known:
            known[name] = outcome(*model(name), waves=True, max_active_keys=1)
        return known[name]

    return one


@pytest.mark.parametrize("keys", [2, 5, 8])
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_waves_in_flight_are_those_of_one_at_a_time(
    name: str, size: int, keys: int, alone: Callable[[str], Outcome]
) -> None:
    graph, instances = model(name)
    want = alone(name)
    for schedule, seed in ORDERS:
        how: dict[str, Any] = {"schedule": schedule, "seed": seed, "max_active_keys": keys, "wave_size": size}
        assert_same(outcome(graph, instances, waves=True, **how), want)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_waves_again_and_again_in_flight_at_once(name: str) -> None:
    """A layout that comes again has memory of its own. Two passages of the same instances must not share it."""
    graph, instances = model(name)
    few = instances[:2]
    with Inline(graph) as runtime:
        runtime.train(few)
    want = {parameter: 4 * total for parameter, total in taken(graph).items()}
    for schedule, seed in ORDERS:
        with Inline(graph, schedule=schedule, seed=seed, max_active_keys=6, wave_size=1) as runtime:
            for _ in range(2):
                runtime.train(few * 4)
                assert_close(taken(graph), want)


def test_training_and_inference_in_flight_together() -> None:
    graph, instances = model("sentiment")
    want = outcome(graph, instances, waves=True)
    for schedule, seed in ORDERS:
        with Inline(graph, schedule=schedule, seed=seed, max_active_keys=5, wave_size=1) as runtime:
            train, valid = sorted(
                runtime.run([Stream(instances, True), Stream(instances, False, "valid")], together=True),
                key=lambda s: s.name,
            )
            assert player_of(runtime).instances == 2 * len(instances)
        assert_close(taken(graph), want.gradients)
        assert (train.loss, valid.loss) == pytest.approx((want.train.loss, want.valid.loss), rel=1e-10)


# The throttle


@pytest.mark.parametrize("size", [None, 1, 2, 3])
@pytest.mark.parametrize("keys", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("schedule", ["backward-first", "fifo", "sweep", "random"])
def test_max_active_keys_is_reached_and_never_exceeded(schedule: str, keys: int, size: int | None) -> None:
    graph, instances = model("list-reduction")
    log = EventLog()
    with Inline(graph, schedule=schedule, max_active_keys=keys, wave_size=size, listeners=[log]) as runtime:
        runtime.train(instances * 2)
        stats = runtime.stats()
    assert_kept(log)
    in_flight, most = set[int](), 0
    for event in log:
        if isinstance(event, Pump):
            assert not in_flight & set(event.instances)
            in_flight |= set(event.instances)
        elif isinstance(event, Retire):
            assert in_flight >= set(event.instances)
            in_flight -= set(event.instances)
        elif isinstance(event, Wave):
            assert set(event.instances) <= in_flight
            assert len(event.instances) <= (size or keys)
        most = max(most, len(in_flight))
        assert len(in_flight) <= keys
    assert most == keys
    assert not in_flight
    assert stats.instances == 2 * len(instances)
    if schedule == "backward-first":
        assert stats.in_flight == 1
    elif size == 1 and schedule != "random":
        assert stats.in_flight == keys


# Exact staleness
#
#     x -> n0 -> n1 -> n2 -> loss        a wave is one instance; every node updates after every instance
#
# The operations of a wave, in order: two inputs, n0, n1, n2, loss, and the same backward (inputs have none, but take a
# turn). "fifo": waves take turns, one operation each, the one that has waited longest first; as long as a place is free
# and an instance waits, its wave begins before anything else is played. Two in flight, a and b; capitals are backward:
#
#     a.in b.in a.in b.in   a0 b0   a1 b1   a2 b2   a.loss b.loss   A.loss B.loss   A2 B2   A1 B1   A0 B0   ...
#                                                                                      |       |       |
#                                  n2 updates between A2 and B2, so B2 has staleness 1; likewise n1 and n0
#
# So of two instances one has staleness 0 and one 1, at every node. The next waves begin as places fall free.

_NODES = ("n0", "n1", "n2")
_OPERATIONS = ("in", "in", *_NODES, "loss")


def simulated(waves: int, in_flight: int) -> dict[str, Counter[int]]:
    """The rule of "fifo", written down once more: (staleness -> messages) of each node."""
    forward = [(name, False) for name in _OPERATIONS]
    script = [*forward, *((name, True) for name, _ in reversed(forward))]
    version = Counter[str]()
    saw: dict[int, dict[str, int]] = {}
    lags: dict[str, Counter[int]] = {name: Counter() for name in _NODES}
    at: dict[int, int] = {}  # by wave under way: operations played
    turn: dict[int, int] = {}  # by wave under way: when it was played last
    begun = now = 0
    while begun < waves or at:
        now += 1
        if begun < waves and len(at) < in_flight:  # a place is free: a wave begins, and plays its first operation
            wave, begun = begun, begun + 1
            at[wave], saw[wave] = 0, {}
        else:
            wave = min(at, key=lambda w: turn[w])
        name, back = script[at[wave]]
        if name in version or name in _NODES:
            if back:
                lags[name][version[name] - saw[wave][name]] += 1
                version[name] += 1  # its counter is full: the update is made before anybody else plays
            else:
                saw[wave][name] = version[name]
        at[wave], turn[wave] = at[wave] + 1, now
        if at[wave] == len(script):
            del at[wave], turn[wave]
    return lags


def three() -> Graph:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return chain(*(Linear(4, 4, dtype=F64) for _ in range(3)))


def test_the_simulation_gives_the_numbers_of_the_drawing() -> None:
    assert simulated(2, 1) == {name: Counter({0: 2}) for name in _NODES}
    assert simulated(2, 2) == {name: Counter({0: 1, 1: 1}) for name in _NODES}
    assert simulated(3, 3) == {name: Counter({0: 1, 1: 1, 2: 1}) for name in _NODES}


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5])
@pytest.mark.parametrize("schedule", ["backward-first", "fifo"])
def test_staleness_is_exact(schedule: str, in_flight: int) -> None:
    count = 12
    log, meter, graph = EventLog(), StalenessMeter(), three()
    how: dict[str, Any] = {"max_active_keys": in_flight, "wave_size": 1, "schedule": schedule}
    with Inline(graph, update=Update(SGD, 1, "instances"), listeners=[log, meter], **how) as runtime:
        runtime.train(rows_of(*[1] * count))
        assert runtime.stats().in_flight == (1 if schedule == "backward-first" else in_flight)
    assert_kept(log)
    want = simulated(count, 1 if schedule == "backward-first" else in_flight)
    assert {name: found.histogram for name, found in staleness_of(log).items()} == want
    assert {name: found.histogram for name, found in meter.nodes().items()} == want
    assert all(graph.parameterised()[name].updater.version == count for name in _NODES)
    if schedule == "backward-first":
        assert want == {name: Counter({0: count}) for name in _NODES}
    elif in_flight > 1:
        assert all(sum(lag * n for lag, n in want[name].items()) > 0 for name in _NODES)


@pytest.mark.parametrize("in_flight", [1, 2, 3, 5])
def test_staleness_is_the_same_whether_somebody_looks_or_not(in_flight: int) -> None:
    """A meter hears sums only, so operations are not traced; and the weights are the same to the bit."""
    found, weights = [], []
    for listeners in ([StalenessMeter()], [StalenessMeter(), EventLog()], []):
        graph = three()
        how: dict[str, Any] = {"max_active_keys": in_flight, "wave_size": 1, "schedule": "fifo"}
        with Inline(graph, update=Update(SGD, 1, "instances"), listeners=listeners, **how) as runtime:
            runtime.train(rows_of(*[1] * 9))
        weights.append([w.clone() for node in graph.parameterised().values() for w in node.updater.weights])
        found += [one.nodes() for one in listeners if isinstance(one, StalenessMeter)]
    assert found[0] == found[1]
    assert all(torch.equal(a, b) for other in weights[1:] for a, b in zip(weights[0], other, strict=True))


def test_waves_take_turns_under_fifo_and_follow_one_another_under_backward_first() -> None:
    """Who played, wave by wave, as the drawing above has it for two in flight."""
    played: dict[str, list[int]] = {}
    for schedule in ("fifo", "backward-first"):
        log = EventLog()
        how: dict[str, Any] = {"max_active_keys": 2, "wave_size": 1, "schedule": schedule}
        with Inline(three(), listeners=[log], **how) as runtime:
            runtime.train(rows_of(1, 1))
        played[schedule] = [event.wave for event in log if isinstance(event, Played) for _ in event.nodes]
    assert played["backward-first"] == sorted(played["backward-first"])
    forwards = played["fifo"][: 2 * len(_OPERATIONS)]
    assert forwards == [1, 2] * len(_OPERATIONS)


# Which weights a backward sees


def pair() -> list[Tensor]:
    """The start weights of `three`."""
    return [w.clone() for node in three().parameterised().values() for w in node.updater.weights]


def _forward(ws: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """The input of each layer, and the prediction."""
    out = [x]
    for w, b in zip(ws[::2], ws[1::2], strict=True):
        out.append(out[-1] @ w.t() + b)
    return out


def two_in_step(instances: Sequence[Instance], stash: bool, lr: float) -> list[Tensor]:
    """Two waves in step (see the drawing), by hand: A updates every layer just before B goes back through it.

    Both went forward with the start weights. With "stash" B's gradients are those of the start weights; else the
    gradient that B hands from a layer to the one before it is multiplied by weights that A has updated.
    """
    start, now = pair(), pair()
    data = [(_payload(one, "x"), _payload(one, "label")) for one in instances]
    kept = [_forward(start, x) for x, _ in data]
    g = [2 * (acts[-1] - y) / y.numel() for acts, (_, y) in zip(kept, data, strict=True)]
    for layer in (2, 1, 0):
        for wave in (0, 1):
            seen = start if stash else now
            dx = g[wave] @ seen[2 * layer]
            now[2 * layer] = now[2 * layer] - lr * g[wave].t() @ kept[wave][layer]
            now[2 * layer + 1] = now[2 * layer + 1] - lr * g[wave].sum(0)
            g[wave] = dx
    return now


def _payload(instance: Instance, name: str) -> Tensor:
    payload = instance.feeds[name].payload
    assert payload is not None
    return payload


@pytest.mark.parametrize("weights", ["current", "stash"])
def test_the_backward_of_a_stale_wave_sees_the_weights_it_should(weights: Any) -> None:
    instances = rows_of(1, 1)
    graph = three()
    update = Update(SGD, 1, "instances", weights=weights)
    with Inline(graph, update=update, max_active_keys=2, wave_size=1, schedule="fifo") as runtime:
        runtime.train(instances)
        assert runtime.stats().in_flight == 2
        assert all(node.updater.stashed() == 0 for node in graph.parameterised().values())
    got = [w for node in graph.parameterised().values() for w in node.updater.weights]
    names = [str(i) for i in range(6)]
    by_hand = {stash: dict(zip(names, two_in_step(instances, stash, 0.1), strict=True)) for stash in (True, False)}
    assert_close(dict(zip(names, got, strict=True)), by_hand[weights == "stash"], 1e-12)
    assert not torch.allclose(by_hand[True]["0"], by_hand[False]["0"], atol=1e-6)


class Noted(Linear):
    """Notes which weights an operation had forward and backward."""

    def __init__(self) -> None:
        super().__init__(4, 4, dtype=F64)
        self.met: dict[int, Tensor] = {}
        self.same: list[bool] = []

    def run(self, span: Span) -> None:
        self.met[id(span)] = span.w[0].clone()
        super().run(span)

    def back(self, span: Span) -> None:
        self.same.append(torch.equal(self.met.pop(id(span)), span.w[0]))
        super().back(span)


@pytest.mark.parametrize("weights", ["current", "stash"])
@pytest.mark.parametrize(("schedule", "seed"), ORDERS)
def test_stashed_weights_of_many_waves(schedule: str, seed: int, weights: Any) -> None:
    graph = chain(Noted(), Noted(), Noted())
    how: dict[str, Any] = {"schedule": schedule, "seed": seed, "max_active_keys": 6, "wave_size": 2}
    most = Counter[str]()

    def look(event: Event) -> None:
        for name, node in graph.parameterised().items():
            most[name] = max(most[name], node.updater.stashed())

    with Inline(graph, update=Update(SGD, 2, "instances", weights=weights), listeners=[look], **how) as runtime:
        for _ in range(3):
            runtime.train(rows_of(1, 2, 3, 1, 2, 1, 1, 1, 4))
    for name, node in graph.parameterised().items():
        assert isinstance(node, Noted)
        assert not node.met
        assert len(node.same) >= 15
        assert all(node.same) if weights == "stash" else not all(node.same)
        assert node.updater.stashed() == 0
        assert (1 <= most[name] <= 3) if weights == "stash" else most[name] == 0


@pytest.mark.parametrize("weights", ["stash", "estimate", "predict"])
@pytest.mark.parametrize("name", ["list-reduction-lstm", "sentiment", "qm9"])
def test_an_ended_wave_leaves_no_weights_behind(name: str, weights: Any) -> None:
    """Once a layout that was kept held the copies of weights of its last wave, and passages were freed by the cycle
    collector only: two workers on sentiment took 20 GB in two epochs, until the system killed one."""
    graph, instances = model(name)
    before = {key: value.clone() for key, value in graph.module().state_dict().items()}
    update, draw = Update(SGD, 1, "instances", weights=weights), random.Random(0)
    counts = list[int]()
    with Inline(graph, update=update, max_active_keys=6, wave_size=2, schedule="fifo") as runtime:
        gc.collect()
        gc.disable()
        try:
            for _ in range(2):
                for _ in range(12):
                    runtime.train(draw.choices(instances, k=12))  # other waves every time
                counts.append(_like_weights(graph))
        finally:
            gc.enable()
            graph.module().load_state_dict(before)
        assert runtime.stats().in_flight > 1
    assert counts[1] <= counts[0] + 3 * len(graph.parameterised()), counts


def _like_weights(graph: Graph) -> int:
    """The number of live tensors, each with memory of its own, that have the shape of a weight matrix."""
    shapes = {w.shape for node in graph.parameterised().values() for w in node.updater.weights if w.dim() > 1}
    found = [o for o in gc.get_objects() if issubclass(type(o), Tensor) and o.shape in shapes]
    return len({tensor.untyped_storage().data_ptr() for tensor in found})


@pytest.mark.parametrize("name", ["list-reduction-lstm", "sentiment", "qm9", "by-hand"])
def test_one_wave_at_a_time_makes_no_copy_of_any_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, instances = model(name)
    before = {key: value.clone() for key, value in graph.module().state_dict().items()}
    kept, original = list[int](), Updater._keep_version

    def keep(self: Updater) -> None:
        held = self.stashed()
        original(self)
        kept.append(self.stashed() - held)

    monkeypatch.setattr(Updater, "_keep_version", keep)
    try:
        with Inline(graph, update=Update(SGD, 2, "instances", weights="stash"), max_active_keys=4) as runtime:
            runtime.train(instances)
            runtime.infer(instances)
            assert all(node.updater.stashed() == 0 for node in graph.parameterised().values())
        assert kept
        assert set(kept) == {0}
    finally:
        graph.module().load_state_dict(before)


def test_an_inference_in_flight_sees_one_version_of_each_node() -> None:
    """Beside training, with updates in between: a node's weights are those of when the wave came to it first."""
    graph, instances = model("list-reduction")
    before = {key: value.clone() for key, value in graph.module().state_dict().items()}
    try:
        log = EventLog()
        how: dict[str, Any] = {"schedule": "random", "seed": 3, "max_active_keys": 6, "wave_size": 1}
        with Inline(graph, update=Update(SGD, 1, "instances"), listeners=[log], **how) as runtime:
            runtime.run([Stream(instances * 2, True), Stream(instances * 2, False, "valid")], together=True)
            assert all(node.updater.stashed() == 0 for node in graph.parameterised().values())
        assert_kept(log)
        versions: dict[tuple[int, str], set[int]] = {}
        for event in (e for e in log if isinstance(e, Played) and not e.train):
            for op in event.operations():
                if op.version is not None:
                    versions.setdefault((event.wave, op.node), set()).add(op.version - op.lag)
        assert len(versions) > 10
        assert any(version for found in versions.values() for version in found)
        assert all(len(found) == 1 for found in versions.values())
    finally:
        graph.module().load_state_dict(before)
