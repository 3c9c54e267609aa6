"""Captured waves on a GPU: the graphs are replayed where they are meant to be, and train as the CPU does."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from ampnet import Inline, Update, compile
from ampnet.cli import main
from ampnet.errors import EngineWarning, NodeError
from ampnet.events.log import EventLog
from ampnet.graph import Graph
from ampnet.testing import assert_close, model_gradients
from ampnet.testing.language import by_model_names
from ampnet.testing.written import WrittenModel, example, seeded
from tests.wave.padded import assert_equal, trained, versions_of, weights_of
from tests.wave.test_padded import SHUFFLED, UPDATES, epochs, network, spoilt

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu() -> Graph:
    return network().to("cuda")


def on_cpu(weights: dict[str, list[torch.Tensor]]) -> dict[str, list[torch.Tensor]]:
    return {name: [w.cpu() for w in some] for name, some in weights.items()}


@pytest.mark.parametrize("name", UPDATES)
def test_training_is_that_of_the_cpu(name: str) -> None:
    settings: dict[str, Any] = {"max_active_keys": 10, "wave_size": 10}
    many = SHUFFLED * 3
    plain = trained(network, many, UPDATES[name], False, **settings)
    graph = on_gpu()
    with Inline(graph, update=UPDATES[name], **settings) as runtime:
        losses = [runtime.train(epoch(graph)).loss for epoch in many]
        stats = runtime.stats()
    assert stats.uncaptured is None
    assert stats.captured > stats.waves // 2
    assert_equal(plain[1], on_cpu(weights_of(graph)), 1e-6)
    assert versions_of(graph) == plain[2]
    assert losses == pytest.approx([one.loss for one in plain[0]], rel=1e-6)


def test_a_new_learning_rate_is_used() -> None:
    decayed = Update(
        partial(torch.optim.SGD, lr=0.05),
        10,
        "instances",
        schedule=partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
    )
    plain = trained(network, SHUFFLED, decayed, False, max_active_keys=10)
    graph = on_gpu()
    with Inline(graph, update=decayed, max_active_keys=10) as runtime:
        for epoch in SHUFFLED:
            runtime.train(epoch(graph))
    assert_equal(plain[1], on_cpu(weights_of(graph)), 1e-6)


@pytest.mark.filterwarnings("ignore:waves are launched operation by operation:ampnet.errors.EngineWarning")
@pytest.mark.parametrize("seed", range(20))
def test_gradients_of_random_models(seed: int) -> None:
    program, drawn = seeded(seed)
    model = WrittenModel(program)
    want = model_gradients(model, drawn)
    graph = compile(model, *example()).to("cuda")
    instances = list(graph.instances(drawn))
    with Inline(graph, update=None, max_active_keys=6, wave_size=2) as runtime:
        for _ in range(4):
            runtime.train(instances)
        stats = runtime.stats()
    got = {name: g.cpu() / 4 for name, g in by_model_names(graph, graph.gradients()).items()}
    assert_close(got, want)
    assert stats.captured or stats.uncaptured is not None


@pytest.mark.parametrize(("name", "value"), [("label", 77), ("tokens", -1)])
def test_an_index_out_of_range_is_named_and_changes_nothing(name: str, value: float) -> None:
    graph = on_gpu()
    with Inline(graph, update=UPDATES["adam"], max_active_keys=10) as runtime:
        good = epochs(graph, np.arange(40))
        for _ in range(4):
            runtime.train(good)
        weights, versions = weights_of(graph), versions_of(graph)
        with pytest.raises(NodeError, match="out of range"):
            runtime.train([spoilt(good[0], name, value), *good[1:]])
        assert_equal(weights_of(graph), weights, 0)
        assert versions_of(graph) == versions
        runtime.train(good)
        assert runtime.stats().uncaptured is None


def test_a_log_changes_nothing() -> None:
    found = []
    for listeners in ([], [EventLog()]):
        graph = on_gpu()
        with Inline(graph, update=UPDATES["sgd"], max_active_keys=10, listeners=listeners) as runtime:
            for _ in range(3):
                runtime.train(epochs(graph, np.arange(40)))
            found.append((on_cpu(weights_of(graph)), versions_of(graph), runtime.stats().captured))
    assert_equal(found[0][0], found[1][0], 1e-8)
    assert found[0][1] == found[1][1]
    assert found[0][2]
    assert not found[1][2]


def test_what_cannot_be_captured_says_so_once() -> None:
    from ampnet.lang import Model, loss

    class Looks(Model):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 1).double()

        def forward(self, x: torch.Tensor, label: torch.Tensor) -> None:
            def judged(prediction: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
                float(prediction.detach().sum())  # waits for the device
                return (prediction - given).square().sum(-1)

            loss(self.linear(x), label, judged)

    x, y = torch.randn(3, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
    graph = compile(Looks(), x, y).to("cuda")
    update = Update(partial(torch.optim.SGD, lr=0.01), 2, "instances")
    with Inline(graph, update=update, max_active_keys=2) as runtime:
        with pytest.warns(EngineWarning, match="cannot be captured"):
            losses = [runtime.train([graph.instance(x, y)] * 4).loss for _ in range(4)]
        assert runtime.stats().captured == 0
        assert "cannot be captured" in (runtime.stats().uncaptured or "")
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("workload", ["list-reduction", "babi15"])
def test_the_command_line_says_how_many_waves_were_graphs(workload: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", workload, "--device", "cuda", "--epochs", "2", "--limit", "1000"]) in (0, 3)
    assert "as captured graphs" in capsys.readouterr().out.splitlines()[-1]
