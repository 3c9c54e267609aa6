"""The promises of docs/promises.md on the list-reduction RNN, under many seeded schedules (S)."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ampnet import Graph, Inline, Instance, Stream, Update
from ampnet.data.list_reduction import Sequences, buckets, generate
from ampnet.errors import NodeError, PairingError, StallError
from ampnet.events.check import assert_kept
from ampnet.events.log import Backward, EventLog, Played, Pump, Retire, Updated, without_time
from ampnet.events.staleness import staleness_of
from ampnet.message import Messages
from ampnet.models import by_hand as rnn
from ampnet.nodes import Direction
from ampnet.testing import TickClock, assert_at_rest, assert_close, assert_gradients, graph_gradients
from ampnet.testing.oracle import eager_gradients

F64 = torch.float64
HIDDEN = 5
DATA = generate(40, seed=11)
GROUPS = [w for bucket in (3, 1) for w in buckets(DATA, bucket, np.random.default_rng(bucket))][:24]
ADAM = partial(torch.optim.Adam, lr=1e-2)


def instances(data: Sequences = DATA) -> list[Instance]:
    """Buckets of several sequences and single ones, mixed."""
    return [rnn.instance(data, w, HIDDEN, F64) for w in GROUPS]


def build(seed: int = 0) -> Graph:
    return rnn.build(HIDDEN, seed, F64)


def losses(graph: Graph) -> list[Tensor]:
    module = graph.module()
    return [nn.functional.cross_entropy(rnn.eager(module, DATA, w), torch.from_numpy(DATA.labels[w])) for w in GROUPS]


def digest(graph: Graph) -> str:
    out = hashlib.sha256()
    for name, value in graph.module().state_dict().items():
        out.update(name.encode() + value.numpy().tobytes())
    return out.hexdigest()


# P1 pairing


@pytest.mark.parametrize("schedule", ["sweep", "backward-first", "fifo", "random"])
def test_p1_every_forward_message_gets_exactly_one_backward(schedule: str) -> None:
    log = EventLog()
    with Inline(
        build(),
        update=Update(ADAM, 7),
        max_active_keys=5,
        schedule=schedule,
        seed=3,
        max_batch=3,
        waves=False,
        listeners=[log],
    ) as runtime:
        runtime.run([Stream(instances(), True), Stream(instances(), False, "valid")], together=True)
    assert_kept(log)
    sent = sum(len(s) for e in log if isinstance(e, Pump) and e.train for _, s in e.sent)
    assert sent == sum(len(f) for i in instances() for f in i.feeds.values())


@pytest.mark.parametrize("schedule", ["sweep", "backward-first", "fifo", "random"])
def test_p1_every_forward_operation_of_a_wave_gets_exactly_one_backward(schedule: str) -> None:
    log = EventLog()
    how: dict[str, Any] = {"max_active_keys": 5, "wave_size": 2, "schedule": schedule, "seed": 3}
    with Inline(build(), update=Update(ADAM, 7), listeners=[log], **how) as runtime:
        runtime.run([Stream(instances(), True), Stream(instances(), False, "valid")], together=True)
        assert runtime.stats().in_flight == (1 if schedule == "backward-first" else 5)
    assert_kept(log)
    forward, backward = (
        Counter((e.wave, o.node, o.port, o.round) for e in log if isinstance(e, Played) and e.train
                for o in e.operations() if o.direction == direction and (o.wanted or direction))
        for direction in (0, 1)
    )  # fmt: skip
    assert forward == backward and set(forward.values()) == {1}


def test_p1_an_answer_sent_twice_or_to_the_wrong_message_is_named() -> None:
    with Inline(build(), max_active_keys=2, waves=False) as runtime:  # waves call no backward of a node
        graph = runtime.graph
        node = graph.nodes["relu"]
        original = node.backward

        def twice(port: int, messages: Messages) -> Any:
            out = original(port, messages)
            return [*out, *out]

        node.backward = twice  # type: ignore[method-assign]
        with pytest.raises(
            NodeError, match=r"node 'linear1' failed in backward at \(instance=.*never forwarded"
        ) as caught:
            runtime.train(instances())
        assert isinstance(caught.value.__cause__, PairingError)


# P2 gradient truth and P3 schedule independence


def test_p2_gradients_equal_autograd() -> None:
    graph = build()
    assert_gradients(graph, instances(), losses(graph), max_active_keys=8)


def test_p3_two_hundred_random_schedules_and_batch_limits_give_the_same_gradients() -> None:
    graph = build()
    want = eager_gradients(graph, losses(graph))
    given_instances = instances()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        size = [None, 1, 2, 3, 7][seed // 2 % 5]
        how: dict[str, Any] = {"wave_size": size} if seed % 2 else {"max_batch": size, "waves": False}
        keys = int(rng.integers(1, 25))
        got = graph_gradients(graph, given_instances, schedule="random", seed=seed, max_active_keys=keys, **how)
        assert_close(got, want, 1e-10)


@pytest.mark.parametrize("size", [None, 1, 2, 5])
@pytest.mark.parametrize("schedule", ["sweep", "backward-first", "fifo"])
def test_p3_named_schedules_give_the_same_gradients(schedule: str, size: int | None) -> None:
    graph = build()
    for how in ({"wave_size": size}, {"max_batch": size, "waves": False}):
        assert_gradients(graph, instances(), losses(graph), schedule=schedule, max_active_keys=6, **how)


# P4 determinism


def run_logged(seed: int, waves: bool) -> tuple[str, list[dict[str, Any]]]:
    graph, log = build(), EventLog()
    with Inline(
        graph,
        update=Update(ADAM, 3),
        max_active_keys=4,
        wave_size=1,
        schedule="random",
        seed=seed,
        waves=waves,
        listeners=[log],
        clock=TickClock(),
    ) as runtime:
        runtime.train(instances())
    return digest(graph), without_time(log)


@pytest.mark.parametrize("waves", [True, False])
def test_p4_the_same_seed_gives_the_same_log_and_weights_and_another_does_not(waves: bool) -> None:
    first, again, other = run_logged(1, waves), run_logged(1, waves), run_logged(2, waves)
    assert first == again
    assert first[0] != other[0] and first[1] != other[1]


# P5 no leak: the autouse fixture of conftest.py looks at the end of every run; here it is shown to see


def test_p5_a_leak_is_seen_by_name() -> None:
    runtime = Inline(build(), waves=False)
    assert runtime.worker is not None
    runtime.worker.deliver(
        runtime._wiring.forward[next(iter(runtime._wiring.forward))], Direction.FORWARD, _one_message()
    )
    with pytest.raises(AssertionError, match="queue of embedding forward port 0"):
        assert_at_rest(runtime)
    runtime.close()
    assert_at_rest(runtime)
    runtime = Inline(build(), schedule="fifo", max_active_keys=2, wave_size=1)
    runtime.controller.begin([Stream(instances())], together=False, barrier=False)
    runtime.controller.pump()
    with pytest.raises(AssertionError, match="instances staged"):
        assert_at_rest(runtime)
    with torch.no_grad():
        runtime._turn()
    with pytest.raises(AssertionError, match="passages"):
        assert_at_rest(runtime)
    runtime.close()
    assert_at_rest(runtime)


def _one_message() -> Messages:
    from ampnet.state import States

    return Messages(torch.tensor([1]), States.of(instance=[0], t=[0], length=[1]))


# P6 throttle


@settings(max_examples=30)
@given(keys=st.integers(1, 30), seed=st.integers(0, 1000), barrier=st.booleans())
def test_p6_never_too_many_in_flight_and_never_an_idle_pump(keys: int, seed: int, barrier: bool) -> None:
    log = EventLog()
    with Inline(build(), max_active_keys=keys, schedule="random", seed=seed, listeners=[log]) as runtime:
        runtime.run([Stream(instances(), True, "one"), Stream(instances(), True, "two")], barrier=barrier)
    assert_kept(log)
    in_flight = most = 0
    for event in log:
        if isinstance(event, Pump | Retire):
            in_flight += len(event.instances) * (1 if isinstance(event, Pump) else -1)
            assert event.in_flight == in_flight
            most = max(most, in_flight)
    assert most == min(keys, len(GROUPS) * (1 if barrier else 2)) and in_flight == 0


@pytest.mark.parametrize("waves", [True, False])
def test_p6_timeline_of_pumps_with_two_places(waves: bool) -> None:
    """Lengths 2, 5, 2: the third instance is pumped when the first (not the second) retires.

    place 1   [0 ....][2 ....]
    place 2   [1 ..............]
    """
    data = Sequences(np.full((3, 10), 3), np.array([2, 5, 2]), np.array([1, 2, 3]))
    log = EventLog()
    how: dict[str, Any] = {"schedule": "fifo", "wave_size": 1} if waves else {"waves": False}
    with Inline(rnn.build(HIDDEN, 0), max_active_keys=2, listeners=[log], **how) as runtime:
        runtime.train(rnn.instance(data, np.array([i]), HIDDEN) for i in range(3))
    steps = [(type(e).__name__, e.instances) for e in log if isinstance(e, Pump | Retire)]
    assert steps == [
        ("Pump", (0, 1)),
        ("Retire", (0,)),
        ("Pump", (2,)),
        ("Retire", (1,)),
        ("Retire", (2,)),
    ] or steps == [
        ("Pump", (0, 1)),
        ("Retire", (0,)),
        ("Pump", (2,)),
        ("Retire", (2,)),
        ("Retire", (1,)),
    ]


# P7 staleness, P8 update rule: the checker over real logs; by value in tests/update


@pytest.mark.parametrize("waves", [True, False])
@pytest.mark.parametrize("count", ["messages", "instances"])
@pytest.mark.parametrize("frequency", [1, 3, 10])
def test_p7_p8_staleness_and_updates_are_honest(count: str, frequency: int, waves: bool) -> None:
    log = EventLog()
    update = Update(ADAM, frequency, count)  # type: ignore[arg-type]
    how: dict[str, Any] = {"max_active_keys": 6, "schedule": "random", "seed": frequency, "waves": waves}
    with Inline(build(), update=update, listeners=[log], **how) as runtime:
        runtime.run(Stream(instances(), True, f"epoch {i}") for i in range(3))
    assert_kept(log)
    assert max(found.max for found in staleness_of(log).values()) > 0
    if not waves:
        assert max(lag for e in log if isinstance(e, Backward) for lag, _ in e.lags) > 0
    assert any(isinstance(e, Updated) and e.reason == "full" for e in log)


@pytest.mark.parametrize("waves", [True, False])
def test_p7_one_instance_in_flight_is_never_stale_when_instances_are_counted(waves: bool) -> None:
    log = EventLog()
    with Inline(build(), update=Update(ADAM, 1, "instances"), waves=waves, listeners=[log]) as runtime:
        runtime.train(instances())
    found = staleness_of(log)
    assert set(found) == {"embedding", "linear1", "linear2"}
    assert all(one.max == 0 and one.messages > 0 for one in found.values())


# P10 train beside inference


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), keys=st.integers(2, 10))
def test_p10_inference_beside_training_changes_nothing(seed: int, keys: int) -> None:
    """Frozen weights: gradients with inference interleaved are those without; inference alone leaves no trace."""
    graph = build()
    want = eager_gradients(graph, losses(graph))
    before = digest(graph)
    for total in graph.gradients().values():
        total.zero_()
    with Inline(graph, max_active_keys=keys, schedule="random", seed=seed) as runtime:
        runtime.run([Stream(instances(), True), Stream(instances(), False, "valid")], together=True)
    assert_close(dict(graph.gradients()), want, 1e-10)
    with Inline(graph, update=Update(ADAM), schedule="random", seed=seed) as runtime:
        runtime.infer(instances())
        assert all(n.updater.version == 0 and n.updater.counter == 0 for n in graph.parameterised().values())
    assert not any(t.any() for t in graph.gradients().values())
    assert digest(graph) == before


def test_p10_predictions_beside_training_are_those_of_the_frozen_model() -> None:
    graph = build()
    with Inline(graph, update=None, max_active_keys=7, schedule="random", seed=5) as runtime:
        stats = runtime.run(
            [Stream(instances(), True), Stream(instances(), False, "valid", keep_predictions=True)], together=True
        )
    (valid,) = [s for s in stats if not s.train]
    module = graph.module()
    assert sorted(valid.predictions) == list(range(len(GROUPS)))
    for position, where in enumerate(GROUPS):
        ((node, state, rows),) = valid.predictions[position]
        assert node == "loss" and state["length"] == DATA.lengths[where[0]]
        assert_close({"p": rows}, {"p": rnn.eager(module, DATA, where).detach()})


# P12 no silent stall


def test_p12_no_false_alarm_over_many_seeds() -> None:
    for seed in range(40):
        size = 1 + seed % 3
        for how in ({"wave_size": size}, {"max_batch": size, "waves": False}):
            with Inline(build(), max_active_keys=1 + seed % 9, schedule="random", seed=seed, **how) as runtime:
                assert runtime.train(instances()[:8]).instances == 8


def test_p12_a_lost_message_is_named() -> None:
    graph = build()
    node = graph.nodes["relu"]
    original = node.forward

    def lossy(port: int, messages: Messages) -> Any:
        kept = np.flatnonzero(messages.states.t != 2)
        return original(port, messages.take(kept)) if len(kept) else []

    node.forward = lossy  # type: ignore[method-assign]
    with Inline(graph, max_active_keys=3, waves=False) as runtime:  # waves call no forward of a node
        with pytest.raises(StallError) as caught:
            runtime.train(instances())
        text = str(caught.value)
        assert "node 'concat': " in text and "wait for port 'h'" in text and "linear1.cache holds" in text


def test_p12_a_missing_input_is_named() -> None:
    def without_label() -> Iterator[Instance]:
        for instance in instances():
            yield Instance({n: f for n, f in instance.feeds.items() if n != "label"})

    with Inline(build()) as runtime, pytest.raises(StallError, match="of port 'prediction' wait for port 'label'"):
        runtime.train(without_label())
