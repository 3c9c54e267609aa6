"""Training by waves against training by messages: one instance at a time, the weights are the same (P8)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR

from ampnet import Graph, Inline, Instance, Update, feed
from ampnet.nodes import Cond, Dropout, Linear, Loss, Module, Sink, Tanh
from ampnet.testing import assert_close
from tests.wave.both import NAMES, model, player_of, weights_after
from tests.wave.test_gradients import F64, chain, rows_of

OPTIMIZERS: dict[str, Any] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "nesterov": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "adam": partial(torch.optim.Adam, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01),  # has no quick way
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_model_and_optimizer(name: str, optimizer: str) -> None:
    found = weights_after(lambda: model(name), Update(OPTIMIZERS[optimizer], 1, "instances"))
    if name == "babi15":  # a selection does not depend on a bias of all scores: its gradient is rounding, made large
        found = {waves: {n: w for n, w in some.items() if w.numel() > 1} for waves, some in found.items()}
    assert_close(found[True], found[False], 1e-9)


def made(*nodes: Any, sizes: Sequence[int] = (3, 1, 2, 4)) -> tuple[Graph, list[Instance]]:
    return chain(*nodes), rows_of(*sizes)


def layers() -> list[Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inner = nn.Sequential(nn.Linear(4, 4), nn.PReLU()).double()
        return [Linear(4, 4, dtype=F64), Module(inner), Dropout(0.3, seed=2), Linear(4, 4, dtype=F64, bias=False)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"average": False},
        {"clip_norm": 0.01},
        {"clip_value": 0.001},
        {"schedule": partial(ExponentialLR, gamma=0.7), "schedule_every": "update"},
        {"schedule": partial(ExponentialLR, gamma=0.7), "schedule_every": "epoch"},
        {"weights": "stash"},
    ],
    ids=str,
)
def test_settings_of_an_update(optimizer: str, settings: dict[str, Any]) -> None:
    update = Update(OPTIMIZERS[optimizer], 1, "instances", **settings)
    found = weights_after(lambda: made(*layers()), update)
    assert_close(found[True], found[False], 1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_updates_of_several_instances_are_minibatches_of_plain_torch(optimizer: str) -> None:
    """A wave has no more instances than the next update waits for, and what is left over makes an update as well."""
    graph, instances = made(Linear(4, 4, dtype=F64), Tanh(), Linear(4, 4, dtype=F64), sizes=[1] * 7)
    eager = chain(Linear(4, 4, dtype=F64), Tanh(), Linear(4, 4, dtype=F64))
    eager.module().load_state_dict(graph.module().state_dict())
    module, opt = eager.module(), OPTIMIZERS[optimizer](eager.module().parameters())
    for _ in range(2):
        for some in (instances[:3], instances[3:6], instances[6:]):
            x, y = (torch.cat([_payload(i, name) for i in some]) for name in ("x", "label"))
            opt.zero_grad()
            ((module["n2"](torch.tanh(module["n0"](x))) - y) ** 2).mean().backward()
            opt.step()
    with Inline(graph, update=Update(OPTIMIZERS[optimizer], 3, "instances"), max_active_keys=64) as runtime:
        for _ in range(2):
            runtime.train(instances)
        assert player_of(runtime).instances == 14
    assert graph.parameterised()["n0"].updater.version == 6
    assert_close(dict(graph.module().state_dict()), dict(module.state_dict()), 1e-9)


def _payload(instance: Instance, name: str) -> Tensor:
    payload = instance.feeds[name].payload
    assert payload is not None
    return payload


def test_where_messages_are_counted_an_update_has_those_of_a_wave() -> None:
    """``min_update_frequency`` is a minimum: the update is made at the end of the wave, with all that came in."""
    graph, instances = made(Linear(4, 4, dtype=F64), sizes=[1] * 7)
    with Inline(graph, update=Update(OPTIMIZERS["sgd"], 2), max_active_keys=3) as runtime:
        runtime.train(instances)
        assert player_of(runtime).instances == 7
    assert graph.parameterised()["n0"].updater.version == 3  # of 3, 3 and 1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("keys", [1, 2, 5])
def test_a_node_that_no_loss_depends_on_gets_no_update(optimizer: str, keys: int) -> None:
    """Once, its next update was lost: plain gradient descent had gone into the weights, and nobody had counted it."""

    def make() -> tuple[Graph, list[Instance]]:
        graph = Graph("sometimes")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for name in ("always", "sometimes"):
                graph.add(name, Linear(4, 4, dtype=F64))
        graph.add("cond", Cond(lambda s: s.kind, ("used", "unused")))
        graph.add("sink", Sink())
        for loss, source in (("loss", "always"), ("loss2", "cond.used")):
            graph.add(loss, Loss("squared_error", key=("instance",)))
            graph.connect(source, f"{loss}.prediction")
        graph.connect("sometimes", "cond")
        graph.connect("cond.unused", "sink")
        for name, target, fields in (("x", "always", ()), ("y", "sometimes", ("kind",))):
            graph.input(name, target, fields)
        for name in ("loss", "loss2"):
            graph.input(f"label of {name}", f"{name}.label")
        random = torch.Generator().manual_seed(0)
        instances = []
        for kind in (1, 1, 0, 1, 0, 0, 1):
            x, y, a, b = torch.randn(4, 1, 4, generator=random, dtype=F64)
            feeds = {"x": feed(x), "y": feed(y, kind=kind), "label of loss": feed(a)}
            instances.append(Instance(feeds if kind else {**feeds, "label of loss2": feed(b)}))
        return graph, instances

    for frequency in (1, 2):
        update = Update(OPTIMIZERS[optimizer], frequency, "instances")
        if keys == 1:
            found = weights_after(make, update)
            assert_close(found[True], found[False], 1e-9)
        graph, instances = make()
        start = graph.nodes["sometimes"].updater.weights[0].clone()  # type: ignore[attr-defined]
        with Inline(graph, update=update, max_active_keys=keys) as runtime:
            runtime.train([i for i in instances if len(i.feeds) == 3])
            updater = graph.parameterised()["sometimes"].updater
            assert updater.version == 0
            assert torch.equal(updater.weights[0], start)
            runtime.train([i for i in instances if len(i.feeds) == 4][:1])
            assert updater.version == 1
            assert not torch.equal(updater.weights[0], start)
            assert not any(total.any() for total in updater.sums)


def test_parts_of_a_model_may_be_frozen_or_updated_at_another_pace() -> None:
    def updates() -> dict[str, Update | None]:
        return {"n0": None, "n3": Update(OPTIMIZERS["adam"], 3, "instances")}

    found = weights_after(lambda: made(*layers()), Update(OPTIMIZERS["sgd"], 1, "instances"), updates=updates())
    assert_close(found[True], found[False], 1e-9)


def test_parameters_without_a_gradient_stay_as_they_are() -> None:
    def frozen() -> tuple[Graph, list[Instance]]:
        nodes = layers()
        nodes[0].parameters["bias"].requires_grad_(False)
        nodes[3].parameters["weight"].requires_grad_(False)
        return made(*nodes)

    found = weights_after(frozen, Update(OPTIMIZERS["adam"], 1, "instances"))
    assert_close(found[True], found[False], 1e-9)
    start = frozen()[0].module().state_dict()
    assert torch.equal(found[True]["n0.bias"], start["n0.bias"])
    assert torch.equal(found[True]["n3.weight"], start["n3.weight"])
