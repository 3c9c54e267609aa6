"""List reduction: sequences of at most ten tokens, an operation and up to nine digits, with the result modulo 10.

    [mean] 3 4 8          mean(L)                            = 5
    [alternate] 3 4 8     mean(L[0::2]) - mean(L[1::2])      = 5.5 - 4, rounded: 2
    [range] 3 4 8         max(L) - min(L)                    = 5
    [length] 3 4 8        len(L)                             = 3

Generated, as in section 6 of the paper. Tokens 0 to 9 are digits, 10 to 13 the operations. A list has one to nine
digits, each length equally likely; results are rounded to the nearest integer (halves to the even one), then taken
modulo 10. The mean of an empty ``L[1::2]`` counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ampnet.data.dataset import Dataset, Split
from ampnet.data.entry import Entry
from ampnet.errors import DataError
from ampnet.lang.spaces import Seq
from ampnet.state import Ints

OPERATIONS = ("mean", "alternate", "range", "length")
VOCABULARY = 10 + len(OPERATIONS)
CLASSES = 10
MAX_TOKENS = 10


@dataclass(frozen=True, slots=True)
class Sequences:
    """``tokens`` [sequences, 10], the ``lengths`` of the rows, and ``labels``."""

    tokens: Ints
    lengths: Ints
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> Digits:
        return Digits(self.tokens[i, : int(self.lengths[i])], int(self.labels[i]))


@dataclass(frozen=True, slots=True)
class Digits:
    """One sequence: ``tokens``, an operation and its digits, and the result."""

    tokens: Ints
    label: int


def arguments(record: Digits) -> tuple[Seq, Tensor]:
    """Returns the arguments of `ListReduction`."""
    return Seq(torch.from_numpy(record.tokens)), torch.tensor(record.label)


def generate(count: int, seed: int) -> Sequences:
    """Generate ``count`` sequences from ``seed``."""
    if count < 1:
        raise DataError(f"list reduction: {count} sequences were asked for")
    rng = np.random.default_rng(seed)
    digits = rng.integers(1, MAX_TOKENS, count)
    operation = rng.integers(0, len(OPERATIONS), count)
    values = rng.integers(0, 10, (count, MAX_TOKENS - 1))
    place = np.arange(MAX_TOKENS - 1)
    inside = place < digits[:, None]
    even = inside & (place % 2 == 0)
    odd = inside & (place % 2 == 1)
    results = np.stack(
        [
            _mean(values, inside),
            _mean(values, even) - _mean(values, odd),
            np.where(inside, values, -1).max(1) - np.where(inside, values, 10).min(1),
            digits,
        ]
    )
    labels = np.rint(results[operation, np.arange(count)]).astype(np.int64) % CLASSES
    tokens = np.zeros((count, MAX_TOKENS), dtype=np.int64)
    tokens[:, 0] = 10 + operation
    tokens[:, 1:] = np.where(inside, values, 0)
    return Sequences(tokens, digits + 1, labels)


def _mean(values: Ints, mask: np.ndarray) -> np.ndarray:
    mean: np.ndarray = (values * mask).sum(1) / np.maximum(mask.sum(1), 1)
    return mean


def buckets(data: Sequences, size: int, rng: np.random.Generator | None = None) -> Iterator[Ints]:
    """Yields groups of ``size`` sequences of one length (the last of each length may be smaller), as indices.

    With ``rng`` both the sequences within a length and the order of the groups are shuffled.
    """
    if size < 1:
        raise DataError(f"list reduction: buckets of {size} sequences were asked for")
    groups = []
    for length in np.unique(data.lengths):
        where = np.flatnonzero(data.lengths == length)
        if rng is not None:
            where = rng.permutation(where)
        groups += [where[i : i + size] for i in range(0, len(where), size)]
    order = rng.permutation(len(groups)) if rng is not None else range(len(groups))
    for i in order:
        yield groups[i]


def read(folder: Path | None = None, seed: int = 0, train: int = 100_000, valid: int = 10_000) -> Dataset[Digits]:
    """Generate both splits. Training has an even seed and validation an odd one, so that no two runs share data."""
    parts = {"train": generate(train, 2 * seed), "valid": generate(valid, 2 * seed + 1)}
    splits = {name: Split(f"list-reduction {name}", data.__getitem__, len(data)) for name, data in parts.items()}
    return Dataset("list-reduction", splits, arguments)


ENTRY = Entry(
    name="list-reduction",
    about="an operation and up to nine digits, and the result modulo 10",
    read=read,
    counts={"train": 100_000, "valid": 10_000},
    licence="generated",
)
