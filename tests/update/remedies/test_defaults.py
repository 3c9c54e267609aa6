"""Which remedies a node has if nobody chose any, and that they are kept over a snapshot."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from ampnet import Inline, Sync, Update, replicate
from ampnet.nodes import Embedding
from ampnet.testing import assert_close
from ampnet.update.remedies import AnnealedRate
from ampnet.update.remedies.predict import Predict
from ampnet.update.state import restore_state, state_of
from ampnet.update.updater import Updater
from tests.replicas.small import chain, rows, weights

ADAM = partial(torch.optim.Adam, lr=0.01)


def test_weights_are_stashed_unless_replicas_share_them() -> None:
    single = chain("linear", "tanh", "linear")
    with Inline(single, update=Update(ADAM)):
        assert all(n.updater.stashes and n.updater.view is None for n in single.parameterised().values())
    for sync, shared in (("shared", True), ("epoch", False), (Sync("updates", 3), False)):
        graph = chain("linear", "tanh", "linear")
        replicate(graph, None, 2, sync=sync)
        with Inline(graph, update=Update(ADAM)):
            for node in graph.parameterised().values():
                assert node.updater.stashes is not shared
                assert isinstance(node.updater.view, Predict) is shared
                assert node.updater.remedies == ((AnnealedRate(1000),) if shared else ())


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
