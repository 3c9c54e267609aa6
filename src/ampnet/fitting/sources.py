"""Sources: convert the data of `fit` to the instances of each epoch.

    a list or tuple           of samples or instances: converted to instances once, and shuffled by seed and epoch
    a map-style Dataset       read again in each epoch (it may augment), shuffled likewise
    another iterable          iterated in each epoch, in its own order
    a function of the epoch   returns one of these, or any iterable, for an epoch from 1 on

Validation data are not shuffled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ampnet.errors import AmpnetError, DataError
from ampnet.instance import Instance
from ampnet.lang.sources import samples

Source = Callable[[int], Iterable[Instance]]
"""From the number of an epoch to its instances."""


def source_of(data: Any, runtime: Any, *, shuffle: bool | None, seed: int, epochs: int, name: str) -> Source:
    """Returns a function from epoch to instances. ``shuffle`` None: shuffle if the data have ``len()`` and ``[i]``."""
    graph = getattr(runtime, "graph", None)
    read: Callable[[Any], Iterable[Instance]] = graph.read if graph is not None else lambda given: given
    sized = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if callable(data) and not sized and not hasattr(data, "__iter__"):
        if shuffle:
            raise DataError(f"{name} is a function of the epoch: shuffle there, or give a list or a Dataset")
        return lambda epoch: read(data(epoch))
    if not sized and epochs > 1 and hasattr(data, "__next__"):
        raise DataError(
            f"{name} is an iterator, which is used up after one epoch: give a list, a Dataset, or a function of the "
            f"epoch that returns an iterable"
        )
    mixes = sized if shuffle is None else shuffle
    if not isinstance(data, list | tuple):
        return lambda epoch: read(samples(data, mixes, _seed(seed, epoch) if mixes else None))
    kept: list[Instance] = []

    def instances(epoch: int) -> Sequence[Instance]:
        if not kept:
            for number, sample in enumerate(data):
                try:
                    kept.extend(read([sample]))
                except AmpnetError as error:
                    raise DataError(f"sample {number} of {name}: {error}") from error
            offer = getattr(runtime, "offer", None)
            if offer is not None:
                offer(kept)
        if not mixes:
            return kept
        return [kept[i] for i in np.random.default_rng(_seed(seed, epoch)).permutation(len(kept))]

    return instances


def length_of(data: Any) -> int | None:
    """Returns the number of examples, or None if it is unknown."""
    if isinstance(data, list | tuple):
        return sum(one.records if isinstance(one, Instance) else 1 for one in data)
    return len(data) if hasattr(data, "__len__") else None


def _seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence((seed, epoch)).generate_state(1)[0])
