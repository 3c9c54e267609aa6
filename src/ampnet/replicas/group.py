"""Group: the replicas of one node, and the table on which they put their weights together.

    cell#1   cell#2   cell#3          members: nodes like any other, each with an updater of its own
       │        │        │
       └──── the table ──┘            sums of weights (or gradients), and of what optimizers remember

One member writes to the table at a time, the one that the group's token has come to (see `ampnet.replicas.member`), so
it needs no lock. With worker processes the table is in shared memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.replicas.sync import Sync
from ampnet.update.updater import Updater, sum_dtype


@dataclass(frozen=True, slots=True)
class Copy:
    """The origin of a node that is a copy."""

    of: str
    """The node that was replicated."""
    number: int
    """The index of this replica, from 0."""
    count: int
    """The number of replicas."""
    by_instance: bool
    """Whether instance i goes to replica i modulo their number, whole."""


@dataclass(slots=True, eq=False)
class Replicas:
    """The replicas of one node with parameters."""

    name: str
    """The node that was replicated."""
    members: tuple[str, ...]
    """The names of its replicas."""
    sync: Sync
    """How they are kept together."""
    route: str
    """How messages are routed to them."""
    by_instance: bool
    """Whether each instance goes to one of them, whole."""
    balanced: bool
    """Whether the controller numbers instances so that the replicas have equally many in flight."""
    table: Table | None = None
    """Made by the runtime; None where weights are frozen."""

    def settings(self) -> dict[str, Any]:
        """The settings as plain data, for logs."""
        return {
            "node": self.name,
            "members": list(self.members),
            "by_instance": self.by_instance,
            "route": self.route,
            "sync": self.sync.when,
            "every": self.sync.every,
            "optimizer": self.sync.optimizer,
        }

    def follow(self, updaters: Sequence[Updater]) -> None:
        """Give all replicas the device, dtype and `requires_grad` of the first, which the user may have changed.

        Where weights are shared, they are in the memory of the first again.
        """
        for updater in updaters[1:]:
            moved = False
            for mine, given in zip(updater.parameters, updaters[0].parameters, strict=True):
                mine.requires_grad_(given.requires_grad)
                if self.sync.when == "shared":
                    apart = mine.data_ptr() != given.data_ptr() or mine.dtype != given.dtype
                else:
                    apart = mine.dtype != given.dtype or mine.device != given.device
                if apart:
                    mine.data = given.data if self.sync.when == "shared" else given.data.clone()
                    moved = True
            if moved:
                updater.rebind()

    def equalise(self, updaters: Sequence[Updater]) -> None:
        """Between runs: all replicas take the weights of the first, which are the model's own."""
        for updater in updaters[1:]:
            for weight, given in zip(updater.weights, updaters[0].weights, strict=True):
                if weight.data_ptr() != given.data_ptr():
                    weight.copy_(given)

    def average(self, updaters: Sequence[Updater]) -> None:
        """Between runs, after an interrupted one: all take their mean. If they are equal, nothing changes.

        Where gradients are averaged, the first is the one that others follow.
        """
        if self.sync.when == "gradients":
            self.equalise(updaters)
            return
        for weights in zip(*(u.weights for u in updaters), strict=True):
            if weights[0].is_floating_point() and not all(torch.equal(weights[0], w) for w in weights[1:]):
                mean = torch.stack([w.to(sum_dtype(w)) for w in weights]).mean(0)
                for weight in weights:
                    weight.copy_(mean)


