"""Instances on their way to a worker: what comes out is what went in, named or sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import DataError, Instance, feed
from ampnet.errors import TransportError
from ampnet.instance import Feed
from ampnet.runtime.cutting import Sort
from ampnet.runtime.known import Known
from ampnet.runtime.parcel import culprit, pack, unpack
from ampnet.runtime.transport import Note
from ampnet.structure import Structure

INPUTS = {"x": ("instance", "t"), "h": ("instance",), "y": ("instance",)}
TRAIN = Sort(3, True, frozenset())


def sequence(length: int, seed: int = 0, **settings: Any) -> Instance:
    """Messages of one row, one message of several rows, and a label."""
    random = torch.Generator().manual_seed(seed)
    feeds = {
        "x": feed(torch.randn(length, 2, generator=random), t=np.arange(length)),
        "h": feed(torch.randn(length + 1, 3, generator=random), messages=1),
        "y": feed(torch.tensor([seed])),
    }
    return Instance(feeds, **settings)


def sent(note: Note) -> Note:
    """As it arrives: arrays are copies, the text went through JSON."""
    arrays = {name: a.clone() if isinstance(a, Tensor) else np.array(a) for name, a in note.arrays.items()}
    return Note(note.kind, json.loads(json.dumps(note.data)), arrays)


def assert_same(got: Instance, want: Instance) -> None:
    assert {name for name, one in want.feeds.items() if len(one)} == set(got.feeds)
    for name, mine in got.feeds.items():
        theirs: Feed = want.feeds[name]
        assert mine.fields == theirs.fields
        assert np.array_equal(mine.columns, theirs.columns)
        assert (mine.offsets is None) == (theirs.offsets is None)
        assert mine.offsets is None or np.array_equal(mine.offsets, theirs.offsets)  # type: ignore[arg-type]
        assert (mine.payload is None) == (theirs.payload is None)
        assert mine.payload is None or torch.equal(mine.payload, theirs.payload)  # type: ignore[arg-type]
    assert (got.structure is None) == (want.structure is None)
    if want.structure is not None and got.structure is not None:
        assert list(got.structure.arrays) == list(want.structure.arrays)
        for array, other in zip(got.structure.arrays.values(), want.structure.arrays.values(), strict=True):
            assert np.array_equal(array, other)
    assert got.digest() == want.digest()


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("structured", [False, True])
def test_what_was_sent_comes_out(count: int, structured: bool) -> None:
    given = {}
    for i in range(count):
        structure = Structure(parent=np.arange(i + 2), empty=[]) if structured else None
        given[10 + 3 * i] = sequence(1 + i, i, structure=structure)
    note = pack(given, TRAIN, Known(), INPUTS, team=1, wave=7)
    note = sent(note)
    assert (note.data["team"], note.data["wave"], note.data["stream"], note.data["train"]) == (1, 7, 3, True)
    got = unpack(note, (), INPUTS)
    assert list(got) == list(given)
    for number, one in got.items():
        assert_same(one, given[number])


def test_known_instances_are_named_and_the_others_sent() -> None:
    known = Known()
    there = [sequence(2, seed) for seed in range(3)]
    known.add(there)
    known.seal()
    payload = there[1].feeds["x"].payload
    assert payload is not None
    payload.mul_(2)  # known no more
    given = {4: there[2], 5: there[1], 6: sequence(3, 9), 7: there[0]}
    note = sent(pack(given, TRAIN, known, INPUTS))
    assert note.arrays["places"].tolist() == [2, -1, -1, 0]
    assert len(note.arrays["x states"][0]) == 5
    got = unpack(note, known.instances, INPUTS)
    assert list(got) == [4, 5, 6, 7]
    assert got[4] is there[2]
    assert got[7] is there[0]
    assert_same(got[5], there[1])
    assert_same(got[6], given[6])
    note = pack({1: there[0]}, TRAIN, known, INPUTS)
    assert set(note.arrays) == {"instances", "places"}


def test_inputs_and_payloads_that_are_missing() -> None:
    bare = [
        Instance({"x": feed(torch.zeros(2, 2), t=[0, 1]), "y": feed(None, messages=1)}),
        Instance({"y": feed(None, messages=2), "x": feed(torch.ones(0, 2), t=0)}),
    ]
    got = unpack(sent(pack(dict(enumerate(bare)), Sort(0, False, frozenset({"y"})), Known(), INPUTS)), (), INPUTS)
    assert list(got[0].feeds) == ["x", "y"]
    assert list(got[1].feeds) == ["y"]
    assert len(got[1].feeds["y"]) == 2
    assert not got[0].complete
    assert got[0].feeds["y"].payload is None


def test_what_does_not_fit_together_is_named() -> None:
    wide = Instance({"x": feed(torch.zeros(1, 3), t=0)})
    narrow = Instance({"x": feed(torch.zeros(1, 2), t=0)})
    with pytest.raises(DataError, match="input 'x', instances 3 to 4: payload rows of"):
        pack({3: narrow, 4: wide}, TRAIN, Known(), INPUTS)
    one, other = sequence(1, structure=Structure(a=[1])), sequence(1, structure=Structure(b=[1]))
    with pytest.raises(DataError, match=r"instance 2 has structures \(b\), others have \(a\)"):
        pack({1: one, 2: other}, TRAIN, Known(), INPUTS)
    note = pack({1: Instance({"x": feed(torch.zeros(1, 2, device="meta"), t=0)})}, TRAIN, Known(), INPUTS)
    assert str(culprit(note, TransportError("no"))) == "input 'x': no"
