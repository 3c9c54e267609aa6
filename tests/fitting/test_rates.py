"""Learning rates: set from outside, on every runtime, and by torch's schedulers."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, ReduceLROnPlateau

from ampnet import Callback, Inline, LearningRate, Processes, fit
from ampnet.errors import CallbackError
from ampnet.fitting import EpochRecord, Run
from ampnet.runtime.host import Host
from ampnet.runtime.protocol import Kind
from ampnet.runtime.runtime import Runtime
from ampnet.runtime.transport import Note
from tests.fitting.models import graph, inline, points, policy

TRAIN, VALID = points(16), points(6, seed=1)
KINDS = ["inline", "messages", "parted", "replicas", "shared"]


def runtime_of(kind: str, **settings: Any) -> Runtime:
    if kind in ("parted", "replicas", "shared") and not hasattr(os, "eventfd"):
        pytest.skip("worker processes need Linux")
    common: dict[str, Any] = {"update": policy(**settings), "max_active_keys": 4}
    if kind in ("inline", "messages"):
        return Inline(graph(), waves=kind == "inline", **common)
    if kind == "parted":
        return Processes(graph(), workers=2, affinity={"first": 0, "last": 1}, **common)
    from ampnet import Replicate

    how = Replicate(2, sync="shared" if kind == "shared" else "epoch")
    return Processes(graph(replicas=how), workers=2, **common)


def weights(runtime: Runtime) -> dict[str, torch.Tensor]:
    model: Any = runtime.graph.model  # type: ignore[attr-defined]
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_rates_are_set_before_between_and_after_runs(kind: str) -> None:
    with runtime_of(kind) as runtime:
        assert runtime.learning_rates == {"first": 0.05, "last": 0.05}
        runtime.set_learning_rates({"last": 0.0})  # before there are workers
        before = weights(runtime)
        runtime.train(runtime.graph.read(TRAIN))
        after = weights(runtime)
        assert torch.equal(before["last.weight"], after["last.weight"])
        assert not torch.equal(before["first.weight"], after["first.weight"])
        assert runtime.learning_rates == {"first": 0.05, "last": 0.0}
        runtime.set_learning_rates(0.0)
        runtime.train(runtime.graph.read(TRAIN))
        assert all(torch.equal(value, after[name]) for name, value in weights(runtime).items())
        runtime.set_learning_rates({"f*": 0.25, "last": 0.5})
        assert runtime.learning_rates == {"first": 0.25, "last": 0.5}


def test_rates_equal_plain_torch() -> None:
    """An update with a rate that was set is that of an optimizer with that rate."""
    with Inline(graph(), update=policy(0.3).but(min_update_frequency=16), max_active_keys=16) as runtime:
        model: Any = runtime.graph.model  # type: ignore[attr-defined]
        twin = graph().model
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.3)
        for rate in (0.3, 0.1, 0.02):
            runtime.set_learning_rates(rate)
            optimizer.param_groups[0]["lr"] = rate
            runtime.train(runtime.graph.read(TRAIN))
            optimizer.zero_grad()
            (sum(twin.loss(*point) for point in TRAIN) / 16).backward()  # type: ignore[operator,union-attr]
            optimizer.step()
        for got, want in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(got, want)


def test_what_cannot_be_set() -> None:
    with inline() as runtime:
        with pytest.raises(ValueError, match="no node that is trained is called 'middle'; there are: first, last"):
            runtime.set_learning_rates({"middle": 0.1})
        for wrong in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="a learning rate is a number of 0 or more"):
                runtime.set_learning_rates(wrong)
    scheduled = policy(schedule=partial(ExponentialLR, gamma=0.5))
    with Inline(graph(), update=policy(), updates={"last": scheduled}) as runtime:
        with pytest.raises(ValueError, match="node 'last' has a schedule"):
            runtime.set_learning_rates(0.1)
        runtime.set_learning_rates({"first": 0.1})
    with Inline(graph(), updates={"last": policy()}) as runtime:
        assert runtime.learning_rates == {"last": 0.05}
        with pytest.raises(ValueError, match="called 'first'"):
            runtime.set_learning_rates({"first": 0.1})


class Seen(Callback):
    """The rates at the end of every epoch; before those that come after it in the list change them."""

    def __init__(self) -> None:
        self.rates: list[dict[str, float]] = []

    def on_begin(self, run: Run) -> None:
        self.run = run

    def on_epoch_end(self, record: EpochRecord) -> None:
        self.rates.append(self.run.runtime.learning_rates)


@pytest.mark.parametrize("kind", ["inline", "parted", "shared"])
@pytest.mark.parametrize("barrier", [False, True])
def test_a_scheduler_drives_every_node(kind: str, barrier: bool) -> None:
    seen = Seen()
    with runtime_of(kind) as runtime:
        runtime.set_learning_rates({"first": 0.2})
        rate = LearningRate(partial(ExponentialLR, gamma=0.5))
        fit(runtime, train=TRAIN, valid=VALID, epochs=3, callbacks=[seen, rate], barrier=barrier)
        assert seen.rates == [{"first": 0.2 * 0.5**i, "last": 0.05 * 0.5**i} for i in range(3)]
        assert runtime.learning_rates == pytest.approx({"first": 0.025, "last": 0.00625})


def test_schedulers_that_begin_with_another_rate() -> None:
    with inline() as runtime:
        seen = Seen()
        warm = LearningRate(partial(LambdaLR, lr_lambda=lambda epoch: min(1.0, (epoch + 1) / 2)))
        fit(runtime, train=TRAIN, epochs=3, callbacks=[seen, warm])
        assert [rates["first"] for rates in seen.rates] == [0.025, 0.05, 0.05]
        fit(runtime, train=TRAIN, epochs=2, callbacks=[LearningRate(partial(CosineAnnealingLR, T_max=2))])
        assert runtime.learning_rates["first"] == pytest.approx(0.0, abs=1e-12)


def test_a_plateau_lowers_the_rate() -> None:
    """With a rate of nearly zero nothing gets better: after two epochs the rate falls, by the validation's loss."""
    with inline(1e-12) as runtime:
        seen = Seen()
        plateau = LearningRate(partial(ReduceLROnPlateau, factor=0.1, patience=1, threshold=1e-3, eps=0))
        fit(runtime, train=TRAIN, valid=VALID, epochs=4, callbacks=[seen, plateau])
        assert [rates["last"] for rates in seen.rates] == pytest.approx([1e-12, 1e-12, 1e-12, 1e-13])
        assert isinstance(plateau.scheduler, ReduceLROnPlateau)


