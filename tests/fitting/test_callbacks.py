"""Callbacks: the order of their calls, what ends a run, and which weights are kept."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ampnet import BestWeights, Callback, EarlyStopping, Processes, fit
from ampnet.controller import Progress
from ampnet.errors import CallbackError, DataError
from ampnet.fitting import EpochRecord, FitInterrupted, FitResult, Run
from ampnet.instance import StreamStats
from tests.fitting.models import graph, inline, points, policy

TRAIN, VALID = points(20), points(8, seed=1)


class Heard(Callback):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.run: Run | None = None

    def on_begin(self, run: Run) -> None:
        self.run = run
        self.calls.append("begin")

    def on_epoch_begin(self, epoch: int) -> None:
        self.calls.append(f"epoch {epoch}")

    def on_train_end(self, epoch: int, stats: StreamStats) -> None:
        self.calls.append(stats.name)

    def on_valid_end(self, epoch: int, stats: StreamStats) -> None:
        self.calls.append(stats.name)

    def on_epoch_end(self, record: EpochRecord) -> None:
        self.calls.append(f"end {record.epoch}")

    def on_end(self, result: FitResult) -> None:
        self.calls.append(f"over {result.epochs}")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("barrier", [False, True])
def test_the_order_of_calls(barrier: bool) -> None:
    heard = Heard()
    with inline() as runtime:
        fit(runtime, train=TRAIN, valid=VALID, epochs=2, callbacks=[heard], barrier=barrier)
    calls = [c for c in heard.calls if barrier or not c.startswith("epoch")]
    assert [c for c in calls if not c.startswith("epoch")] == [
        "begin", "train 1", "valid 1", "end 1", "train 2", "valid 2", "end 2", "over 2", "close",
    ]  # fmt: skip
    assert heard.calls.index("epoch 2") > heard.calls.index("epoch 1")
    assert heard.run is not None
    assert heard.run.totals == {"train": 20, "valid": 8}


class Fails(Callback):
    def __init__(self, method: str) -> None:
        def fail(*_: Any) -> None:
            raise KeyError("lost")

        setattr(self, method, fail)


@pytest.mark.parametrize("method", ["on_begin", "on_epoch_begin", "on_valid_end", "on_epoch_end", "on_end", "close"])
def test_an_exception_names_the_callback_and_ends_the_run(method: str) -> None:
    heard = Heard()
    with inline() as runtime:
        with pytest.raises(CallbackError, match=rf"callback Fails failed in {method}: KeyError: 'lost'"):
            fit(runtime, train=TRAIN, valid=VALID, epochs=3, callbacks=[Fails(method), heard])
        assert heard.calls[-1] == "close"
        assert not runtime.held()
        assert fit(runtime, train=TRAIN, epochs=1).epochs == 1


def test_only_callbacks_are_callbacks() -> None:
    with inline() as runtime, pytest.raises(TypeError, match="got a function: derive it from Callback"):
        fit(runtime, train=TRAIN, epochs=1, callbacks=[lambda record: None])  # type: ignore[list-item]


@pytest.mark.parametrize("barrier", [False, True])
def test_a_callback_stops_after_its_epoch(barrier: bool) -> None:
    class Stops(Heard):
        def on_epoch_end(self, record: EpochRecord) -> None:
            assert self.run is not None
            if record.epoch == 2:
                self.run.stop("enough")

    with inline() as runtime:
        result = fit(runtime, train=TRAIN, valid=VALID, epochs=9, callbacks=[Stops()], barrier=barrier)
    assert (result.epochs, result.stopped, result.reached) == (2, "enough", False)


@pytest.mark.parametrize("barrier", [False, True])
def test_a_stop_within_an_epoch_cuts_it_short(barrier: bool) -> None:
    class Stops(Heard):
        def on_train_end(self, epoch: int, stats: StreamStats) -> None:
            assert self.run is not None
            if epoch == 2:
                self.run.stop("enough")

    with inline() as runtime:
        result = fit(runtime, train=TRAIN, valid=points(40), epochs=9, callbacks=[Stops()], barrier=barrier)
    assert (result.epochs, result.stopped) == (1, "enough")


def record(epoch: int, value: float) -> EpochRecord:
    return EpochRecord(epoch, value, {"accuracy": 1 - value}, value, {"accuracy": 1 - value}, 1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("values", "settings", "stops"),
    [
        ([5, 4, 3, 2, 1], {"patience": 2}, None),
        ([5, 4, 4, 4, 4], {"patience": 2}, 4),
        ([5, 4, 3.95, 3.9, 3.8], {"patience": 2, "min_delta": 0.5}, 4),
        ([5, 4, 3.6, 3.4, 3.3], {"patience": 2, "min_delta": 0.5}, None),
        ([float("nan")] * 3, {"patience": 3}, 3),
        ([1, float("nan"), 0.5, 0.6, 0.7], {"patience": 2}, 5),
        ([0.1, 0.2, 0.3], {"metric": "accuracy", "patience": 2}, 3),
        ([0.1, 0.2, 0.3], {"metric": "train_accuracy", "patience": 2, "mode": "min"}, None),
    ],
)
def test_early_stopping(values: list[float], settings: dict[str, Any], stops: int | None) -> None:
    stopping, reasons, at = EarlyStopping(**settings), list[str](), None
    stopping.on_begin(Run(None, 9, "loss", {}, reasons.append))
    for epoch, value in enumerate(values, start=1):
        stopping.on_epoch_end(record(epoch, value))
        if reasons:
            at = epoch
            break
    assert at == stops
    assert not reasons or stopping.metric in reasons[0]


@pytest.mark.parametrize(
    "wrong", [{"patience": 0}, {"min_delta": -1.0}, {"mode": "up"}], ids=lambda wrong: next(iter(wrong))
)
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EarlyStopping(**wrong)


def test_an_unknown_metric_is_named() -> None:
    with inline() as runtime, pytest.raises(CallbackError, match=r"EarlyStopping .*'accuracy' is not reported"):
        fit(runtime, train=TRAIN, valid=VALID, epochs=1, callbacks=[EarlyStopping("accuracy")])


class Spoils(Callback):
    """Makes the weights worse after the second epoch."""

    at_rest = True

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_begin(self, run: Run) -> None:
        self.run = run

    def on_epoch_end(self, record: EpochRecord) -> None:
        model = self.run.runtime.graph.model
        self.weights.append({name: value.clone() for name, value in model.state_dict().items()})
        if record.epoch == 2:
            with torch.no_grad():
                model.last.bias.add_(10.0)


@pytest.mark.parametrize("kind", ["inline", "workers", "replicas"])
@pytest.mark.parametrize("restore", [True, False])
def test_the_best_weights(kind: str, restore: bool) -> None:
    if kind != "inline" and not hasattr(os, "eventfd"):
        pytest.skip("worker processes need Linux")
    one = graph(replicas=2 if kind == "replicas" else 1)
    best, spoils = BestWeights(restore=restore), Spoils()
    runtime = (
        inline()
        if kind == "inline"
        else Processes(one, workers=2, affinity={"first": 0, "last": 1} if kind == "workers" else "auto",
                       update=policy(), max_active_keys=8)
    )  # fmt: skip
    with runtime:
        result = fit(runtime, train=TRAIN, valid=VALID, epochs=3, callbacks=[spoils, best])
        assert best.epoch == result.epoch == 2
        assert best.value == result.value
        assert best.state_dict is not None
        left = runtime.graph.model.state_dict()  # type: ignore[attr-defined]
        wanted = best.state_dict if restore else spoils.weights[2]
        assert all(torch.equal(left[name], value) for name, value in wanted.items())


def test_the_copy_is_what_the_validation_measured() -> None:
    best = BestWeights()
    with inline() as runtime:
        result = fit(runtime, train=TRAIN, valid=VALID, epochs=3, callbacks=[best])
        again = runtime.infer(runtime.graph.read(VALID))
    assert again.loss == pytest.approx(result.value, rel=1e-6)


def test_an_interrupt_restores_the_best_weights_and_tells_callbacks() -> None:
    class Interrupts(Callback):
        at_rest = True

        def on_epoch_end(self, record: EpochRecord) -> None:
            if record.epoch == 2:
                raise KeyboardInterrupt

    best, heard = BestWeights(), Heard()
    with inline() as runtime, pytest.raises(FitInterrupted) as caught:
        fit(runtime, train=TRAIN, valid=VALID, epochs=5, callbacks=[best, heard, Interrupts()])
    assert caught.value.result.epochs == 2
    assert heard.calls[-2:] == ["over 2", "close"]


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with inline() as runtime:
        fit(runtime, train=TRAIN, valid=VALID, epochs=2, progress=True)
        fit(runtime, train=lambda epoch: TRAIN, epochs=1, progress=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:8] for line in lines] == ["epoch  1", "epoch  2", "epoch  1"]
    assert "staleness" not in lines[0]


def test_turns_are_passed_on() -> None:
    seen: list[Progress] = []

    class Turns(Callback):
        def on_turn(self, progress: Progress) -> None:
            seen.append(progress)

    def slow(epoch: int) -> Iterator[Any]:
        yield from points(400)

    with inline() as runtime:
        original = runtime.run
        runtime.run = lambda *args, **kw: original(*args, turn_seconds=0.0, **kw)  # type: ignore[method-assign]
        fit(runtime, train=slow, epochs=1, callbacks=[Turns()])
    assert {progress.stream for progress in seen} == {"train 1"}


def test_an_iterator_is_used_up_after_one_epoch() -> None:
    with inline() as runtime:
        assert fit(runtime, train=iter(TRAIN), epochs=1).epochs == 1
        with pytest.raises(DataError, match="train is an iterator, which is used up"):
            fit(runtime, train=iter(TRAIN), epochs=2)


class StopsAtOnce(Callback):
    """Wants no epoch."""

    def on_begin(self, run: Run) -> None:
        run.stop("there is a better model already")


@pytest.mark.parametrize("barrier", [False, True])
def test_a_stop_before_the_first_epoch(barrier: bool) -> None:
    """Once a stop in ``on_begin`` was noted as the reason, and then all epochs were trained."""
    with inline() as runtime:
        before = [p.clone() for p in runtime.graph.module().parameters()]
        result = fit(runtime, train=points(12), epochs=3, callbacks=[StopsAtOnce()], barrier=barrier)
    assert (result.epochs, result.stopped) == (0, "there is a better model already")
    assert all(map(torch.equal, before, runtime.graph.module().parameters()))


class CannotClose(Callback):
    """Its file is gone."""

    def close(self) -> None:
        raise OSError("stale file handle")


def test_the_first_error_is_raised() -> None:
    """Once the error of a callback that could not be closed hid the one that had ended the run."""

    def broken(epoch: int) -> Iterator[Any]:
        yield from points(4)
        raise ValueError("bad record")

    with inline() as runtime, pytest.raises(DataError, match="bad record"):
        fit(runtime, train=broken, epochs=1, callbacks=[CannotClose()])
