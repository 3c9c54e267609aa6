"""The real files, where they are found: the counts of their makers, and models that run on their records."""

from __future__ import annotations

from math import isfinite

import numpy as np
import pytest

from ampnet.data import load, sst
from ampnet.data.catalog import ENTRIES, entry_of
from ampnet.data.check import check, look
from tests.data.test_records import train

pytestmark = [
    pytest.mark.skipif(
        any(look(entry).verdict not in ("here", "generated") for entry in ENTRIES.values()),
        reason="the data sets are not on this machine",
    )
]


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.files])
def test_it_is_whole(name: str) -> None:
    state = check(entry_of(name))
    assert state.verdict == "whole", state.sentence


@pytest.mark.parametrize("name", ["mnist", "sst", "babi15-en-10k", "babi15-symbolic", "qm9"])
def test_models_run_on_it(name: str) -> None:
    data = load(name)
    assert isfinite(train(name, list(map(data.arguments, data.train.shuffled(seed=2)[:12]))))


def test_treebank() -> None:
    trees = load("sst")
    assert isinstance(trees, sst.Treebank)
    sentences = list(trees.train)
    roots = np.bincount([s.labels[-1] for s in sentences]).tolist()
    assert roots == [1092, 2218, 1624, 2322, 1288]
    assert np.bincount(np.concatenate([s.labels for s in sentences])).tolist() == [8245, 34362, 219788, 44194, 11993]
    assert max(len(s.words) for s in sentences) == 52
    assert len(trees.vocabulary) == 21_701
    assert list(trees.vocabulary) == load("glove").tokens.tolist()  # type: ignore[attr-defined]
    assert sum("\u00a0" in trees.vocabulary[w] for s in sentences for w in s.words.tolist()) == 3


def test_digits() -> None:
    data = load("mnist")
    labels = [digit.label for digit in data.train]
    assert np.bincount(labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_molecules() -> None:
    data = load("qm9")
    assert data.mean == pytest.approx(2.673, abs=0.01) and data.std == pytest.approx(1.5035, abs=0.01)  # type: ignore[attr-defined]
    assert {m.index for m in data.valid[:5]} == {m.index for m in load("qm9").valid[:5]}
