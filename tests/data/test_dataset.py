"""The common interface: splits, orders that follow from seeds, and where data sets are looked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ampnet.data import Split, catalog, load, places
from ampnet.data.dataset import Drawn
from ampnet.errors import DataError
from tests.data.small import COUNTS


def test_a_split_makes_records_when_asked() -> None:
    made: list[int] = []

    def read(i: int) -> int:
        made.append(i)
        return 10 * i

    split = Split("tens", read, 5)
    assert len(split) == 5 and made == []
    assert split[2] == 20 and split[-1] == 40 and made == [2, 4]
    assert list(split) == [0, 10, 20, 30, 40]
    assert list(split[1:3]) == [10, 20]
    with pytest.raises(IndexError, match="record 5 of tens, 5 records"):
        split[5]


def test_a_record_keeps_its_place_in_every_order() -> None:
    split = Split("tens", lambda i: 10 * i, 9)
    view = split[2:7].shuffled(seed=0, epoch=1)
    assert sorted(view.places.tolist()) == [2, 3, 4, 5, 6]
    assert [view.read(place) for place in view.places.tolist()] == list(view)
    assert split.repeats and view.repeats and not Drawn("drawn", str, 3, (0,)).repeats


def test_seed_and_epoch_decide_the_order() -> None:
    split = Split("numbers", int, 50)
    order = list(split.shuffled(seed=3, epoch=1))
    assert sorted(order) == list(range(50)) and order != sorted(order)
    assert order == list(split.shuffled(seed=3, epoch=1))
    assert order != list(split.shuffled(seed=3, epoch=2))
    assert order != list(split.shuffled(seed=4, epoch=1))
    assert list(split) == list(range(50))


def test_drawn_records_are_fresh_every_epoch() -> None:
    split = Drawn("drawn", lambda rng: int(rng.integers(1 << 40)), 20, (7,))
    first, second = split.shuffled(0, 1), split.shuffled(0, 2)
    assert not set(first) & set(second) and not set(first) & set(split)
    assert list(first) == list(split.shuffled(0, 1)) and len(first) == 20
    assert list(first)[5] == first[5]


@pytest.mark.parametrize("name", list(catalog.ENTRIES))
def test_every_data_set_can_be_loaded(name: str, root: Path) -> None:
    data = load(name, root)
    assert data.name == name
    assert data.counts == {**COUNTS.get(name, catalog.ENTRIES[name].counts)}
    for split in data.splits.values():
        assert isinstance(data.arguments(split[0]), tuple)
    if "train" in data.splits:
        assert len(data.train) > 0 and len(data.valid) > 0


def test_the_search_order(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that was given, $AMPNET_DATA, ../shared/data, beside the checkout, the cache."""
    checkout = root.parent / "checkout" / "main"
    checkout.mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr(places, "CHECKOUT", checkout)
    monkeypatch.setenv("AMPNET_DATA", str(root.parent / "environment"))
    given = root.parent / "given"
    expected = [
        given,
        root.parent / "environment",
        root.parent / "work" / "shared" / "data",
        root.parent / "checkout" / "shared" / "data",
        root.parent / "cache" / "ampnet",
    ]
    assert [place.path.resolve() for place in places.places(given)] == expected
    entry = catalog.ENTRIES["qm9"]
    for place in reversed(expected):  # the later ones are there all the time, and lose
        shutil.copytree(root / "qm9", place / "qm9")
        found = places.locate(entry, given)
        assert found is not None and found.resolve() == place / "qm9"


def test_a_place_that_is_named_twice_is_looked_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPNET_DATA", str(root))
    assert [place.why for place in places.places(root)].count("$AMPNET_DATA") == 0


def test_files_are_not_taken_from_two_places(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a data set hides a whole one further down, and is an error."""
    monkeypatch.setenv("AMPNET_DATA", str(root))
    half = root.parent / "half"
    shutil.copytree(root / "mnist", half / "mnist")
    (half / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"half/mnist lacks t10k-labels-idx1-ubyte; 'ampnet data get mnist' fetches it"):
        load("mnist", half)


def test_what_is_nowhere_is_told_with_the_places(root: Path) -> None:
    shutil.rmtree(root / "qm9")
    with pytest.raises(
        DataError, match=r"qm9: not found in .*data/qm9, \.\./shared/data/qm9, .*cache/ampnet/qm9; "
    ) as e:
        load("qm9", root)
    assert str(e.value).endswith("'ampnet data get qm9' fetches it")


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(DataError, match="no data set 'mnits'; did you mean 'mnist'"):
        load("mnits")
    with pytest.raises(DataError, match="no data set 'zzz'; there are: mnist, list-reduction"):
        load("zzz")


def test_packed_or_not_is_the_same(root: Path) -> None:
    import gzip

    before = load("mnist", root).train[3].pixels
    path = root / "mnist" / "train-images-idx3-ubyte.gz"
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert np.array_equal(load("mnist", root).train[3].pixels, before)