def test_nodes_with_a_schedule_of_their_own_are_left_alone() -> None:
    scheduled = policy(schedule=partial(ExponentialLR, gamma=0.5))
    with Inline(graph(), update=policy(), updates={"last": scheduled}, max_active_keys=4) as runtime:
        fit(runtime, train=TRAIN, epochs=2, callbacks=[LearningRate(partial(ExponentialLR, gamma=0.1))])
        assert runtime.learning_rates == pytest.approx({"first": 0.0005, "last": 0.0125})
    with Inline(graph(), update=scheduled) as runtime, pytest.raises(CallbackError, match="LearningRate.*no node"):
        fit(runtime, train=TRAIN, epochs=2, callbacks=[LearningRate(partial(ExponentialLR, gamma=0.1))])


def test_a_worker_that_has_failed_hears_of_rates() -> None:
    """They are for the next run as well. Once a rate that was set between the failure and the end of the run was lost,
    and ``learning_rates`` said that it was in force."""
    node = SimpleNamespace(name="first", updater=SimpleNamespace(learning_rate=0.1))
    host: Any = SimpleNamespace(failed=True, player=SimpleNamespace(updates=SimpleNamespace(trains=[node])))
    Host._hear(host, Note(Kind.RATES, {"rates": {"first": 0.02, "last": 0.3}}))
    assert node.updater.learning_rate == 0.02
