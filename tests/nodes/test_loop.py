"""Loop: where messages go, and that they come back the way they came."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampnet.message import Messages
from ampnet.nodes import Loop
from ampnet.nodes.loop import AGAIN, BACK, DONE, START
from ampnet.nodes.node import Direction, Report
from ampnet.state import States


def loop(enter: bool = True) -> Loop:
    """Rounds t from 0 to count - 1; outside of the loop there is no t."""
    return Loop(
        "t",
        onward=(lambda s: s.replace(t=s.t + 1), lambda s: s.replace(t=s.t - 1)),
        more=lambda s: s.t < s.count,
        enter=(lambda s: s.adding(t=0), lambda s: s.dropping("t")) if enter else None,
        leave=(lambda s: s.dropping("t"), lambda s: s.adding(t=s.count)),
    )


def sent(node: Loop, direction: Direction, port: int, states: States) -> dict[int, States]:
    messages = Messages(torch.arange(len(states), dtype=torch.float32).unsqueeze(1), states)
    handle = node.backward if direction else node.forward
    out = {}
    for output in handle(port, messages):
        assert not isinstance(output, Report)
        assert output[0] is direction
        out[output[1]] = output[2].states
    return out


def test_forward_goes_round_or_out() -> None:
    node = loop()
    out = sent(node, Direction.FORWARD, START, States.of(instance=[0, 1, 2], count=[2, 0, 1]))
    assert out[AGAIN].row(0) == {"instance": 0, "count": 2, "t": 0}
    assert sorted(out[AGAIN].instance.tolist()) == [0, 2]
    assert out[DONE] == States.of(instance=1, count=0)
    out = sent(node, Direction.FORWARD, BACK, States.of(instance=[0, 2], count=[2, 1], t=[0, 0]))
    assert out[AGAIN] == States.of(instance=0, count=2, t=1)
    assert out[DONE] == States.of(instance=2, count=1)


def test_backward_is_the_way_it_came() -> None:
    node = loop()
    out = sent(node, Direction.BACKWARD, DONE, States.of(instance=[0, 1, 2], count=[2, 0, 1]))
    assert out[START] == States.of(instance=1, count=0)
    back = out[BACK]
    assert {(r["instance"], r["t"]) for r in map(back.row, range(len(back)))} == {(0, 1), (2, 0)}
    out = sent(node, Direction.BACKWARD, AGAIN, States.of(instance=[0, 0], count=[2, 2], t=[0, 1]))
    assert out == {START: States.of(instance=0, count=2), BACK: States.of(instance=0, count=2, t=0)}


def test_a_first_round_that_is_pumped_needs_no_way_in() -> None:
    node = loop(enter=False)
    states = States.of(instance=[3, 4], count=[1, 1], t=[0, 0])
    assert sent(node, Direction.FORWARD, START, states) == {AGAIN: states}
    assert sent(node, Direction.BACKWARD, AGAIN, states) == {START: states}


@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_round_is_undone(count: int) -> None:
    node = loop()
    states, ways = States.of(instance=np.arange(3), count=count), []
    (way,) = sent(node, Direction.FORWARD, START, states).items()
    ways.append(way)
    while ways[-1][0] == AGAIN:
        (way,) = sent(node, Direction.FORWARD, BACK, ways[-1][1]).items()
        ways.append(way)
    assert len(ways) == count + 1
    for port, inside in reversed(ways[1:]):
        (way,) = sent(node, Direction.BACKWARD, port, inside).items()
        assert way[0] == BACK
    assert sent(node, Direction.BACKWARD, *ways[0]) == {START: states}
