"""Sources: iterables, data sets and loaders that samples are read from.

    an iterable                              its items
    a Dataset with len() and [i]             items 0 .. len - 1; it needs no __iter__
    DataLoader(..., batch_size=None)         its items
    DataLoader(..., collate_fn=list)         the items of its batches: the runtime makes batches itself
    torch_geometric.loader.DataLoader        the graphs of its batches

With ``shuffle`` the items are read in a random order, which requires ``len()`` and ``[i]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, default_collate

from ampnet.errors import DataError, a
from ampnet.lang.spaces import Space


def samples(source: Any, shuffle: bool = False, seed: int | None = None) -> Iterable[Any]:
    """Returns the samples of a source. ``seed`` fixes the order of ``shuffle``; None: a different order each time."""
    if isinstance(source, Space):
        raise DataError(f"{source!r} is one argument of one sample: give a list of samples, for one of them [sample]")
    by_number = hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, Mapping)
    if isinstance(source, Mapping):
        keys = ", ".join(map(repr, list(source)[:6]))
        raise DataError(
            f"a dict ({keys}) is one instance, or several data sets: use graph.instance(...) for the one, and give one "
            f"data set of the others"
        )
    if shuffle and not by_number:
        raise DataError(
            f"shuffle=True reads samples by number, and a {type(source).__name__} has no len() or no [i]: give a list "
            f"or a map-style Dataset, or shuffle where the data come from"
        )
    if seed is not None and not shuffle:
        raise DataError("seed is that of the order, which is random with shuffle=True only")
    if shuffle:
        order = np.random.default_rng(seed).permutation(len(source)).tolist()
        return [source[i] for i in order] if isinstance(source, list | tuple) else _chosen(source, order)
    if isinstance(source, DataLoader):
        return source if source.batch_size is None and source.batch_sampler is None else _unpacked(source)
    if hasattr(source, "__iter__"):
        found: Iterable[Any] = source
        return found
    if by_number:
        return _chosen(source, range(len(source)))
    raise DataError(f"{a(type(source).__name__)} is no source of instances: it has neither __iter__ nor len() and [i]")


def _chosen(source: Any, order: Iterable[int]) -> Iterator[Any]:
    for number in order:
        yield source[number]


def _unpacked(loader: Any) -> Iterator[Any]:
    if loader.collate_fn is default_collate:
        raise DataError(
            "this DataLoader stacks samples into batches, which cannot be taken apart again: give it batch_size=None, "
            "or collate_fn=list; the runtime makes batches of instances itself"
        )
    for batch in loader:
        if hasattr(batch, "to_data_list"):
            batch = batch.to_data_list()
        if not isinstance(batch, list):
            raise DataError(
                f"the DataLoader's collate_fn gives a {type(batch).__name__} for a batch, a list of samples is needed: "
                f"give it batch_size=None, or collate_fn=list"
            )
        yield from batch
