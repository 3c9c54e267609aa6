"""Adaptive depth on generated points: each is rotated by 20 degrees as many times as it specifies.

Not from the paper. The loop of an instance has as many rounds as the instance specifies, from zero to six.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ampnet.data import Dataset
from ampnet.data.generated import rotations
from ampnet.errors import DataError
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.described import AdaptiveDepthSettings as Settings
from ampnet.experiments.generated import drawn
from ampnet.experiments.workload import Answer, Asking, Facts, Question, Workload
from ampnet.lang import Model
from ampnet.models import AdaptiveDepth


class Turning(Workload[Settings]):
    """See the head of this file."""

    def load(self, settings: Settings, data_dir: Path | None = None) -> Dataset[Any]:
        return drawn(self.name, rotations, settings.train_size, settings.valid_size, settings)

    def arguments(self, settings: Settings, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        return tuple

    def model(self, settings: Settings, facts: Facts) -> Model:
        return AdaptiveDepth(2, settings.hidden, 2)

    def example(self, settings: Settings) -> tuple[Any, ...]:
        return next(rotations(1, 0))

    def ask(self, inputs: Sequence[str], settings: Settings, facts: Facts, asking: Asking) -> list[Question]:
        return [_question(text) for text in inputs]


def _question(text: str) -> Question:
    """Parse a point and a number of steps."""
    words = text.replace(",", " ").split()
    try:
        x, y, steps = float(words[0]), float(words[1]), int(words[2])
        fits = len(words) == 3 and math.isfinite(x + y) and steps >= 0
    except (ValueError, IndexError):
        fits = False
    if not fits:
        raise DataError(f"{text!r}: not a point and how often it is to be turned; write it like '1, 0, 3'")
    return Question((torch.tensor([x, y]), steps, None), partial(_answer, f"({x:g}, {y:g}) turned {steps} times"))


def _answer(text: str, prediction: Tensor) -> Answer:
    x, y = prediction.tolist()
    return Answer(f"{text}: ({x:.3f}, {y:.3f})", {"input": text, "point": [x, y]})


WORKLOAD = Turning.of(DESCRIBED["adaptive-depth"])
