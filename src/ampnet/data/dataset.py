"""A data set: records in splits, in an order determined by a seed, and their conversion to a model's arguments.

    data = load("sst")                                     found and read; the rules are in `ampnet.data.places`
    data.splits["train"][17]                               a record: a small frozen dataclass
    data.splits["train"].shuffled(seed=0, epoch=3)         the same records in another order
    graph = compile(model, *data.arguments(data.train[0]))
    graph.instances(map(data.arguments, data.train.shuffled(seed=0, epoch=3)))

A split keeps its records packed (flat arrays, raw pixels) and builds one on access, so that a hundred thousand of them
take no more memory than their file. Arrays of a record are views of the packed data: they must not be written to.
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
    """Records of a data set, built on access. Views (`shuffled`, slices) share the packed data."""

    repeats = True
    """Whether every epoch has the same records: `shuffled` only changes their order."""

    def __init__(self, name: str, read: Callable[[int], R], places: int | Ints) -> None:
        """``read`` builds the record at an index; ``places`` are the indices of this split, in order, or their
        number."""
        self.name, self._read = name, read
        self._places: Ints = np.arange(places) if isinstance(places, int) else places

    @property
    def places(self) -> Ints:
        """The indices of its records, in order; shuffling does not change the index of a record."""
        return self._places

    def read(self, place: int) -> R:
        """Returns the record at an index of the packed data."""
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
        """Returns a view of other indices."""
        return Split(self.name, self._read, places)

    def shuffled(self, seed: int, epoch: int = 0) -> Split[R]:
        """Returns the records in the order of an epoch, which depends on seed and epoch alone."""
        return self.at(np.random.default_rng((seed, epoch)).permutation(self._places))

    def __repr__(self) -> str:
        return f"{self.name}, {len(self):,} records"


class Drawn(Split[R]):
    """Records generated from a seed. Each epoch has new ones: `shuffled` generates instead of reordering."""

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
    """The name that `load` takes."""
    splits: Mapping[str, Split[R]]
    """By name: train, and valid, test or both."""
    arguments: Callable[[R], tuple[Any, ...]]
    """Converts a record to the arguments of a model of `ampnet.models`."""

    @property
    def train(self) -> Split[R]:
        """The training split."""
        return self.splits["train"]

    @property
    def valid(self) -> Split[R]:
        """The validation split: "valid", or "test" if there is no other (as the paper does for MNIST)."""
        return self.splits["valid" if "valid" in self.splits else "test"]

    @property
    def counts(self) -> dict[str, int]:
        """Records of each split."""
        return {name: len(split) for name, split in self.splits.items()}


def load(name: str, data_dir: str | Path | None = None, **options: Any) -> Dataset[Any]:
    """Load the data set of that name, from the first place that has it. ``options`` are those of its module's ``read``.

    Raises `DataError` for missing or damaged data, with file, record and remedy.
    """
    from ampnet.data.catalog import entry_of
    from ampnet.data.places import read

    return read(entry_of(name), data_dir, **options)
