"""Instances of a worker that does all of them: staged, started, done, told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampnet.graph import End
from ampnet.message import Messages
from ampnet.runtime.whole import Whole
from ampnet.state import States

X, Y = End("linear#1", 0), End("loss#1", 1)


def batch(*instances: int) -> Messages:
    states = States.of(instance=list(instances), t=np.arange(len(instances)))
    return Messages(torch.tensor(instances, dtype=torch.float32).unsqueeze(1), states)


def begun(whole: Whole) -> list[tuple[End, list[int]]]:
    """What is started now."""
    return [(end, messages.states.instance.tolist()) for end, messages in whole.start()]


@pytest.mark.parametrize(("share", "most"), [(1, 1), (2, 1), (4, 1), (5, 3), (6, 3), (100, 50)])
def test_half_of_the_share_is_started_and_of_few_one(share: int, most: int) -> None:
    assert Whole(share).most == most


def test_an_instance_waits_until_all_of_it_is_there() -> None:
    whole = Whole(100)
    whole.stage(X, batch(4, 4, 6), last=False)
    assert not whole.waiting()
    assert begun(whole) == []
    whole.stage(Y, batch(4, 6, 6), last=True)
    assert whole.waiting()
    assert begun(whole) == [(X, [4, 4]), (Y, [4]), (X, [6]), (Y, [6, 6])]
    assert not whole.waiting()


def test_it_is_done_with_its_last_answer_and_told_of_once() -> None:
    whole = Whole(4)
    whole.stage(X, batch(4, 4), last=False)
    whole.stage(Y, batch(4), last=True)
    whole.stage(X, batch(6), last=True)
    assert begun(whole) == [(X, [4, 4]), (Y, [4])]
    whole.answered(batch(4))
    whole.answered(batch(4))
    assert not whole.has_done
    assert begun(whole) == []  # one at a time
    whole.answered(batch(4))
    assert whole.has_done
    assert whole.done() == [4]
    assert not whole.has_done
    assert begun(whole) == [(X, [6])]
    whole.answered(batch(6))
    assert whole.done() == [6]
    assert whole.untold == [4, 6]
    assert whole.tell() == [4, 6]
    assert whole.tell() == []


def test_after_an_error_all_is_forgotten() -> None:
    whole = Whole(4)
    whole.stage(X, batch(1), last=True)
    whole.stage(X, batch(3), last=True)
    whole.stage(X, batch(5), last=False)
    begun(whole)
    whole.answered(batch(1))
    whole.done()
    whole.forget()
    assert not whole.waiting()
    assert not whole.has_done
    assert whole.tell() == []
    whole.stage(Y, batch(7), last=True)
    assert begun(whole) == [(Y, [7])]


def test_payloads_are_those_of_the_instance() -> None:
    whole = Whole(100)
    whole.stage(X, batch(8, 8, 2, 2, 2, 5), last=True)
    got = {m.states.instance[0]: m.payload.flatten().tolist() for _, m in whole.start() if m.payload is not None}
    assert got == {8: [8, 8], 2: [2, 2, 2], 5: [5]}


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=4), max_size=6),
    st.integers(1, 20),
    st.randoms(use_true_random=False),
)
def test_any_instances_are_each_done_once(waves: list[list[tuple[int, int]]], share: int, random: object) -> None:
    """Waves of instances of so many messages at two ends; answers come in any order."""
    whole, number = Whole(share), 0
    sizes: dict[int, int] = {}
    out: list[int] = []
    told: list[int] = []
    for wave in waves:
        xs, ys = [], []
        for at_x, at_y in wave:
            xs += [number] * at_x
            ys += [number] * at_y
            sizes[number] = at_x + at_y
            number += 2
        whole.stage(X, batch(*xs), last=not ys)
        if ys:
            whole.stage(Y, batch(*ys), last=True)
        out += [i for _, some in begun(whole) for i in some]
        assert len(whole._due) <= whole.most
        while out and random.random() < 0.7:  # type: ignore[attr-defined]
            whole.answered(batch(out.pop(random.randrange(len(out)))))  # type: ignore[attr-defined]
            whole.done()
            told += whole.tell()
            out += [i for _, some in begun(whole) for i in some]
    while out:
        whole.answered(batch(out.pop()))
        told += whole.done()
        out += [i for _, some in begun(whole) for i in some]
    whole.tell()
    assert sorted(told) == sorted(sizes)
    assert not whole.waiting()
    assert not whole._due
