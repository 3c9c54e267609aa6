"""Permuted layers on generated rows: each applies some of several layers, in an order of its own.

Not of the paper. Batching by depth fails here: at every depth, each instance needs another layer. What is to be learnt
is a teacher of the same make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ampnet.data import Dataset
from ampnet.data.generated import permutations
from ampnet.experiments.generated import drawn
from ampnet.experiments.settings import Training
from ampnet.experiments.workload import Facts, Workload
from ampnet.lang import Model
from ampnet.models import PermutedLayers

CLASSES = 4


@dataclass(frozen=True, slots=True)
class Settings(Training):
    """Ours."""

    epochs: int = 10
    learning_rate: float = 0.01
    decay: float = 0.8
    train_size: int = 10_000
    """Training rows."""
    valid_size: int = 1_000
    """Validation rows."""
    width: int = 16
    """Numbers in a row, and of every layer."""
    layers: int = 3
    """Layers, all of which each row goes through."""

    def in_flight(self) -> int:
        return 100

    def frequency(self) -> int:
        return 10


class Permuted(Workload[Settings]):
    """See the head of this file."""

    def _make(self, settings: Settings) -> Callable[[int, int], Any]:
        return partial(
            permutations, width=settings.width, layers=settings.layers, applied=settings.layers, classes=CLASSES
        )

    def load(self, settings: Settings, data_dir: Path | None = None) -> Dataset[Any]:
        return drawn(self.name, self._make(settings), settings.train_size, settings.valid_size, settings)

    def arguments(self, settings: Settings, facts: Facts) -> Callable[[Any], tuple[Any, ...]]:
        return tuple

    def model(self, settings: Settings, facts: Facts) -> Model:
        return PermutedLayers(settings.width, settings.layers, CLASSES)

    def example(self, settings: Settings) -> tuple[Any, ...]:
        example: tuple[Any, ...] = next(self._make(settings)(1, 0))
        return example


WORKLOAD = Permuted(
    Settings,
    "permuted-layers",
    "layers in an order that each row has for itself, on generated rows",
    "rows",
    paper_target=None,
    files=False,
    nodes="layers_0,layers_1",
)
