"""A run that is resumed from a checkpoint equals one that was never interrupted, to the bit (P14), on `Inline`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adagrad, Adam
from torch.optim.lr_scheduler import ExponentialLR, MultiStepLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader

from ampnet import BestWeights, EarlyStopping, Inline, LearningRate, Sync, Update, replicate, tile
from tests.fitting.resumed import TRAIN, assert_resumes, inline, reader, train

SGD_ = partial(SGD, lr=0.1)
MOMENTUM = partial(SGD, lr=0.05, momentum=0.9)
ADAM = partial(Adam, lr=0.02)


def copies(when: Any, nodes: Any = ("cell", "mood"), every: int = 2, **settings: Any) -> Callable[[], Inline]:
    def make() -> Inline:
        graph = reader()
        replicate(graph, nodes, 2, sync=Sync(when, every))
        return inline(Update(ADAM, 3, "instances"), graph, **settings)

    return make


def tiled() -> Inline:
    graph = reader()
    tile(graph, "cell", 2)
    return inline(Update(MOMENTUM, 4, "instances"), graph)


RUNTIMES: dict[str, Callable[[], Inline]] = {
    "sgd": lambda: inline(Update(SGD_, 4, "instances")),
    "momentum": lambda: inline(Update(MOMENTUM, 3)),
    "adam": lambda: inline(Update(ADAM, 4, "instances")),
    "adagrad": lambda: inline(Update(partial(Adagrad, lr=0.1), 5)),
    "schedule by update": lambda: inline(
        Update(ADAM, 4, "instances", schedule=partial(StepLR, step_size=3), schedule_every="update")
    ),
    "schedule by epoch": lambda: inline(Update(ADAM, 4, "instances", schedule=partial(ExponentialLR, gamma=0.5))),
    "clipped": lambda: inline(Update(ADAM, 4, "instances", clip_norm=0.1)),
    "an update is larger than a wave": lambda: inline(Update(ADAM, 21, "instances")),
    "an update is larger than an epoch": lambda: inline(Update(ADAM, 1000, "instances")),
    "stash": lambda: inline(Update(ADAM, 2, weights="stash"), schedule="fifo", wave_size=2),
    "sweep": lambda: inline(Update(MOMENTUM, 2), schedule="sweep", wave_size=3),
    "random schedule": lambda: inline(Update(ADAM, 2), schedule="random", wave_size=2, seed=3),
    "one at a time": lambda: inline(Update(ADAM, 1, "instances"), max_active_keys=1),
    "tiles": tiled,
    "replicas, epoch": copies("epoch"),
    "replicas, updates": copies("updates"),
    "replicas, ring": copies("ring"),
    "replicas, gradients": copies("gradients"),
    "replicas, shared": copies("shared"),
    "replicas of the model": copies("updates", None),
}


@pytest.mark.parametrize("name", RUNTIMES)
def test_within_epochs(name: str, tmp_path: Path) -> None:
    assert_resumes(RUNTIMES[name], tmp_path, every=13, epochs=2)


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("name", ["adam", "schedule by epoch", "replicas, updates"])
def test_at_the_ends_of_epochs(name: str, barrier: bool, tmp_path: Path) -> None:
    assert_resumes(RUNTIMES[name], tmp_path, every="1 epoch", epochs=4, barrier=barrier)


def test_within_epochs_that_wait_for_one_another(tmp_path: Path) -> None:
    assert_resumes(RUNTIMES["adam"], tmp_path, every=7, epochs=3, barrier=True)


def noisy(epoch: int) -> Iterator[Any]:
    """Augmentation from every global generator."""
    for xs, mood, size in random.sample(TRAIN, len(TRAIN)):
        yield xs, mood, size + torch.rand(1) + random.random() + np.random.rand()  # noqa: NPY002


@pytest.mark.parametrize("every", [8, "1 epoch"])
def test_data_that_are_drawn_from_global_generators(every: Any, tmp_path: Path) -> None:
    assert_resumes(RUNTIMES["adam"], tmp_path, every=every, epochs=3, train=noisy)


def test_a_shuffling_data_loader(tmp_path: Path) -> None:
    """Its order is drawn from torch's global generator when an epoch begins."""
    loader: Any = DataLoader(TRAIN, batch_size=None, shuffle=True)  # type: ignore[arg-type]
    assert_resumes(RUNTIMES["adam"], tmp_path, every=8, epochs=2, train=loader)


def test_without_validation(tmp_path: Path) -> None:
    assert_resumes(RUNTIMES["momentum"], tmp_path, every=7, epochs=2, valid=None)


def test_message_by_message(tmp_path: Path) -> None:
    """Equal up to rounding: the order of rows in a batch depends on where a cache has room."""

    def make() -> Inline:
        return inline(Update(SGD_, 4, "instances"), waves=False)

    with make() as runtime:
        wanted, weights = train(runtime, tmp_path / "whole", every=13, epochs=2), runtime.snapshot().tensors
    with make() as runtime:
        found = train(runtime, tmp_path / "part", every=13, epochs=2, resume=tmp_path / "whole" / "checkpoint-000002")
        for name, tensor in runtime.snapshot().tensors.items():
            torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-5)
    assert found.history[1].valid_loss == pytest.approx(wanted.history[1].valid_loss, rel=1e-4)


@pytest.mark.parametrize(
    "make",
    [partial(MultiStepLR, milestones=[1, 3]), partial(ReduceLROnPlateau, patience=0, factor=0.5)],
    ids=["milestones", "plateau"],
)
def test_callbacks_continue(make: Any, tmp_path: Path) -> None:
    """The schedule of the loop, the best weights, and the patience: the run stops in the same epoch."""
    made: list[BestWeights] = []

    def callbacks() -> list[Any]:
        made.append(BestWeights())
        return [LearningRate(make), made[-1], EarlyStopping("train_loss", patience=2, min_delta=0.25)]

    assert_resumes(RUNTIMES["adam"], tmp_path, callbacks, every=11, epochs=6)
    assert len({(best.epoch, best.value) for best in made}) == 1
    weights = [torch.cat([w.flatten() for w in best.state_dict.values()]) for best in made if best.state_dict]
    assert len(weights) == len(made)
    assert all(torch.equal(weights[0], others) for others in weights)
