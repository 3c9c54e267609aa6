"""Adaptive depth on generated points: each is to be turned by 20 degrees, so often as it says itself.

Not of the paper. Every instance goes round a loop as often as it wants, from not at all to six times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ampnet.data import Dataset
from ampnet.data.generated import rotations
from ampnet.errors import DataError
from ampnet.experiments.generated import drawn
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Answer, Asking, Facts, Question, Result, Workload, one_row
from ampnet.lang import Model
from ampnet.models import AdaptiveDepth


@dataclass(frozen=True, slots=True)
class Settings(Training):
    """Ours."""

    epochs: int = 10
    learning_rate: float = 0.01
    decay: float = 0.8
    train_size: int = 5_000
    """Training points."""
    valid_size: int = 1_000
    """Validation points."""
    hidden: int = 64
    """Width of the layer that is applied so often."""

    def in_flight(self) -> int:
        return 100

    def frequency(self) -> int:
        return 20


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
    """Two numbers and a whole one."""
    words = text.replace(",", " ").split()
    try:
        x, y, steps = float(words[0]), float(words[1]), int(words[2])
        fits = len(words) == 3 and math.isfinite(x + y) and steps >= 0
    except (ValueError, IndexError):
        fits = False
    if not fits:
        raise DataError(f"{text!r}: not a point and how often it is to be turned; write it like '1, 0, 3'")
    return Question((torch.tensor([x, y]), steps, None), partial(_answer, f"({x:g}, {y:g}) turned {steps} times"))


def _answer(text: str, results: Sequence[Result]) -> Answer:
    x, y = one_row(results).tolist()
    return Answer(f"{text}: ({x:.3f}, {y:.3f})", {"input": text, "point": [x, y]})


WORKLOAD = Turning(
    Settings,
    "adaptive-depth",
    "a layer applied so often as each point says, on generated points",
    "points",
    paper_target=None,
    files=False,
    metric="absolute_error",
    higher_is_better=False,
    input="a point and how often to turn it by 20 degrees, like '1, 0, 3'",
    nodes="first,middle",
)
