"""Streams that run together: each has its own losses, on replicas of a whole model and on parts of one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from ampnet import Graph, Inline, Instance, Processes, Stream, feed, replicate
from ampnet.runtime.post import Post
from ampnet.runtime.protocol import Kind
from ampnet.runtime.transport import Note
from tests.replicas.small import WIDTH, chain

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
HOMES = {"*#1": 0, "*#2": 1}
PARTS = {"linear1": 0, "tanh2": 1, "linear3": 0, "loss": 1}


def twins() -> Graph:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, None, 2)
    return graph


def constant(value: float, count: int) -> list[Instance]:
    """Instances of one loss."""
    x = torch.full((1, WIDTH), value, dtype=torch.float64)
    return [Instance({"x": feed(x, t=0), "y": feed(100 * x, t=0)}) for _ in range(count)]


@pytest.mark.parametrize("parted", [True, False])
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("again", [True, False])
def test_streams_that_run_together_have_their_own_losses(parted: bool, listed: bool, again: bool) -> None:
    """Once, a worker computed instances of all streams as one wave, whose mean loss was reported for one of them.

    Three streams on two replicas: pumped in turns, two streams would each have a replica to themselves.
    """
    values = (1.0, 3.0, 5.0)
    with Inline(chain("linear", "tanh", "linear"), update=None) as inline:
        want = [inline.train(constant(value, 2)).loss for value in values]
    assert want[1] > 2 * want[0]
    how: dict[str, Any] = {"affinity": PARTS if parted else HOMES, "update": None, "max_active_keys": 16}
    graph = chain("linear", "tanh", "linear") if parted else twins()
    with Processes(graph, workers=2, **how) as runtime:
        if again:
            runtime.train(constant(2.0, 2))
        for _ in range(3):
            some = [constant(value, 40) for value in values]
            streams = [Stream(one if listed else iter(one), True, str(i)) for i, one in enumerate(some)]
            ended = {stats.name: stats for stats in runtime.run(streams, together=True)}
            assert [ended[str(i)].instances for i in range(3)] == [40] * 3
            assert [ended[str(i)].loss for i in range(3)] == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("listed", [True, False])
def test_workers_are_told_which_stream_an_instance_is_of(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where one `Stream` is run twice at a time, and anew in every run."""
    heard: dict[int, int] = {}
    send = Post.send

    def sent(post: Post, worker: int, note: Note) -> None:
        send(post, worker, note)
        if note.kind == Kind.STAGE:
            assert note.data["era"] == 0
            heard.update(dict.fromkeys(np.asarray(note.arrays["instances"]).tolist(), note.data["stream"]))

    monkeypatch.setattr(Post, "send", sent)
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
