"""Generated records as a data set: made once, from a seed, and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ampnet.data import Dataset, Split
from ampnet.experiments.settings import Training

Make = Callable[[int, int], Iterator[tuple[Any, ...]]]
"""Generates a number of records from a seed, as arguments of the model."""


def drawn(name: str, make: Make, train: int, valid: int, settings: Training) -> Dataset[Any]:
    """Both splits. Training has an even seed and validation an odd one, so that no two runs share data across them."""
    sizes = {
        "train": (settings.limited(train), 2 * settings.seed),
        "valid": (settings.limited(valid), 2 * settings.seed + 1),
    }
    splits = {}
    for split, (count, seed) in sizes.items():
        records = list(make(count, seed))
        splits[split] = Split(f"{name} {split}", records.__getitem__, len(records))
    return Dataset(name, splits, tuple)
