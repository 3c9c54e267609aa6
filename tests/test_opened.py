"""A stream that is read in lists of instances: the same ones, at the same positions, as read one by one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ampnet import DataError, Instance, Stream, feed
from ampnet.opened import Opened, read_some
from ampnet.reuse import EVERY, WINDOW


def many(count: int, bad: int | None = None) -> Iterator[Instance]:
    """``bad``: the position at which the loader fails."""
    for position in range(count):
        if position == bad:
            raise OSError("no such file")
        yield Instance({"x": feed(torch.full((1, 1), float(position)), messages=1)})


def opened(source: Iterator[Instance] | list[Instance]) -> Opened:
    made = Opened.of(Stream(source), 0, {})
    made.peek(read_some)
    return made


@pytest.mark.parametrize("most", [1, 2, 7, 100, EVERY])
@pytest.mark.parametrize("listed", [False, True])
def test_instances_and_positions_do_not_depend_on_how_many_are_taken(most: int, listed: bool) -> None:
    count = EVERY + WINDOW + 3 if most > 2 else WINDOW + 40
    stream = opened(list(many(count)) if listed else many(count))
    found: list[tuple[int, float]] = []
    while stream.ahead is not None:
        places, instances = stream.take(read_some, most)
        assert len(places) == len(instances) == min(most, count - len(found))
        found += zip(places, [float(one.feeds["x"].payload) for one in instances], strict=True)  # type: ignore[arg-type]
        assert stream.reach == stream.pumped == len(found)
        assert stream.read == min(len(found) + 1, count)
    assert found == [(position, float(position)) for position in range(count)]


@pytest.mark.parametrize("bad", [5, WINDOW + 5, WINDOW + 149])
def test_a_loader_that_fails_within_a_list_is_told_with_the_right_instance(bad: int) -> None:
    stream = opened(many(2 * WINDOW, bad))
    with pytest.raises(DataError, match=f"the loader failed at instance {bad + 1}: OSError"):
        while stream.ahead is not None:
            stream.take(read_some, 50)


def test_what_is_no_instance_is_named_before_what_failed_behind_it() -> None:
    stream = Opened.of(Stream([one if i != 3 else None for i, one in enumerate(many(9))]), 0, {})  # type: ignore[misc]
    stream.peek(read_some)
    with pytest.raises(DataError, match=r"instance 4 of stream 'train' is None"):
        stream.take(read_some, 8)
