"""Instances that workers have from the start: named, not sent, until their payloads are changed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import Graph, Inline, Instance, Processes, feed, replicate
from ampnet.runtime.post import Post
from ampnet.runtime.protocol import Kind
from ampnet.runtime.transport import Note
from tests.replicas.small import WIDTH, chain

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")
HOMES = {"*#1": 0, "*#2": 1}


def twins() -> Graph:
    graph = chain("linear", "tanh", "linear")
    replicate(graph, None, 2)
    return graph


def given(data: Tensor) -> list[Instance]:
    """An instance for each row; payloads are views of the data."""
    zeros = torch.zeros(1, WIDTH, dtype=torch.float64)
    return [Instance({"x": feed(row, t=0), "y": feed(zeros.clone(), t=0)}) for row in data.split(1)]


def inline_loss(instances: list[Instance]) -> float:
    with Inline(chain("linear", "tanh", "linear")) as inline:
        return inline.infer(instances).loss


class Sent:
    """Instances that the controller stages: how many are named, and how many sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.named = self.sent = 0
        send = Post.send

        def sent(post: Post, worker: int, note: Note) -> None:
            if note.kind == Kind.STAGE:
                named = np.asarray(note.arrays["places"]) >= 0
                self.named += int(named.sum())
                self.sent += int((~named).sum())
            send(post, worker, note)

        monkeypatch.setattr(Post, "send", sent)

    def take(self) -> tuple[int, bool]:
        """Instances that were named, and whether any were sent, since the last time."""
        out = self.named, self.sent > 0
        self.named = self.sent = 0
        return out


def test_a_payload_changed_in_place_after_the_fork_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, workers went on with the payloads as they were when the first run started."""
    sent = Sent(monkeypatch)
    torch.manual_seed(0)
    instances = [given(torch.randn(1, WIDTH, dtype=torch.float64))[0] for _ in range(6)]
    how: dict[str, Any] = {"affinity": HOMES, "update": None, "max_active_keys": 4}
    with Processes(twins(), workers=2, **how) as runtime:
        assert runtime.infer(instances).loss == pytest.approx(inline_loss(instances), abs=1e-12)
        assert sent.take() == (6, False)
        payload = instances[3].feeds["x"].payload
        assert payload is not None
        payload.mul_(5)
        for _ in range(2):
            for run in (runtime.infer, runtime.train):
                assert run(instances).loss == pytest.approx(inline_loss(instances), abs=1e-12)
                named, some = sent.take()
                assert some
                assert named < 6
        payload.mul_(2)
        assert runtime.train(instances).loss == pytest.approx(inline_loss(instances), abs=1e-12)
        assert len(runtime._known) == 5


def test_data_written_to_as_a_whole_is_sent_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads that are views of one tensor have one count of writes: all of them may have changed."""
    sent = Sent(monkeypatch)
    torch.manual_seed(0)
    data = torch.randn(6, WIDTH, dtype=torch.float64)
    instances = given(data)
    with Processes(twins(), workers=2, affinity=HOMES, update=None, max_active_keys=4) as runtime:
        runtime.infer(instances)
        assert sent.take() == (6, False)
        data[2] = 7.0
        assert runtime.infer(instances).loss == pytest.approx(inline_loss(instances), abs=1e-12)
        assert sent.take() == (0, True)
        assert not len(runtime._known)


def test_payloads_whose_writes_are_not_counted_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    with torch.inference_mode():
        instances = given(torch.randn(4, WIDTH, dtype=torch.float64))
    with Processes(twins(), workers=2, affinity=HOMES, update=None, max_active_keys=4) as runtime:
        runtime.infer(instances)
        with torch.inference_mode():
            for instance in instances:
                payload = instance.feeds["x"].payload
                assert payload is not None
                payload.fill_(2.0)
        assert runtime.infer(instances).loss == pytest.approx(inline_loss(instances), abs=1e-12)
    assert sent.take() == (0, True)
