"""States: columns by name, immutable, with arithmetic on whole columns."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ampnet.errors import StateError
from ampnet.state import States


def test_columns_are_named_and_scalars_are_repeated() -> None:
    s = States.of(instance=7, t=[0, 1, 2], length=3)
    assert len(s) == 3
    assert s.t.tolist() == [0, 1, 2]
    assert (s.t < s.length - 1).tolist() == [True, True, False]
    assert s.row(1) == {"instance": 7, "t": 1, "length": 3}


def test_replace_gives_new_states_and_leaves_the_old() -> None:
    s = States.of(instance=[1, 2], t=[5, 6])
    later = s.replace(t=s.t + 1)
    assert later.t.tolist() == [6, 7]
    assert s.t.tolist() == [5, 6]
    assert later.replace(t=later.t - 1) == s


def test_states_cannot_be_written_to() -> None:
    s = States.of(instance=[1, 2], t=[5, 6])
    with pytest.raises(ValueError, match="read-only"):
        s.t[0] = 9
    with pytest.raises(StateError, match=r"states.replace\(t="):
        s.t = np.array([0, 0])
    source = np.array([[1, 2], [5, 6]])
    copied = States(("instance", "t"), source)
    source[0, 0] = 99
    assert copied.instance.tolist() == [1, 2]


def test_fields_are_added_kept_and_dropped() -> None:
    s = States.of(instance=[1, 2], t=[5, 6])
    assert s.adding(edge=[3, 4]).fields == ("instance", "t", "edge")
    assert s.keep("t", "instance").row(0) == {"t": 5, "instance": 1}
    assert s.dropping("t").fields == ("instance",)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda s: s.edge, "no state field 'edge'; this state has instance, t"),
        (lambda s: s.replace(edge=1), "no state field 'edge' to replace"),
        (lambda s: s.replace(t=[1, 2, 3]), r"cannot put \[1, 2, 3\] into 't' of 2 states"),
        (lambda s: s.adding(t=1), "'t' exists already"),
        (lambda s: s.adding(columns=1), "'columns' cannot be a state field"),
        (lambda s: s.keep("edge"), "no state field 'edge' to keep"),
        (lambda s: s.dropping("edge"), "no state field 'edge' to drop"),
        (lambda s: States.of(t=[0.5]), "must be integers"),
        (lambda s: States(("t", "t"), [[0], [1]]), "occurs twice"),
        (lambda s: States(("t",), [[0], [1]]), r"1 field\(s\) .* but 2 column"),
        (lambda s: States.merge([s, s.keep("t", "instance")]), "meet on one edge"),
    ],
)
def test_mistakes_are_named(act: object, words: str) -> None:
    with pytest.raises(StateError, match=words):
        act(States.of(instance=[1, 2], t=[5, 6]))  # type: ignore[operator]


def test_split_and_merge_are_free_of_meaning() -> None:
    s = States.of(instance=np.arange(10), t=np.arange(10) % 3)
    assert States.merge([s.slice(0, 4), s.slice(4, 10)]) == s
    assert s.take(np.array([3, 3, 1])).instance.tolist() == [3, 3, 1]


def test_equality_is_by_value_and_pickling_keeps_it() -> None:
    s = States.of(instance=[1, 2], t=[5, 6])
    assert s == States.of(instance=[1, 2], t=[5, 6])
    assert s != States.of(instance=[1, 2], t=[5, 7])
    assert s != States.of(instance=[1, 2])
    assert pickle.loads(pickle.dumps(s)) == s


def test_description_shows_the_first_few() -> None:
    assert States.of(instance=np.arange(5)).describe(2) == "(instance=0), (instance=1), ... 5 in all"
    assert States.of(instance=np.arange(0)).describe() == "no state"
