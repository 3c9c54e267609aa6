"""Which weights a backward sees: the forward's own under "stash", those of now under "current" (P7, by value)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Inline, Update
from ampnet.data.list_reduction import buckets, generate
from ampnet.events.log import EventLog, Updated
from ampnet.message import Messages
from ampnet.models import by_hand as rnn
from ampnet.nodes import Linear
from ampnet.nodes.kept import Kept
from ampnet.nodes.node import Outputs
from ampnet.nodes.span import Span

DATA = generate(80, seed=5)


class Watched(Linear):
    """A Linear that notes which weights each message, or each operation of a wave, met forward and backward."""

    def __init__(self, inner: Linear) -> None:
        super().__init__(inner.module)  # type: ignore[arg-type]
        self.met: dict[object, tuple[float, ...]] = {}
        self.same: list[bool] = []


class OfMessages(Watched):
    def forward(self, port: int, messages: Messages) -> Outputs:
        self.met.update({tuple(c): mark(self.updater.weights) for c in messages.states.columns.T.tolist()})
        return super().forward(port, messages)

    def _gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor]) -> Tensor | None:
        for part in kept.parts:
            for state in self.key.unpack(part.record.keys[part.positions]).columns.T.tolist():
                self.same.append(self.met.pop(tuple(state)) == mark(w))
        return super()._gradient(g, kept, w)


class OfWaves(Watched):
    def run(self, span: Span) -> None:
        self.met[id(span)] = mark(span.w)
        super().run(span)

    def back(self, span: Span) -> None:
        self.same.append(self.met.pop(id(span)) == mark(span.w))
        super().back(span)


def mark(w: Sequence[Tensor]) -> tuple[float, ...]:
    return tuple(w[0].flatten().tolist())


@pytest.mark.parametrize("waves", [True, False])
@pytest.mark.parametrize("mode", ["current", "stash"])
@pytest.mark.parametrize("schedule", ["sweep", "random"])
def test_the_backward_sees_the_weights_it_should(mode: Literal["current", "stash"], schedule: str, waves: bool) -> None:
    graph = rnn.build(hidden=4, seed=1)
    watched = (OfWaves if waves else OfMessages)(graph.nodes["linear1"])  # type: ignore[arg-type]
    watched.name, graph.nodes["linear1"] = "linear1", watched
    update = Update(partial(torch.optim.SGD, lr=0.05), min_update_frequency=2, weights=mode)
    log = EventLog()
    how: dict[str, Any] = {"wave_size": 1} if waves else {"waves": False}
    with Inline(graph, update=update, max_active_keys=5, schedule=schedule, seed=4, listeners=[log], **how) as runtime:
        runtime.train(rnn.instance(DATA, w, 4) for w in buckets(DATA, 4, np.random.default_rng(1)))
        assert runtime.stats().engine == ("waves" if waves else "messages")
    assert sum(isinstance(e, Updated) and e.node == "linear1" for e in log) > 20
    assert len(watched.same) > 100 and not watched.met
    assert all(watched.same) if mode == "stash" else not all(watched.same)


@pytest.mark.parametrize("waves", [True, False])
def test_old_weights_are_dropped_with_the_last_message_that_needs_them(waves: bool) -> None:
    graph = rnn.build(hidden=4, seed=1)
    update = Update(partial(torch.optim.SGD, lr=0.05), min_update_frequency=1, weights="stash")
    most = 0

    def listen(event: object) -> None:
        nonlocal most
        most = max(most, graph.parameterised()["linear1"].updater.stashed())

    how: dict[str, Any] = {"wave_size": 1, "schedule": "fifo"} if waves else {"waves": False}
    with Inline(graph, update=update, max_active_keys=8, listeners=[listen], **how) as runtime:
        runtime.train(rnn.instance(DATA, w, 4) for w in buckets(DATA, 4, np.random.default_rng(1)))
        assert graph.parameterised()["linear1"].updater.stashed() == 0
    assert 1 <= most <= (8 if waves else 80)


def test_with_one_instance_in_flight_and_one_update_each_both_are_the_same() -> None:
    results = []
    for mode in ("current", "stash"):
        graph = rnn.build(hidden=4, seed=1)
        update = Update(partial(torch.optim.SGD, lr=0.05), count="instances", weights=mode)  # type: ignore[arg-type]
        with Inline(graph, update=update, waves=False) as runtime:  # to the bit: a wave adds up in another order
            runtime.train(rnn.instance(DATA, w, 4) for w in buckets(DATA, 4, np.random.default_rng(1)))
        results.append(graph.module().state_dict())
    for name, value in results[0].items():
        assert torch.equal(value, results[1][name]), name
