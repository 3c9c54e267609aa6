"""Tapes of whole modules: repeated only where the backward must use other weights than the forward did."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import ampnet
from ampnet.lang import loss, repeat, whole
from ampnet.nodes.module import Module
from ampnet.testing import assert_close, assert_compiled
from ampnet.testing.parted import Parted
from ampnet.wave.kernels.module import ModuleKernel


class Bent(nn.Module):
    """A layer whose gradient depends on its weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width) + 0.3 * torch.randn(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.weight) @ self.weight.T


class Chain(ampnet.Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Bent(3), Bent(3)

    def forward(self, x: Tensor, y: Tensor) -> None:
        loss(whole(self.second, whole(self.first, x)), y, "squared_error")


class Looped(ampnet.Model):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Bent(3)

    def forward(self, x: Tensor, y: Tensor) -> None:
        loss(repeat(lambda h: whole(self.inner, h), x, times=3), y, "squared_error")


def data(count: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(1)
    drawn = torch.randn(count, 2, 3, generator=random, dtype=torch.float64)
    return [(both[0], both[1]) for both in drawn]


def parted(weights: Literal["current", "stash", "predict"], seed: int = 0) -> tuple[Parted, dict[str, Tensor]]:
    """Trains a chain on two workers, in an order drawn from a seed, with five waves in flight."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        graph = ampnet.compile(Chain().double(), *data(1)[0])
    update = ampnet.Update(partial(torch.optim.SGD, lr=0.1), 1, "instances", weights=weights, remedies=())
    players = Parted(graph, {"first": 0, "second": 1, "loss": 1}, update=update, seed=seed)
    players.run([[graph.instance(*one)] for one in data(20)], in_flight=5)
    assert not players.held()
    return players, players.weights()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of modules, for each time that one is computed."""
    names: list[str] = []
    compute = Module.compute

    def counted(self: Module, *args: Any) -> Tensor:
        names.append(self.name)
        return compute(self, *args)

    monkeypatch.setattr(Module, "compute", counted)
    return names


def test_a_forward_is_never_repeated_where_its_weights_are_kept(computed: list[str]) -> None:
    parted("stash")
    assert computed.count("first") == computed.count("second") == 20


def test_a_forward_is_repeated_where_current_weights_were_updated_since(computed: list[str]) -> None:
    parted("current")
    assert 20 < computed.count("first") <= 40


def test_a_kept_tape_gives_what_a_repeated_forward_gives(monkeypatch: pytest.MonkeyPatch, computed: list[str]) -> None:
    for seed in range(3):
        monkeypatch.undo()
        _, kept = parted("stash", seed)
        monkeypatch.setattr(ModuleKernel, "_is_good", lambda *args: False)
        _, repeated = parted("stash", seed)
        assert_close(kept, repeated)


def test_weights_that_are_written_to_behind_the_back_of_autograd_are_noticed(computed: list[str]) -> None:
    """``parameter.data`` has its own count of writes: the node's version tells that its optimizer made a step."""

    class Plain(torch.optim.Optimizer):
        def __init__(self, params: Any) -> None:
            super().__init__(params, {"lr": 0.1})

        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                p.data.add_(p.grad, alpha=-0.1)

    _, want = parted("current")
    repeated = computed.count("first")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        graph = ampnet.compile(Chain().double(), *data(1)[0])
    update = ampnet.Update(Plain, 1, "instances", weights="current", remedies=())
    players = Parted(graph, {"first": 0, "second": 1, "loss": 1}, update=update)
    players.run([[graph.instance(*one)] for one in data(20)], in_flight=5)
    assert computed.count("first") == 2 * repeated
    assert_close(players.weights(), want)


def test_rows_of_a_loop_are_read_in_place() -> None:
    """All rounds of a loop are rows of one arena, which is written to after the first tape was made."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert_compiled(Looped().double(), data(4), max_active_keys=4)
