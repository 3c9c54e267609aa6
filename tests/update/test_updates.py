"""Updates: with one instance in flight and one update per instance, training is minibatch training in plain torch.

And promise P8: a node updates when its own counter reaches its own frequency, and nothing is left over after an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ampnet import Graph, GraphError, Inline, Update
from ampnet.data.list_reduction import buckets, generate
from ampnet.errors import NodeError
from ampnet.events.log import EventLog, Updated
from ampnet.models import by_hand as rnn
from ampnet.testing import assert_close

F64 = torch.float64
DATA = generate(120, seed=3)
WHERE = list(buckets(DATA, 20, np.random.default_rng(0)))


def build(seed: int = 0) -> Graph:
    return rnn.build(hidden=8, seed=seed, dtype=F64)


def instances() -> list[Any]:
    return [rnn.instance(DATA, where, 8, F64) for where in WHERE]


def weights(graph: Graph) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in graph.module().named_parameters()}


OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(torch.optim.Adam, lr=3e-3),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
}


def plain_torch(
    make: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
    epochs: int,
    decay: float = 1.0,
    clip: float | None = None,
) -> dict[str, Tensor]:
    graph = build()
    module = graph.module()
    # Clipping is per node, so the plain run has an optimizer and a clip for each as well.
    optimizers = [make(list(m.parameters())) for m in module.values()]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, decay) for o in optimizers]
    for _ in range(epochs):
        for where in WHERE:
            for o in optimizers:
                o.zero_grad()
            labels = torch.from_numpy(DATA.labels[where])
            nn.functional.cross_entropy(rnn.eager(module, DATA, where), labels).backward()
            for m, o in zip(module.values(), optimizers, strict=True):
                if clip is not None:
                    nn.utils.clip_grad_norm_(m.parameters(), clip)
                o.step()
        for s in schedules:
            s.step()
    return weights(graph)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_instance_in_flight_and_one_update_each_is_minibatch_training(name: str) -> None:
    graph = build()
    update = Update(OPTIMIZERS[name], min_update_frequency=1, count="instances")
    with Inline(graph, update=update, max_active_keys=1) as runtime:
        for _ in range(3):
            runtime.train(instances())
    assert_close(weights(graph), plain_torch(OPTIMIZERS[name], 3), 1e-10)


def test_learning_rate_schedules_and_clipping_are_those_of_torch() -> None:
    graph = build()
    schedule = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    update = Update(OPTIMIZERS["sgd"], count="instances", schedule=schedule, clip_norm=0.05)
    with Inline(graph, update=update) as runtime:
        for _ in range(3):
            runtime.train(instances())
    assert_close(weights(graph), plain_torch(OPTIMIZERS["sgd"], 3, 0.5, 0.05), 1e-10)


def test_an_update_of_several_instances_is_a_larger_minibatch() -> None:
    """Six instances, frequency 4: updates of four and, at the end of the epoch, of the two left over."""
    graph, twin = build(), build()
    log = EventLog()
    update = Update(OPTIMIZERS["sgd"], min_update_frequency=4, count="instances")
    with Inline(graph, update=update, listeners=[log]) as runtime:
        runtime.train(instances()[:6])
    assert [(e.node, e.count, e.reason) for e in log if isinstance(e, Updated) and e.node == "linear1"] == [
        ("linear1", 4, "full"),
        ("linear1", 2, "flush"),
    ]
    module = twin.module()
    optimizer = OPTIMIZERS["sgd"](list(module.parameters()))
    for group in (WHERE[:4], WHERE[4:6]):
        optimizer.zero_grad()
        losses = [
            nn.functional.cross_entropy(rnn.eager(module, DATA, w), torch.from_numpy(DATA.labels[w])) for w in group
        ]
        torch.stack(losses).mean().backward()
        optimizer.step()
    assert_close(weights(graph), weights(twin), 1e-10)


def test_counting_messages_cuts_batches_where_the_counter_fills() -> None:
    """Every full update holds exactly its frequency, whatever the size of the batches that come."""
    graph, log = build(), EventLog()
    update = Update(OPTIMIZERS["sgd"], min_update_frequency=4)
    with Inline(
        graph,
        update=update,
        updates={"linear2": update.but(min_update_frequency=2)},
        max_active_keys=6,
        waves=False,  # a wave is not cut: for it the frequency is a minimum
        listeners=[log],
    ) as runtime:
        runtime.train(instances())
    steps = sum(int(DATA.lengths[w[0]]) for w in WHERE)
    by_node: dict[str, list[Updated]] = {}
    for event in log:
        if isinstance(event, Updated):
            by_node.setdefault(event.node, []).append(event)
    assert [e.count for e in by_node["linear1"]] == [4] * (steps // 4) + ([steps % 4] if steps % 4 else [])
    assert [e.count for e in by_node["linear2"]] == [2] * (len(WHERE) // 2) + ([1] if len(WHERE) % 2 else [])
    assert [e.version for e in by_node["linear1"]] == list(range(1, len(by_node["linear1"]) + 1))


def test_the_same_gradients_through_a_hand_run_optimizer_give_the_same_weights() -> None:
    """P8, by value: the sums a node had when it updated, fed to a torch optimizer by hand."""
    graph = build()
    node = graph.parameterised()["linear1"]
    seen: list[list[Tensor]] = []
    original = node.updater.apply

    def apply(reason: str = "full") -> Any:
        count = max(node.updater.counter, 1)
        if node.updater.policy is not None and node.updater._touched:
            seen.append([s.clone() / count for s in node.updater.sums])
        return original(reason)

    node.updater.apply = apply  # type: ignore[method-assign]
    twin = build().parameterised()["linear1"]
    update = Update(OPTIMIZERS["adam"], min_update_frequency=5, remedies=())
    with Inline(graph, update=update, max_active_keys=4, waves=False) as runtime:  # a wave makes fewer, larger updates
        runtime.train(instances())
    optimizer = OPTIMIZERS["adam"](list(twin.parameters.values()))
    for gradients in seen:
        for parameter, gradient in zip(twin.parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()
    assert len(seen) > 3
    assert_close(
        {n: p.detach() for n, p in node.parameters.items()}, {n: p.detach() for n, p in twin.parameters.items()}, 1e-12
    )


def test_sums_and_values_can_be_clipped_and_left_undivided() -> None:
    graph = build()
    node = graph.parameterised()["linear2"]
    before = weights(graph)["linear2.bias"]
    update = Update(partial(torch.optim.SGD, lr=1.0), 1000, average=False, clip_value=1e-3)
    with Inline(graph, update=update) as runtime:
        runtime.train(instances())
    change = (weights(graph)["linear2.bias"] - before).abs()
    assert float(change.max()) == pytest.approx(1e-3)
    assert node.updater.version == 1


def test_policies_by_name_and_pattern() -> None:
    graph = build()
    slow = Update(OPTIMIZERS["sgd"], 1000)
    updates = {"linear*": slow, "linear2": slow.but(min_update_frequency=3), "embedding": None}
    with Inline(graph, update=Update(OPTIMIZERS["sgd"], 1), updates=updates) as runtime:
        runtime.train(instances())
    frequency = {
        n: p.updater.policy and p.updater.policy.min_update_frequency for n, p in graph.parameterised().items()
    }
    assert frequency == {"embedding": None, "linear1": 1000, "linear2": 3}
    assert graph.parameterised()["embedding"].updater.version == 0
    with pytest.raises(GraphError, match="updates names 'liner1', but no node with parameters is called that"):
        Inline(build(), updates={"liner1": slow})
    with pytest.raises(TypeError, match="update is one Update for all nodes, got a dict"):
        Inline(build(), update={"linear1": slow})  # type: ignore[arg-type]


def test_schedules_may_step_at_every_update() -> None:
    graph = build()
    schedule = partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    update = Update(OPTIMIZERS["sgd"], count="instances", schedule=schedule, schedule_every="update")
    with Inline(graph, update=update) as runtime:
        runtime.train(instances())
    optimizer = graph.parameterised()["linear1"].updater.optimizer
    assert optimizer is not None
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5 ** len(WHERE))


def test_frozen_nodes_and_parameters_stay_as_they_are() -> None:
    graph = build()
    bias = graph.parameterised()["linear1"].parameters["bias"]
    bias.requires_grad_(False)
    before = weights(graph)
    with Inline(graph, update=Update(OPTIMIZERS["adam"], count="instances")) as runtime:
        runtime.train(instances())
    after = weights(graph)
    assert torch.equal(before["linear1.bias"], after["linear1.bias"])
    assert not torch.equal(before["linear1.weight"], after["linear1.weight"])


def test_an_optimizer_that_fails_is_named() -> None:
    class Broken(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise RuntimeError("out of steps")

    graph = build()
    with (
        Inline(graph, update=Update(partial(Broken, lr=0.1), count="instances")) as runtime,
        pytest.raises(
            NodeError, match="node 'linear2' failed in update on worker 'inline': RuntimeError: out of steps"
        ),
    ):
        runtime.train(instances())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"min_update_frequency": 0}, "min_update_frequency must be 1 or more"),
        ({"count": "rows"}, "count must be one of messages, instances"),
        ({"weights": "old"}, "weights must be one of auto, current, stash"),
        ({"clip_norm": 0.0}, "clip_norm must be positive"),
    ],
)
def test_bad_policies_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Update(**settings)


def test_an_optimizer_is_made_by_the_node() -> None:
    made = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    with pytest.raises(TypeError, match=r"got an Adam: give partial\(torch.optim.Adam, lr=...\)"):
        Update(made)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got a float"):
        Update(0.1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"update is one Update for all nodes, got an Adam: give ampnet.Update"):
        Inline(rnn.build(hidden=4), update=made)  # type: ignore[arg-type]
