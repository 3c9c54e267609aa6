"""Names of metrics: which there are, what each means, and that a wrong one is refused before the first epoch."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ampnet import BestWeights, Callback, CallbackError, EarlyStopping, Inline, LearningRate, Model, compile, fit
from ampnet.fitting.metrics import metric_names
from ampnet.lang import loss
from tests.fitting.models import graph, inline, points, policy

TRAIN, VALID = points(20), points(8, seed=1)


class Two(Model):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 2)

    def forward(self, x: Tensor, label: Tensor) -> None:
        loss(self.out(x), label, name="mood")
        loss(self.out(x), torch.cat([x, x]), "squared_error", name="size")


class Begun(Callback):
    def __init__(self) -> None:
        self.epochs = 0

    def on_epoch_begin(self, epoch: int) -> None:
        self.epochs += 1


def test_the_names_follow_from_the_graph() -> None:
    assert metric_names(graph()) == ["loss", "absolute_error"]
    two = compile(Two(), torch.zeros(1), torch.tensor(0))
    names = ["loss", "mood.loss", "mood.accuracy", "size.loss", "size.absolute_error"]
    assert metric_names(two) == names
    with Inline(two, update=policy()) as runtime:
        stats = runtime.train([(torch.ones(1), torch.tensor(1))])
    assert ["loss", *stats.metrics] == names


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("absolute_eror", "Did you mean 'absolute_error'"),
        ("val_loss", "Did you mean 'valid_loss'"),
        ("f1", "there are: loss, absolute_error$"),
    ],
)
def test_a_wrong_name_is_refused_before_the_first_epoch(metric: str, words: str) -> None:
    begun = Begun()
    with inline() as runtime:
        with pytest.raises(ValueError, match=words):
            fit(runtime, train=TRAIN, valid=VALID, epochs=1, metric=metric, callbacks=[begun])
        plateau = LearningRate(ReduceLROnPlateau, metric=metric)
        for callback in (EarlyStopping(metric), BestWeights(metric), plateau):
            with pytest.raises(CallbackError, match=words):
                fit(runtime, train=TRAIN, valid=VALID, epochs=1, callbacks=[callback, begun])
        with pytest.raises(CallbackError, match="fit was given no validation data"):
            fit(runtime, train=TRAIN, epochs=1, callbacks=[EarlyStopping("valid_loss"), begun])
    assert begun.epochs == 0


def test_a_metric_of_the_training_or_of_the_validation() -> None:
    def best(metric: str) -> tuple[float, Any]:
        with inline() as runtime:
            result = fit(runtime, train=TRAIN, valid=VALID, epochs=2, metric=metric, barrier=True)
        return result.value, result.history[result.epoch - 1]

    value, record = best("train_loss")
    assert value == record.train_loss != record.valid_loss
    assert best("valid_loss")[0] == best("loss")[0] == record.valid_loss


def test_a_plateau_of_accuracies_is_one_of_high_ones() -> None:
    wrong = LearningRate(partial(ReduceLROnPlateau, patience=0), metric="mood.accuracy")
    data = [(torch.ones(1), torch.tensor(1))]
    with (
        Inline(compile(Two(), *data[0]), update=policy()) as runtime,
        pytest.raises(CallbackError, match="give ReduceLROnPlateau mode='max'"),
    ):
        fit(runtime, train=data, epochs=1, callbacks=[wrong])
