"""Permuted layers on generated rows: each applies some of several layers, in its own order.

Not of the paper. Batching by depth fails here: at every depth, each instance needs another layer. What is to be learnt
is a teacher of the same make.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ampnet.data import Dataset
from ampnet.data.generated import permutations
from ampnet.experiments.described import DESCRIBED
from ampnet.experiments.described import PermutedLayersSettings as Settings
from ampnet.experiments.generated import drawn
from ampnet.experiments.workload import Facts, Workload
from ampnet.lang import Model
from ampnet.models import PermutedLayers

CLASSES = 4


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


WORKLOAD = Permuted.of(DESCRIBED["permuted-layers"])
