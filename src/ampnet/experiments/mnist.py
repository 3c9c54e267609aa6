"""MNIST and the paper's four-layer perceptron: SGD, rate 0.1, minibatches of 100 images as instances; to 97 %.

A minibatch is a bucket: one instance whose messages have a row for each image. Four of them in flight, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.data import Dataset, load, mnist
from ampnet.experiments.images import grey
from ampnet.experiments.settings import Optimizer, Training
from ampnet.experiments.workload import (
    Answer,
    Asking,
    Facts,
    Question,
    Result,
    Workload,
    best,
    limited,
    one_row,
    ordered,
)
from ampnet.instance import Instance
from ampnet.lang import Compiled, Model
from ampnet.models import Mlp


@dataclass(frozen=True, slots=True)
class Settings(Training):
    """The paper's: SGD with rate 0.1, batches of 100, four in flight."""

    epochs: int = 6
    learning_rate: float = 0.1
    optimizer: Optimizer = "sgd"
    bucket: int = 100
    """Images in an instance; 1: single images."""
    layers: int = 4
    """Layers, the last of which classifies; the others are as wide as an image."""

    def in_flight(self) -> int:
        return max(1, 400 // self.bucket)

    def frequency(self) -> int:
        return max(1, 100 // self.bucket) if self.count == "instances" else 1


class Mnist(Workload[Settings]):
    """See the head of this file."""

    def load(self, settings: Settings, data_dir: Path | None = None) -> Dataset[Any]:
        return limited(load("mnist", data_dir), settings)

    def instances(
        self,
        graph: Compiled,
        settings: Settings,
        facts: Facts,
        data: Dataset[Any],
        split: str,
        epoch: int | None = None,
    ) -> Iterator[Instance]:
        records = ordered(data.splits[split], settings, epoch)
        for at in range(0, len(records), settings.bucket):
            some = list(records[at : at + settings.bucket])
            if len(some) == 1:
                yield graph.instance(*mnist.arguments(some[0]))
                continue
            images = _row(np.stack([digit.pixels for digit in some]))
            yield graph.bucket(len(some), images, torch.tensor([digit.label for digit in some]))

    def model(self, settings: Settings, facts: Facts) -> Model:
        return Mlp(layers=settings.layers)

    def example(self, settings: Settings) -> tuple[Any, ...]:
        return mnist.arguments(mnist.Digit(np.zeros(mnist.SIDE**2), 0))

    def ask(self, inputs: Sequence[str], settings: Settings, facts: Facts, asking: Asking) -> list[Question]:
        return [
            Question((_row(grey(Path(path), mnist.SIDE, asking.invert).reshape(-1)), None), partial(_answer, path))
            for path in inputs
        ]


def _row(pixels: np.ndarray) -> Tensor:
    """Of pixels from 0 to 255 (one image, or many), what the model takes."""
    return mnist.arguments(mnist.Digit(pixels, 0))[0]


def _answer(path: str, results: Sequence[Result]) -> Answer:
    digit, probabilities = best(one_row(results))
    second = int(np.argsort(probabilities)[-2])
    text = f"{path}: {digit}  ({probabilities[digit]:.1%}; then {second}, {probabilities[second]:.1%})"
    return Answer(text, {"input": path, "digit": digit, "probabilities": probabilities})


WORKLOAD = Mnist(
    Settings,
    "mnist",
    "a perceptron of four layers on handwritten digits",
    "images",
    paper_target=0.97,
    input="image files (28 x 28 pixels, or made so)",
    nodes="hidden_0,hidden_1",
)
