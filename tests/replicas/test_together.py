"""Streams that run together on replicas of a whole model: each has its own losses."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from ampnet import Graph, Inline, Instance, Processes, Stream, feed, replicate
from ampnet.graph import End
from ampnet.nodes import Direction
from ampnet.runtime.protocol import Kind, Ports
from ampnet.runtime.transport import Batch, Frame, Note
from tests.replicas.small import WIDTH, chain

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
HOMES = {"*#1": 0, "*#2": 1}


def twins() -> Graph:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, None, 2)
    return graph


def constant(value: float, count: int) -> list[Instance]:
    """Instances of one loss."""
    x = torch.full((1, WIDTH), value, dtype=torch.float64)
    return [Instance({"x": feed(x, t=0), "y": feed(100 * x, t=0)}) for _ in range(count)]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_streams_that_run_together_have_their_own_losses(listed: bool, again: bool) -> None:
    """Once, a worker computed instances of all streams as one wave, whose mean loss was reported for one of them.

    Three streams on two replicas: pumped in turns, two streams would each have a replica to themselves.
    """
    values = (1.0, 3.0, 5.0)
    with Inline(chain("linear", "tanh", "linear"), update=None) as inline:
        want = [inline.train(constant(value, 2)).loss for value in values]
    assert want[1] > 2 * want[0]
    how: dict[str, Any] = {"affinity": HOMES, "update": None, "max_active_keys": 16}
    with Processes(twins(), workers=2, **how) as runtime:
        if again:
            runtime.train(constant(2.0, 2))
        for _ in range(3):
            some = [constant(value, 40) for value in values]
            streams = [Stream(one if listed else iter(one), True, str(i)) for i, one in enumerate(some)]
            ended = {stats.name: stats for stats in runtime.run(streams, together=True)}
            assert [ended[str(i)].instances for i in range(3)] == [40] * 3
            assert [ended[str(i)].loss for i in range(3)] == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("listed", [True, False])
def test_workers_hear_which_stream_an_instance_is_of(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one `Stream` is run twice at a time, and anew in every run."""
    heard: dict[int, int] = {}
    send = Processes._send

    def sent(runtime: Processes, number: int, frame: Frame) -> None:
        if isinstance(frame, Note) and frame.kind == Kind.STAGE:
            heard.update(dict.fromkeys(frame.arrays["instances"].tolist(), frame.data["stream"]))
        elif isinstance(frame, Batch):
            end, era = runtime._ports.find(frame.target, frame.direction)
            assert (end.node.partition("#")[0], era) in [("linear1", runtime._era), ("loss", runtime._era)]
            stream = runtime._ports.stream(frame.target)
            heard.update(dict.fromkeys(frame.messages.states.column("instance").tolist(), stream))
        send(runtime, number, frame)

    monkeypatch.setattr(Processes, "_send", sent)
    instances = constant(1.0, 6)
    with Processes(twins(), workers=2, affinity=HOMES, update=None, max_active_keys=40) as runtime:
        for _ in range(2):
            heard.clear()
            if listed:
                one = Stream(instances, True, "one")
                runtime.run([one, one, Stream(instances, True, "three")], together=True)
            else:
                runtime.run([Stream(iter(constant(1.0, 6)), True, f"{i}") for i in range(3)], together=True)
            assert sorted(heard.values()) == [0] * 6 + [1] * 6 + [2] * 6


def test_a_target_holds_place_era_and_stream() -> None:
    ports = Ports(twins())
    for direction, ends in zip(Direction, ports.ends, strict=True):
        for end in ends:
            for era in (0, 1, 77_777):
                for stream in (0, 1, 99_999):
                    target = ports.target(end, direction, era, stream)
                    assert 0 <= target < 1 << 62
                    assert ports.find(target, direction) == (end, era)
                    assert ports.stream(target) == stream
    assert ports.stream(ports.target(End("loss#1", 0), Direction.FORWARD, 5)) == 0
