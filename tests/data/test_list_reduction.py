"""The list-reduction data: seeded, and right by a slow second opinion."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from ampnet.data.list_reduction import CLASSES, OPERATIONS, VOCABULARY, buckets, generate
from ampnet.errors import DataError


def by_hand(operation: int, digits: list[int]) -> int:
    """The paper's four operations, in its own words."""
    value: float
    if OPERATIONS[operation] == "mean":
        value = statistics.fmean(digits)
    elif OPERATIONS[operation] == "alternate":
        odd = digits[1::2]
        value = statistics.fmean(digits[0::2]) - (statistics.fmean(odd) if odd else 0.0)
    elif OPERATIONS[operation] == "range":
        value = max(digits) - min(digits)
    else:
        value = len(digits)
    return round(value) % 10


def test_labels_are_what_the_operations_say() -> None:
    data = generate(3000, seed=4)
    for tokens, length, label in zip(data.tokens.tolist(), data.lengths.tolist(), data.labels.tolist(), strict=True):
        assert by_hand(tokens[0] - 10, tokens[1:length]) == label


def test_shapes_and_ranges() -> None:
    data = generate(3000, seed=4)
    assert set(data.lengths.tolist()) == set(range(2, 11))
    assert set(data.tokens[:, 0].tolist()) == {10, 11, 12, 13}
    assert data.tokens.max() < VOCABULARY and data.labels.min() >= 0 and data.labels.max() < CLASSES
    assert len(np.unique(data.labels)) == CLASSES


def test_the_seed_decides() -> None:
    assert np.array_equal(generate(50, 1).tokens, generate(50, 1).tokens)
    assert not np.array_equal(generate(50, 1).tokens, generate(50, 2).tokens)


def test_buckets_hold_each_sequence_once_and_one_length() -> None:
    data = generate(1000, seed=4)
    groups = list(buckets(data, 30, np.random.default_rng(0)))
    assert sorted(np.concatenate(groups).tolist()) == list(range(1000))
    assert all(len(set(data.lengths[g].tolist())) == 1 and len(g) <= 30 for g in groups)
    lengths = [int(data.lengths[g[0]]) for g in groups]
    assert lengths != sorted(lengths)
    assert [g.tolist() for g in buckets(data, 30)] == [g.tolist() for g in buckets(data, 30)]


def test_nonsense_is_refused() -> None:
    with pytest.raises(DataError, match="0 sequences were asked for"):
        generate(0, 1)
    with pytest.raises(DataError, match="buckets of 0"):
        list(buckets(generate(5, 1), 0))
