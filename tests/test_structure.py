"""Structure: an instance's own arrays, looked up by state for messages of many at once, dropped on retirement."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampnet.errors import StateError
from ampnet.state import States
from ampnet.structure import Shelf, Structure


def test_lookups_go_to_each_messages_own_instance() -> None:
    shelf = Shelf()
    shelf.add({3: Structure(parent=[1, 1, -1]), 9: Structure(parent=[4, 5])})
    states = States.of(instance=[9, 3, 3], node=[1, 0, 2])
    view = shelf.at(states)
    assert view.get("parent", states.node).tolist() == [5, 1, -1]
    assert view.size("parent").tolist() == [2, 3, 3]


def test_lists_give_the_entries_of_each_item() -> None:
    edges_from = np.array([2, 0, 0, 2])
    shelf = Shelf()
    shelf.add({1: Structure(**Structure.lists("out", edges_from, 3)), 2: Structure(**Structure.lists("out", [], 1))})
    states = States.of(instance=[1, 1, 2, 1], node=[0, 1, 0, 2])
    view = shelf.at(states)
    assert view.count("out", states.node).tolist() == [2, 0, 0, 2]
    owner, entry = view.entries("out", states.node)
    assert owner.tolist() == [0, 0, 3, 3]
    assert entry.tolist() == [1, 2, 0, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=60))
def test_adding_and_dropping_in_any_order_keeps_the_living_right(steps: list[tuple[bool, int]]) -> None:
    shelf, alive, number = Shelf(), {}, 0
    for add, value in steps:
        if add or not alive:
            number += 1
            alive[number] = np.arange(value) * number
            shelf.add({number: Structure(a=alive[number])})
        else:
            gone = list(alive)[value % len(alive)]
            del alive[gone]
            shelf.drop(np.array([gone]))
        assert len(shelf) == len(alive)
        for instance, array in alive.items():
            states = States.of(instance=np.full(len(array), instance), i=np.arange(len(array)))
            assert shelf.at(states).get("a", states.i).tolist() == array.tolist()
    shelf.drop(np.array(list(alive)))
    assert len(shelf) == 0


def test_mistakes_are_named() -> None:
    shelf = Shelf()
    shelf.add({3: Structure(parent=[1, 1])})
    with pytest.raises(StateError, match="instance 3 is here already"):
        shelf.add({3: Structure(parent=[1])})
    with pytest.raises(StateError, match="instance 4 has no structure 'parent'"):
        shelf.add({4: Structure(edges=[1])})
    with pytest.raises(StateError, match="structure 'parent' of instance 3 has 2 entries; entry 7 was asked for"):
        shelf.at(States.of(instance=[3])).get("parent", np.array([7]))
    with pytest.raises(StateError, match="no structure 'edges'; there are parent"):
        shelf.at(States.of(instance=[3])).get("edges", np.array([0]))
    shelf.drop(np.array([3]))
    with pytest.raises(StateError, match="instance 3 has no structure here"):
        shelf.at(States.of(instance=[3])).get("parent", np.array([0]))
    with pytest.raises(StateError, match="one row of integers"):
        Structure(parent=[0.5])
    with pytest.raises(StateError, match="item 5 of 3"):
        Structure.lists("out", np.array([5]), 3)


def test_instances_may_come_out_of_order() -> None:
    shelf = Shelf()
    shelf.add({9: Structure(a=[90, 91])})
    shelf.add({3: Structure(a=[30]), 12: Structure(a=[120])})
    states = States.of(instance=[12, 3, 9, 9], i=[0, 0, 1, 0])
    assert shelf.at(states).get("a", states.i).tolist() == [120, 30, 91, 90]
    with pytest.raises(StateError, match="instance 4 has no structure here"):
        shelf.at(States.of(instance=[3, 4])).get("a", np.array([0, 0]))
    with pytest.raises(StateError, match="instance 99 has no structure here"):
        shelf.at(States.of(instance=[99])).get("a", np.array([0]))
