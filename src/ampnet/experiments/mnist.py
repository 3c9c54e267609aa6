"""MNIST and the paper's four-layer perceptron: SGD, rate 0.1, minibatches of 100 images as instances; to 97 %.

A minibatch is a bucket: one instance whose messages have a row for each image. Four of them in flight, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.data import Dataset, load, mnist
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.described import MnistSettings as Settings
from ampnet.experiments.images import grey, sent
from ampnet.experiments.workload import (
    Answer,
    Asking,
    Facts,
    Question,
    Workload,
    best,
    limited,
    ordered,
)
from ampnet.instance import Instance
from ampnet.lang import Compiled, Model
from ampnet.models import Mlp


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

    @property
    def posted(self) -> str:
        return "an image file in base64 (PNG, JPEG, GIF or BMP)"

    def told(self, text: str, settings: Settings, facts: Facts) -> Question:
        pixels = grey(sent(text), mnist.SIDE)
        return Question((_row(pixels.reshape(-1)), None), partial(_answer, "image"))


def _row(pixels: np.ndarray) -> Tensor:
    """The model's input from pixels of 0 to 255, for one image or many."""
    return mnist.arguments(mnist.Digit(pixels, 0))[0]


def _answer(path: str, prediction: Tensor) -> Answer:
    digit, probabilities = best(prediction)
    second = int(np.argsort(probabilities)[-2])
    text = f"{path}: {digit}  ({probabilities[digit]:.1%}; then {second}, {probabilities[second]:.1%})"
    return Answer(text, {"input": path, "digit": digit, "probabilities": probabilities})


WORKLOAD = Mnist.of(DESCRIBED["mnist"])
