"""A loader that writes the next instance into the memory of one in flight is refused; constants are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ampnet import DataError, Inline, Instance, Processes, Stream, feed
from ampnet.reuse import EVERY, FIRST, MOST, RARELY, WINDOW, BufferWatch, checksum
from tests.replicas.small import WIDTH, chain

linux = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="worker processes need Linux")


def one(x: Tensor, y: Tensor) -> Instance:
    return Instance({"x": feed(x, t=list(range(len(x)))), "y": feed(y, t=list(range(len(y))))})


def numbered(count: int) -> list[Tensor]:
    return [torch.full((2, WIDTH), float(i + 1), dtype=torch.float64) for i in range(count)]


def reusing(count: int, buffers: int = 1, shared: str = "x") -> Iterator[Instance]:
    """Fills so many buffers in turn, for one of the inputs."""
    ring = [torch.zeros(2, WIDTH, dtype=torch.float64) for _ in range(buffers)]
    for i, fresh in enumerate(numbered(count)):
        buffer = ring[i % buffers].copy_(fresh)
        yield one(buffer, fresh) if shared == "x" else one(fresh, buffer)


RUNTIMES: dict[str, Any] = {
    "waves": lambda graph: Inline(graph, max_active_keys=4),
    "one in flight": lambda graph: Inline(graph, max_active_keys=1),
    "messages": lambda graph: Inline(graph, max_active_keys=4, waves=False),
    "processes": lambda graph: Processes(graph, workers=2, max_active_keys=4),
}


@pytest.mark.parametrize("kind", [*list(RUNTIMES)[:-1], pytest.param("processes", marks=linux)])
@pytest.mark.parametrize("shared", ["x", "y"])
@pytest.mark.parametrize("train", [True, False])
def test_a_loader_that_fills_one_buffer_again_and_again_is_refused(kind: str, shared: str, train: bool) -> None:
    """Once, such a loader was trained on, silently: all instances in flight had the data of the last one."""
    with RUNTIMES[kind](chain("linear")) as runtime:
        said = f"stream 'mine': instance 2 .input '{shared}'. was written into the memory of instance 1 .*clone"
        with pytest.raises(DataError, match=said):
            runtime.run([Stream(reusing(9, shared=shared), train, "mine")])
        assert not runtime.held()


@pytest.mark.parametrize("buffers", [2, 5, FIRST, FIRST + 4, 40])
def test_fewer_buffers_than_instances_in_flight(buffers: int) -> None:
    with Inline(chain("linear"), max_active_keys=50) as inline, pytest.raises(DataError, match="fills one buffer"):
        inline.train(reusing(400, buffers))


@pytest.mark.parametrize("buffers", [3, 6, FIRST + 4])
def test_more_buffers_than_instances_in_flight_are_fine(buffers: int) -> None:
    with Inline(chain("linear"), max_active_keys=buffers - 2) as inline:  # one more is read ahead
        want = inline.infer([one(x, x) for x in numbered(100)]).loss
        assert inline.infer(reusing(100, buffers)).loss == pytest.approx(want)


def test_memory_of_numpy_is_seen_too() -> None:
    buffer = np.zeros((2, WIDTH))

    def loader() -> Iterator[Instance]:
        for i in range(9):
            buffer[:] = i + 1
            yield one(torch.from_numpy(buffer), torch.zeros(2, WIDTH, dtype=torch.float64))

    with Inline(chain("linear")) as inline, pytest.raises(DataError, match="input 'x'"):
        inline.train(loader())


def test_constants_copies_lists_and_repeated_instances_are_fine() -> None:
    constant = torch.zeros(5, WIDTH, dtype=torch.float64)
    again = one(constant[:2] + 1, constant[:2])

    def loader() -> Iterator[Instance]:
        for i in range(300):
            x = torch.full((1 + i % 4, WIDTH), float(i), dtype=torch.float64)
            yield one(x, constant[: len(x)])
        yield from [again] * 40

    graph = chain("linear")
    with Inline(graph, max_active_keys=16) as inline:
        assert inline.train(loader()).instances == 340
        assert inline.train(one(b.clone(), b) for b in numbered(50)).instances == 50
        buffer = torch.zeros(2, WIDTH, dtype=torch.float64)
        assert inline.train([one(buffer, buffer)] * 9 + [one(buffer, buffer)]).instances == 10


def test_a_payload_changed_within_the_same_instance() -> None:
    """The same instance again is fine, unless its payload was written to meanwhile."""
    again = one(torch.zeros(2, WIDTH, dtype=torch.float64), torch.zeros(2, WIDTH, dtype=torch.float64))

    def loader() -> Iterator[Instance]:
        for i in range(9):
            payload = again.feeds["x"].payload
            assert payload is not None
            payload.fill_(i)
            yield again

    with Inline(chain("linear")) as inline, pytest.raises(DataError, match="instance 2 .input 'x'."):
        inline.train(loader())


def test_constants_are_looked_at_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a constant that does change is found within a few dozen instances."""
    constant, taken = torch.zeros(2, WIDTH), []
    monkeypatch.setattr("ampnet.reuse.checksum", lambda payload: taken.append(1) or checksum(payload))
    watch = BufferWatch("train")
    for position in range(WINDOW):
        watch.read(one(constant, torch.full((2, WIDTH), float(position))), position)
        if position > 8:
            watch.done(position - 8)
    assert len(taken) < 4 * FIRST + 2 * (6 + WINDOW // RARELY)
    with pytest.raises(DataError, match="input 'x'"):
        for position in range(EVERY, EVERY + 2 * RARELY + 2):
            watch.read(one(constant.add_(1), torch.zeros(2, WIDTH)), position)
    assert watch.fault is not None


def test_fresh_tensors_cost_checksums_of_the_first_instances_only(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr("ampnet.reuse.checksum", lambda payload: taken.append(1) or checksum(payload))
    watch = BufferWatch("train")
    for position in range(2 * EVERY):
        watch.read(one(torch.zeros(1, 2), torch.zeros(1, 2)), position)
        if position >= 8:
            watch.done(position - 8)
    assert len(taken) == 2 * FIRST
    assert len(watch._at) <= 16


def test_what_is_done_is_held_no_longer() -> None:
    watch = BufferWatch("train")
    buffer = torch.zeros(2, WIDTH)
    for position in range(20):
        watch.read(one(buffer.fill_(position), buffer), position)  # one in flight at a time: nothing is wrong
        watch.done(position)
    assert not watch._at
    assert not watch._live
    assert not watch._sums


@pytest.mark.parametrize(
    "payload",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(3, 4).bfloat16(),
        torch.randn(3, 4, requires_grad=True),
        torch.arange(12).reshape(3, 4),
        torch.randn(3, 4) > 0,
        torch.randn(3, 4, dtype=torch.complex64),
        torch.randn(2 * MOST, 3),
        torch.randn(1, 1).expand(5, 7),
    ],
)
def test_a_checksum_of_any_payload(payload: Tensor) -> None:
    before = checksum(payload)
    assert checksum(payload) == before
    with torch.no_grad():
        other = ~payload if payload.dtype == torch.bool else payload + 1
    assert checksum(other) != before


def test_payloads_without_memory_are_left_alone() -> None:
    watch = BufferWatch("train")
    for position in range(3):
        sparse = torch.eye(3).to_sparse()
        watch.read(Instance({"x": feed(sparse), "y": feed(None, messages=1), "z": feed(torch.zeros(1))}), position)