@dataclass(slots=True)
class Table:
    """Sums over the members that have given so far. The first to give writes, the others add."""

    sums: list[Tensor]
    """Of the weights or gradients, one for each parameter; none where weights are shared. Gradients that were used
    make room for the weights that came of them."""
    memory: list[tuple[int, str, Tensor]]
    """(parameter, name, sum) of optimizer state in the shape of the parameter."""
    steps: list[tuple[int, str, Tensor]]
    """(parameter, name, maximum) of scalar optimizer state: step counts."""
    having: Tensor
    """By parameter: how many members had something to give."""
    versions: Tensor
    """By member: how many updates it made. Each writes its own; their sum is the version of weights that are shared."""
    counts: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    """The number of gradients in the sums."""

    @classmethod
    def of(cls, updater: Updater, sync: Sync, members: int) -> Table:
        """Returns a table for this number of members like this one."""
        sums = [] if sync.when == "shared" else [torch.zeros_like(w, dtype=sum_dtype(w)) for w in updater.weights]
        memory, steps = _remembered(updater) if sync.optimizer == "average" and sync.when != "gradients" else ([], [])
        having, versions = (torch.zeros(n, dtype=torch.int64) for n in (len(updater.weights), members))
        return cls(sums, memory, steps, having, versions)

    def tensors(self) -> list[Tensor]:
        """All of it, to be put elsewhere."""
        named = [tensor for _, _, tensor in (*self.memory, *self.steps)]
        return [*self.sums, *named, self.having, self.versions, self.counts]

    def move(self, tensors: Sequence[Tensor]) -> None:
        """Use these instead, in the order of `tensors`."""
        given = iter(tensors)
        self.sums = [next(given) for _ in self.sums]
        self.memory = [(i, name, next(given)) for i, name, _ in self.memory]
        self.steps = [(i, name, next(given)) for i, name, _ in self.steps]
        self.having, self.versions, self.counts = given

    def carried(self) -> list[Tensor]:
        """What a token takes along where members do not share memory: everything but the members' own counts."""
        named = [tensor for _, _, tensor in (*self.memory, *self.steps)]
        return [*self.sums, *named, self.having, self.counts]

    # -- weights

    def add_weights(self, updater: Updater, first: bool) -> None:
        """Put down the weights of a member, and what its optimizer remembers."""
        for total, weight in zip(self.sums, updater.weights, strict=len(self.sums) > 0):
            total.copy_(weight) if first else total.add_(weight)
        if first:
            self.having.zero_()
        own = [_state(updater, p) for p in updater.parameters]
        for i, state in enumerate(own):
            self.having[i] += bool(state)
        for i, name, total in self.memory:
            given = own[i].get(name)
            if first:
                total.zero_()
            if given is not None:
                total.add_(given)
        for i, name, most in self.steps:
            if first:
                most.zero_()
            if name in own[i]:
                torch.maximum(most, own[i][name], out=most)

    def divide(self, members: int) -> None:
        """All have given: make means of the sums."""
        for total in self.sums:
            total.div_(members)
        for i, _, total in self.memory:
            total.div_(max(1, int(self.having[i])))

    def drift(self, updater: Updater) -> float:
        """How far the weights of a member are from the mean, as a part of the mean's norm."""
        apart = norm = 0.0
        for mean, weight in zip(self.sums, updater.weights, strict=len(self.sums) > 0):
            apart += float((weight - mean).square().sum())
            norm += float(mean.square().sum())
        return math.sqrt(apart / norm) if norm > 0 else 0.0

    def take_memory(self, updater: Updater) -> None:
        """Let a member's optimizer remember the mean."""
        if updater.optimizer is None:
            return
        for i, name, value in (*self.memory, *self.steps):
            if int(self.having[i]):
                state = updater.optimizer.state[updater.parameters[i]]
                if name in state:
                    state[name].copy_(value)
                else:
                    state[name] = value.clone()

    # -- gradients

    def add_gradients(self, updater: Updater, first: bool) -> int:
        """Store the gradients of a member, whose sums restart from zero. Returns their number."""
        for total, given in zip(self.sums, updater.sums, strict=True):
            total.copy_(given) if first else total.add_(given)
        if first:
            self.counts.zero_()
        count = updater.give()
        self.counts += count
        return count

    def put(self, updater: Updater) -> None:
        """The gradients have been used: leave these weights in their place."""
        for total, weight in zip(self.sums, updater.weights, strict=True):
            total.copy_(weight)

    def gradients(self) -> tuple[list[Tensor], int]:
        """The sums, and how many gradients are in them."""
        return self.sums, int(self.counts)


def digest(updater: Updater) -> int:
    """A number that is the same for the same weights."""
    value = 0
    for weight in updater.weights:
        flat = weight.detach().cpu().contiguous().view(-1).view(torch.uint8)
        value = zlib.crc32(memoryview(flat.numpy()), value)  # type: ignore[arg-type]
    return value


def _state(updater: Updater, parameter: nn.Parameter) -> dict[str, Any]:
    if updater.optimizer is None:
        return {}
    found: dict[str, Any] = updater.optimizer.state.get(parameter, {})
    return found


def _remembered(updater: Updater) -> tuple[list[tuple[int, str, Tensor]], list[tuple[int, str, Tensor]]]:
    """What an optimizer of this node will remember, found by a step of one like it. Nothing where that fails."""
    policy = updater.policy
    if policy is None:
        return [], []
    copies = [nn.Parameter(p.detach().clone(), requires_grad=p.requires_grad) for p in updater.parameters]
    for copy in copies:
        copy.grad = torch.zeros_like(copy) if copy.requires_grad else None
    try:
        optimizer = policy.optimizer([copy for copy in copies if copy.requires_grad])
        optimizer.step()
    except Exception:  # an optimizer that wants more than gradients: each keeps its own
        return [], []
    memory, steps = [], []
    for i, copy in enumerate(copies):
        for name, value in optimizer.state.get(copy, {}).items():
            if not isinstance(value, Tensor):
                continue
            if name != "step" and value.shape == copy.shape and value.is_floating_point():
                memory.append((i, name, torch.zeros_like(value)))
            elif value.numel() == 1:
                steps.append((i, name, torch.zeros_like(value)))
    return memory, steps
