"""Dispatch: by turns or to the shortest queue, and written into the state."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampnet.message import Messages
from ampnet.nodes.collect import Collect
from ampnet.nodes.dispatch import Dispatch
from ampnet.nodes.node import Direction, Outputs, Report
from ampnet.state import States


def messages(*t: int, train: bool = True) -> Messages:
    rows = torch.tensor(t, dtype=torch.float32).unsqueeze(1)
    return Messages(rows, States.of(instance=5, t=list(t)), train=train)


def sent(outputs: Outputs) -> dict[int, Messages]:
    out = {}
    for output in outputs:
        assert not isinstance(output, Report)
        way, port, some = output
        assert way is Direction.FORWARD
        out[port] = some
    return out


def shares(outputs: Outputs) -> dict[int, list[int]]:
    """Way -> the t of what went there; payload and field must say the same."""
    out = {}
    for port, some in sent(outputs).items():
        assert some.payload is not None
        assert some.payload.flatten().tolist() == some.states.t.tolist()
        assert (some.states.column("replica") == port).all()
        out[port] = some.states.t.tolist()
    return out


def test_in_turns() -> None:
    node = Dispatch("replica", ("1", "2", "3"), "round-robin")
    assert shares(node.forward(0, messages(0, 1, 2, 3))) == {0: [0, 3], 1: [1], 2: [2]}
    assert shares(node.forward(0, messages(4))) == {1: [4]}
    assert shares(node.forward(0, messages(5, 6))) == {0: [6], 2: [5]}
    assert node.describe() == "Dispatch round-robin"


def test_to_the_shortest_queue() -> None:
    """Way 3 answers at once, so it gets what comes next; equal ways take turns.

    way 1    0 3        6
    way 2    1          7
    way 3    2 <2   4 5
    """
    node = Dispatch("replica", ("1", "2", "3"), "shortest")
    out = sent(node.forward(0, messages(0, 1, 2, 3)))
    assert {way: m.states.t.tolist() for way, m in out.items()} == {0: [0, 3], 1: [1], 2: [2]}
    node.backward(2, out[2])
    assert shares(node.forward(0, messages(4))) == {2: [4]}
    assert {way: len(some) for way, some in shares(node.forward(0, messages(5, 6))).items()} == {1: 1, 2: 1}
    assert node.held() == {"under way": 6}


def test_equal_ways_take_turns_also_one_by_one() -> None:
    node = Dispatch("replica", ("1", "2", "3"), "shortest")
    ways = []
    for t in range(9):
        ((way, some),) = sent(node.forward(0, messages(t))).items()
        node.backward(way, some)
        ways.append(way)
    assert Counter(ways) == {0: 3, 1: 3, 2: 3}


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=30))
def test_the_shortest_queue_is_filled_to_one_level(ways: int, steps: list[tuple[int, bool]]) -> None:
    """Against the obvious way: each message to a way that has the fewest then."""
    node = Dispatch("replica", tuple(map(str, range(ways))), "shortest")
    under_way = [0] * ways
    for count, answers in steps:
        got = {way: len(some) for way, some in sent(node.forward(0, messages(*range(count)))).items()}
        levels = list(under_way)
        for _ in range(count):
            levels[levels.index(min(levels))] += 1
        for way, number in got.items():
            under_way[way] += number
        assert sum(got.values()) == count
        assert sorted(under_way) == sorted(levels)
        if answers and max(under_way):
            way = under_way.index(max(under_way))
            some = messages(*range(under_way[way]))
            node.backward(way, some.with_states(some.states.adding(replica=way)))
            under_way[way] = 0
        assert node.held() == {"under way": sum(under_way)}


def test_a_gradient_goes_back_without_the_field() -> None:
    node = Dispatch("replica", ("1", "2"), "round-robin")
    out = sent(node.forward(0, messages(0, 1)))
    for way, some in out.items():
        (output,) = node.backward(way, some)
        assert not isinstance(output, Report)
        assert output[:2] == (Direction.BACKWARD, 0)
        assert output[2].states.fields == ("instance", "t")
    assert node.held() == {"under way": 0}


def test_inference_is_shared_out_and_not_waited_for() -> None:
    node = Dispatch("replica", ("1", "2"), "shortest")
    assert {w: len(m) for w, m in sent(node.forward(0, messages(0, 1, 2, 3, train=False))).items()} == {0: 2, 1: 2}
    assert node.held() == {"under way": 0}


def test_after_an_error_nothing_is_under_way() -> None:
    node = Dispatch("replica", ("1", "2"), "shortest")
    node.forward(0, messages(0, 1, 2))
    node.forget()
    assert node.held() == {"under way": 0}
    assert len(shares(node.forward(0, messages(0, 1)))) == 2


@pytest.mark.parametrize("by", ["round-robin", "shortest"])
def test_no_message_at_all(by: str) -> None:
    node = Dispatch("replica", ("1", "2"), by)  # type: ignore[arg-type]
    assert node.forward(0, messages().slice(0, 0)) == []


def test_fields() -> None:
    node = Dispatch("replica", ("1", "2"), "round-robin")
    assert node.fields_out(0, [("instance", "t")]) == ("instance", "t", "replica")
    assert node.fields_out(0, [None]) is None
    assert Collect("replica", ("1", "2")).fields_out(0, [("instance", "t", "replica")] * 2) == ("instance", "t")


def test_messages_of_several_rows_stay_whole() -> None:
    node = Dispatch("replica", ("1", "2"), "round-robin")
    payload, offsets = torch.arange(6.0).unsqueeze(1), np.array([0, 1, 3, 6])
    out = sent(node.forward(0, Messages(payload, States.of(instance=[0, 1, 2], t=0), offsets)))
    assert {way: m.payload.flatten().tolist() for way, m in out.items()} == {0: [0.0, 3.0, 4.0, 5.0], 1: [1.0, 2.0]}  # type: ignore[union-attr]
