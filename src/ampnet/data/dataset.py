"""A data set: records in splits, in an order that a seed decides, and the way from a record to a model's arguments.

    data = load("sst")                                     found and read; the rules are in `ampnet.data.places`
    data.splits["train"][17]                               a record: a small frozen dataclass
    data.splits["train"].shuffled(seed=0, epoch=3)         the same records in another order
    graph = compile(model, *data.arguments(data.train[0]))
    graph.instances(map(data.arguments, data.train.shuffled(seed=0, epoch=3)))

A split keeps its records packed (flat arrays, raw pixels) and makes one when it is asked for it, so that a hundred
thousand of them cost no more than their file. Arrays of a record are views of what is packed: not to be written to.
Records are counted from 0, lines of a file from 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import numpy as np

from ampnet.state import Ints

R = TypeVar("R")


class Split(Sequence[R]):
    """Records of a data set, made one by one. Views (`shuffled`, slices) share what they are made from."""

    repeats = True
    """Whether every epoch has the same records: `shuffled` only changes their order."""

    def __init__(self, name: str, read: Callable[[int], R], places: int | Ints) -> None:
        """``read`` makes the record at a place; ``places`` are those of this split, in order, or how many there are."""
        self.name, self._read = name, read
        self._places: Ints = np.arange(places) if isinstance(places, int) else places

    @property
    def places(self) -> Ints:
        """Where its records are, in order: what is shuffled keeps its place."""
        return self._places

    def read(self, place: int) -> R:
        """The record at a place."""
        return self._read(place)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> Split[R]: ...
    def __getitem__(self, index: int | slice) -> R | Split[R]:
        if isinstance(index, slice):
            return self.at(self._places[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {self!r}")
        return self._read(int(self._places[index]))

    def __iter__(self) -> Iterator[R]:
        return map(self._read, self._places.tolist())

    def at(self, places: Ints) -> Split[R]:
        """A view on other places."""
        return Split(self.name, self._read, places)

    def shuffled(self, seed: int, epoch: int = 0) -> Split[R]:
        """The same records in the order of an epoch. Seed and epoch decide it, whatever was asked for before."""
        return self.at(np.random.default_rng((seed, epoch)).permutation(self._places))

    def __repr__(self) -> str:
        return f"{self.name}, {len(self):,} records"


class Drawn(Split[R]):
    """Records drawn from a seed. A new epoch has new ones: `shuffled` draws instead of changing an order."""

    repeats = False

    def __init__(self, name: str, draw: Callable[[np.random.Generator], R], count: int, key: tuple[int, ...]) -> None:
        super().__init__(name, lambda i: draw(np.random.default_rng((*key, i))), count)
        self._draw, self._key = draw, key

    def shuffled(self, seed: int, epoch: int = 0) -> Split[R]:
        return Drawn(self.name, self._draw, len(self), (*self._key, seed, epoch))


@dataclass(frozen=True)
class Dataset(Generic[R]):
    """A data set that was read."""

    name: str
    """As `load` knows it."""
    splits: Mapping[str, Split[R]]
    """By name: train, and valid, test or both."""
    arguments: Callable[[R], tuple[Any, ...]]
    """What a model of `ampnet.models` takes, of a record."""

    @property
    def train(self) -> Split[R]:
        """What a run learns from."""
        return self.splits["train"]

    @property
    def valid(self) -> Split[R]:
        """What a run is measured on: "valid", or "test" where there is no other (as the paper does for MNIST)."""
        return self.splits["valid" if "valid" in self.splits else "test"]

    @property
    def counts(self) -> dict[str, int]:
        """Records of each split."""
        return {name: len(split) for name, split in self.splits.items()}


def load(name: str, data_dir: str | Path | None = None, **options: Any) -> Dataset[Any]:
    """The data set of that name, from the first place that has it. ``options`` are those of its module's ``read``.

    What is missing, damaged or not all there is a `DataError` that names file, record and remedy.
    """
    from ampnet.data.catalog import entry_of
    from ampnet.data.places import read

    return read(entry_of(name), data_dir, **options)
