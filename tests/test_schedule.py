"""Schedules: who is served next. Lanes are drawn as ``name direction(arrival x messages)``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ampnet.message import Messages
from ampnet.nodes import Direction, Relu
from ampnet.reference.schedule import BackwardFirst, Fifo, Lane, Random, Schedule, Sweep, make_schedule
from ampnet.state import States

F, B = Direction.FORWARD, Direction.BACKWARD


def lanes(*waiting: tuple[str, Direction, int, int]) -> list[Lane]:
    """Lanes with (node, direction, arrival, messages)."""
    out = []
    for name, direction, arrival, count in waiting:
        node = Relu()
        node.name = name
        lane = Lane(node, direction, 0, True)
        if count:
            states = States.of(instance=np.arange(count))
            lane.push(Messages(torch.zeros(count, 1), states), arrival)
        out.append(lane)
    return out


def served(schedule: Schedule, given: list[Lane], steps: int) -> list[str]:
    schedule.attach(given)
    names = []
    for _ in range(steps):
        chosen = schedule.next()
        if chosen is None:
            break
        lane, most = chosen
        lane.take(most)
        names.append(f"{lane.node.name}{'' if lane.direction is F else '-back'}")
    return names


#        order of lanes:  a      b      b-back  a-back
WAITING = [("a", F, 3, 2), ("b", F, 1, 2), ("b", B, 4, 2), ("a", B, 2, 2)]


def test_sweep_goes_round_in_order_and_passes_over_the_empty() -> None:
    assert served(Sweep(), lanes(*WAITING), 9) == ["a", "b", "b-back", "a-back"]
    assert served(Sweep(), lanes(("a", F, 1, 0), ("b", F, 2, 1), ("b", B, 3, 0)), 9) == ["b"]


def test_sweep_moves_its_cursor_on_even_if_a_lane_fills_again() -> None:
    given = lanes(*WAITING)
    schedule = Sweep()
    assert served(schedule, given, 1) == ["a"]
    given[0].push(Messages(torch.zeros(1, 1), States.of(instance=[9])), 9)
    names = []
    while (chosen := schedule.next()) is not None:
        chosen[0].take(None)
        names.append(chosen[0].node.name)
    assert names == ["b", "b", "a", "a"]


def test_fifo_serves_whoever_waited_longest() -> None:
    assert served(Fifo(), lanes(*WAITING), 9) == ["b", "a-back", "a", "b-back"]


def test_backward_first_serves_gradients_before_activations() -> None:
    assert served(BackwardFirst(), lanes(*WAITING), 9) == ["a-back", "b-back", "b", "a"]


def test_random_is_drawn_from_its_seed() -> None:
    runs = [served(Random(seed), lanes(*WAITING), 20) for seed in (1, 1, 2, 3, 4)]
    assert runs[0] == runs[1]
    assert len({tuple(r) for r in runs}) > 2
    assert all(set(r) == {"a", "b", "a-back", "b-back"} for r in runs)


def test_a_lane_gives_at_most_what_is_asked_oldest_first() -> None:
    (lane,) = lanes(("a", F, 1, 3))
    lane.push(Messages(torch.ones(3, 1), States.of(instance=[10, 11, 12])), 2)
    assert lane.take(4).states.instance.tolist() == [0, 1, 2, 10]
    assert lane.waiting == 2
    assert lane.take(1).states.instance.tolist() == [11]
    assert lane.take(None).states.instance.tolist() == [12]
    assert lane.waiting == 0 and not lane.arrivals


def test_a_lane_does_not_mix_empty_answers_with_gradients() -> None:
    """Zeros in their place would meet residuals that may be NaN: an instance that is skipped must stay skipped."""
    (lane,) = lanes(("a", B, 1, 2))
    lane.push(Messages(None, States.of(instance=[10])), 2)
    lane.push(Messages(torch.ones(1, 1), States.of(instance=[11])), 3)
    taken = [lane.take(None) for _ in range(2)]
    assert [t.states.instance.tolist() for t in taken] == [[0, 1, 11], [10]]
    assert lane.waiting == lane.rows == 0
    assert taken[1].payload is None


def test_a_lane_gives_no_more_than_enough_rows_of_the_oldest_instances() -> None:
    """Batches of 40, 40 and 40 rows, the oldest pushed last: 60 rows are enough, so 40 of it and 20 of the next."""
    (lane,) = lanes(("a", F, 1, 0))
    for arrival, first in enumerate((200, 100, 0)):
        states = States.of(instance=np.arange(first, first + 4))
        lane.push(Messages(torch.zeros(40, 1), states, np.arange(5) * 10), arrival)
    taken = lane.take(None, 60)
    assert taken.states.instance.tolist() == [0, 1, 2, 3, 100, 101]
    assert lane.waiting == 6
    assert lane.rows == 60
    assert lane.take(None, 60).states.instance.tolist() == [200, 201, 202, 203, 102, 103]


def test_unknown_schedules_are_named() -> None:
    with pytest.raises(ValueError, match="unknown schedule 'best'; there are sweep, backward-first, fifo, random"):
        make_schedule("best", 0)
