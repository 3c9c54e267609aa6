"""Contender: something that trains and validates batches of a workload: our runtime, or a peer in torch.

Both are made ready beforehand, and are then given numbers of batches for as long as somebody wants them to go on:

    contender.train(lasting(...))  ──>  Part(records, loss, metric)

Where work may still be under way when a call returns (on a GPU), `settle` waits for it.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from ampnet import Inline, Instance, Processes, Update
from ampnet.graph import Graph
from ampnet.instance import StreamStats
from ampnet.update.policy import MakeOptimizer
from bench.peers.peer import Collated, Peer, moved
from bench.workload import Batch, Data, Ours, Workload

SHAPES = 16
"""Of batches, that a compiled peer meets at least before it is timed."""


@dataclass(frozen=True, slots=True)
class Part:
    """What came of some batches."""

    records: int
    loss: float
    """The mean over all that has a loss."""
    metric: float
    """Likewise: the accuracy, or the absolute error."""


class Contender:
    """See the head of this file."""

    device = "cpu"

    def train(self, batches: Iterable[int]) -> Part:
        """Learn from the training batches of these numbers."""
        raise NotImplementedError

    def valid(self, batches: Iterable[int]) -> Part:
        """Go through validation batches, and change nothing."""
        raise NotImplementedError

    def updates(self) -> int | None:
        """How many updates there were so far; None: not known."""
        return None

    def settle(self) -> None:
        """Wait for what is under way."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def warm(self) -> None:
        """Do once what takes long the first time only."""

    def close(self) -> None:
        """Let go of everything."""


def lasting(places: Iterator[int], seconds: float | None = None, most: int | None = None) -> Iterator[int]:
    """Numbers of batches until the time is up, or until there were enough."""
    until = None if seconds is None else time.perf_counter() + seconds
    for place in itertools.islice(places, most):
        yield place
        if until is not None and time.perf_counter() >= until:
            return


# -- ours


def placed(graph: Graph, device: str) -> Graph:
    """The graph on a device. All that is known of devices on our side is here and in `_on`."""
    return graph if device == "cpu" else graph.to(device)


def _on(instance: Instance, device: str) -> Instance:
    """An instance with its payloads on a device."""
    if device == "cpu":
        return instance
    feeds = {
        name: feed if feed.payload is None else replace(feed, payload=feed.payload.to(device))
        for name, feed in instance.feeds.items()
    }
    return replace(instance, feeds=feeds)


def on_device(make: MakeOptimizer, device: str) -> MakeOptimizer:
    """An optimizer for a device: torch has no fused Adagrad for a GPU."""
    if device == "cpu" or not isinstance(make, partial) or make.func is not torch.optim.Adagrad:
        return make
    return partial(make.func, **{name: value for name, value in make.keywords.items() if name != "fused"})


class OurRuntime(Contender):
    """A runtime of ours on a workload."""

    def __init__(self, workload: Workload, data: Data, ours: Ours, device: str = "cpu") -> None:
        self.device = device
        graph = self.graph = placed(ours.graph(workload, data, ours), device)
        self._train, self._valid = (
            [[_on(one, device) for one in ours.instances(graph, batch)] for batch in part]
            for part in (data.train, data.valid)
        )
        settings: dict[str, Any] = {
            "update": Update(on_device(workload.optimizer, device), ours.every, "instances"),
            "updates": {
                node: Update(on_device(make, device), ours.every, "instances")
                for node, make in workload.optimizers.items()
            },
            "max_active_keys": ours.in_flight * ours.replicas,
            **ours.settings,
        }
        self.runtime: Inline | Processes = (
            Inline(graph, **settings) if ours.workers == 1 else Processes(graph, workers=ours.workers, **settings)
        )
        # As peers have their batches collated beforehand, in each process.
        self.runtime.rehearse(one for part in (self._train, self._valid) for batch in part for one in batch)

    def instances_of(self, place: int) -> list[Instance]:
        """Those of a training batch."""
        return self._train[place]

    def train(self, batches: Iterable[int]) -> Part:
        return self._part(self.runtime.train(one for place in batches for one in self._train[place]))

    def valid(self, batches: Iterable[int]) -> Part:
        return self._part(self.runtime.infer(one for place in batches for one in self._valid[place]))

    def _part(self, stats: StreamStats) -> Part:
        self.settle()
        return Part(stats.records, stats.loss, next(iter(stats.metrics.values()), float("nan")))

    def updates(self) -> int | None:
        """Of the node that had most, where nodes are in this process."""
        if not isinstance(self.runtime, Inline):
            return None
        return max(node.updater.version for node in self.graph.parameterised().values())

    def close(self) -> None:
        self.runtime.close()


# -- peers


class TorchPeer(Contender):
    """A peer on a workload."""

    def __init__(self, workload: Workload, data: Data, kind: type[Peer], device: str = "cpu") -> None:
        self.device = device
        self.peer = kind(workload.seeded(data)).to(device)
        self._train, self._valid = (self._collated(part) for part in (data.train, data.valid))
        self.optimizers = self._optimizers(workload)
        self._steps = 0

    def _collated(self, batches: Iterable[Batch]) -> list[Collated]:
        return [moved(self.peer.collate(batch), self.device) for batch in batches]

    def _optimizers(self, workload: Workload) -> list[Optimizer]:
        trained = {name: p for name, p in self.peer.named_parameters() if p.requires_grad}
        out, rest = [], dict(trained)
        for module, make in workload.optimizers.items():
            own = [rest.pop(name) for name in trained if name.startswith(f"{module}.")]
            out.append(on_device(make, self.device)(own))
        return [on_device(workload.optimizer, self.device)(list(rest.values())), *out]

    def train(self, batches: Iterable[int]) -> Part:
        total, rows, records = torch.zeros((), device=self.device), 0, 0
        for place in batches:
            batch = self._train[place]
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            for prediction, label in self.peer.score(batch):
                loss = self.peer.judge(prediction, label)
                (loss / batch.count).backward()
                total += loss.detach()
                rows += len(label)
            for optimizer in self.optimizers:
                optimizer.step()
            records += batch.count
            self._steps += 1
        self.settle()
        return Part(records, float(total) / max(rows, 1), float("nan"))

    @torch.inference_mode()
    def valid(self, batches: Iterable[int]) -> Part:
        total, right, rows, records = torch.zeros((), device=self.device), 0.0, 0, 0
        for place in batches:
            batch = self._valid[place]
            for prediction, label in self.peer.score(batch):
                total += self.peer.judge(prediction, label)
                right = right + self.peer.metric(prediction, label)
                rows += len(label)
            records += batch.count
        self.settle()
        return Part(records, float(total) / max(rows, 1), float(right) / max(rows, 1))

    def updates(self) -> int:
        return self._steps

    def warm(self) -> None:
        """A compiled peer meets a batch of each shape, so that nothing is compiled while it is timed."""
        if not self.peer.compiled:
            return
        for part, go in ((self._train, self.train), (self._valid, self.valid)):
            shapes = {tuple(x.shape for x in b.inputs if isinstance(x, torch.Tensor)): i for i, b in enumerate(part)}
            go(sorted(shapes.values())[:SHAPES])
