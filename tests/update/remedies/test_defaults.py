"""Which remedies a node has if nobody chose any, and that they are kept over a snapshot."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampnet import Inline, Sync, Update, replicate
from ampnet.nodes import Embedding, Linear
from ampnet.nodes.span import Span
from ampnet.testing import assert_close
from ampnet.update.remedies import AnnealedRate, AsyncNesterov, InverseRate, Remedy
from ampnet.update.remedies.copied import CopiedWeights
from ampnet.update.state import restore_state, state_of
from ampnet.update.updater import Updater
from tests.replicas.small import chain, rows, weights

ADAM = partial(torch.optim.Adam, lr=0.01)


def test_weights_are_stashed_and_copied_where_replicas_share_them() -> None:
    single = chain("linear", "tanh", "linear")
    with Inline(single, update=Update(ADAM)):
        assert all(n.updater.stashes and n.updater.view is None for n in single.parameterised().values())
    for sync, shared in (("shared", True), ("epoch", False), (Sync("updates", 3), False)):
        graph = chain("linear", "tanh", "linear")
        replicate(graph, None, 2, sync=sync)
        with Inline(graph, update=Update(ADAM)):
            for node in graph.parameterised().values():
                assert node.updater.stashes is not shared
                assert isinstance(node.updater.view, CopiedWeights) is shared
                assert node.updater.remedies == ((AnnealedRate(1000),) if shared else ())


@pytest.mark.parametrize(
    ("optimizer", "remedy"),
    [
        (torch.optim.SGD, InverseRate(0.5)),
        (torch.optim.Adagrad, InverseRate(0.5)),
        (AsyncNesterov, InverseRate(0.5)),
        (torch.optim.Adam, AnnealedRate(1000)),
        (torch.optim.RMSprop, AnnealedRate(1000)),
    ],
)
def test_steps_of_shared_replicas_are_smaller_for_ever_where_the_optimizer_does_not_scale_them(
    optimizer: Any, remedy: Remedy
) -> None:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, None, 2, sync="shared")
    with Inline(graph, update=Update(partial(optimizer, lr=0.01))):
        assert all(node.updater.remedies == (remedy,) for node in graph.parameterised().values())


@pytest.mark.parametrize("schedule", ["backward-first", "fifo"])
@pytest.mark.parametrize("seen", ["auto", "stash", "predict"])
def test_a_wave_of_a_shared_replica_goes_on_with_the_weights_of_its_forward(
    seen: Any, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, replicas of a whole model, whose waves are played one by one, used the current weights whatever was
    chosen: 8 replicas of a perceptron diverged."""
    met: dict[int, Tensor] = {}
    alike: list[bool] = []
    run, back = Linear.run, Linear.back

    def noted_run(self: Linear, span: Span) -> None:
        met[id(span)] = span.w[0].clone()
        run(self, span)

    def noted_back(self: Linear, span: Span) -> None:
        alike.append(torch.equal(met.pop(id(span)), span.w[0]))
        assert not any(span.w[0] is node.updater.weights[0] for node in copies)
        back(self, span)

    graph = chain("linear", "tanh", "linear")
    replicate(graph, None, 3, sync="shared")
    copies = list(graph.parameterised().values())
    update = Update(partial(torch.optim.SGD, lr=0.1), 1, "instances", weights=seen)
    with Inline(graph, update=update, max_active_keys=6, wave_size=1, schedule=schedule) as runtime:
        if seen == "predict":
            runtime.train(rows(*[2] * 9))  # until something is known to be stale
            for node in copies:
                node.updater.lag = 1.0
        monkeypatch.setattr(Linear, "run", noted_run)
        monkeypatch.setattr(Linear, "back", noted_back)
        runtime.train(rows(*[2] * 12))
        assert runtime.stats().engine == "waves"
    assert len(alike) == 24
    assert all(alike)


def test_a_gradient_of_a_shared_replica_is_as_old_as_that_of_the_stalest_node() -> None:
    """The last layer meets its own weights again at once; what it computed with came from old ones below."""
    updater = Updater([nn.Parameter(torch.ones(1))])
    updater.adopt(Update(partial(torch.optim.SGD, lr=1.0), 1, remedies=(InverseRate(),)))
    updater.around = lambda: 4.0
    updater.note_lags([(updater.version, 1)])
    updater.adding[0].add_(1.0)
    updater.count_messages(1)
    updater.apply()
    assert updater.weights[0].item() == pytest.approx(1 - 1 / 4)


def test_a_table_is_never_copied_by_default() -> None:
    embedding = Embedding(nn.Embedding(10, 4))
    embedding.updater.adopt(Update(ADAM))
    assert not embedding.updater.looks_back
    embedding.updater.adopt(Update(ADAM, weights="stash"))
    assert embedding.updater.stashes


def test_with_one_wave_in_flight_no_default_changes_anything() -> None:
    """Gradients that are not stale are applied as they are, to the bit."""

    def trained(update: Update) -> dict[str, list[list[float]]]:
        torch.manual_seed(0)
        graph = chain("linear", "tanh", "linear")
        with Inline(graph, update=update, max_active_keys=8) as runtime:
            runtime.train(rows(*[2] * 40))
            assert runtime.stats().engine == "waves"
        return {name: [w.tolist() for w in ws] for name, ws in weights(graph).items()}

    plain = trained(Update(ADAM, 4, "instances", weights="current", remedies=()))
    usual = trained(Update(ADAM, 4, "instances"))
    assert usual == plain


@pytest.mark.parametrize("kind", ["estimate", "predict"])
def test_the_mean_update_and_the_usual_staleness_are_part_of_the_state(kind: str) -> None:
    def made() -> Updater:
        updater = Updater([nn.Parameter(torch.ones(3))])
        updater.adopt(Update(ADAM, 1, weights=kind))  # type: ignore[arg-type]
        return updater

    def step(updater: Updater) -> None:
        updater.note_lags([(updater.version - 2, 1)])
        updater.adding[0].add_(0.5)
        updater.count_messages(1)
        updater.apply()

    first, second = made(), made()
    for _ in range(5):
        step(first)
    state = state_of(first, weights=True)
    with torch.no_grad():
        second.weights[0].copy_(state.tensors["weight/0"])
    restore_state(second, state, "node")
    assert second.lag == first.lag > 1
    for _ in range(3):
        step(first)
        step(second)
    assert first.view is not None
    assert second.view is not None
    assert_close({"w": second.weights_of(5)[0]}, {"w": first.weights_of(5)[0]}, 1e-7)
    assert_close({"w": second.forward_weights()[0]}, {"w": first.forward_weights()[0]}, 1e-7)
