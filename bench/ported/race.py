"""Race: ours and torch on one model in alternating turns, in this process.

    warm-up: an epoch of each  ──>  ours, torch, ours, torch ...  ──>  the best turn of each

A turn is as many whole epochs as fit into its seconds, at least one. Instances and collated batches are made before
anything is timed, and both sides get the same records in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ampnet import Inline, Update
from bench.batch import Record
from bench.ported.entry import Ported, apart, of_inline, of_peer

BOUND = 1.0
"""Ours should have at least this part of torch's speed."""
TOLERANCE = 1e-8
"""Of gradients in float64, relative to the largest entry of each."""


@dataclass(frozen=True, slots=True)
class Result:
    """The speeds on one model."""

    model: str
    ours: float
    """Instances a second in training: the best turn."""
    torch: float
    ratio: float
    bound: float
    waves: int | None
    """How many waves were played in all turns and the warm-up; None: the runtime does not say."""
    difference: float
    """The largest difference of a gradient, ours beside torch's, relative to its largest entry; float64, one batch."""
    turns: dict[str, list[float]]


class OursRow:
    """Our runtime on a model's batches."""

    def __init__(self, one: Ported, batches: list[list[Record]]) -> None:
        self.graph = one.compiled(batches[0][0])
        self.instances = [self.graph.instance(*record) for batch in batches for record in batch]
        update = Update(one.optimizer, one.batch, "instances")
        self.runtime = Inline(self.graph, update=update, max_active_keys=one.batch)

    def epoch(self) -> int:
        """Train on all instances; returns their number."""
        self.runtime.train(self.instances)
        return len(self.instances)

    def waves(self) -> int | None:
        """Waves played so far, where the runtime counts them."""
        stats: Any = getattr(self.runtime, "stats", None)
        found = stats() if callable(stats) else stats
        for name in ("waves", "played", "waves_played"):
            value = found.get(name) if isinstance(found, dict) else getattr(found, name, None)
            if isinstance(value, int):
                return value
        return None


class TorchRow:
    """The torch module on a model's batches."""

    def __init__(self, one: Ported, batches: list[list[Record]]) -> None:
        self.peer = one.peer(one.seeded())
        self.batches = [self.peer.collate(batch) for batch in batches]
        self.optimizer = one.optimizer(self.peer.parameters())

    def epoch(self) -> int:
        """Train on all batches; returns the number of instances."""
        for batch in self.batches:
            self.optimizer.zero_grad(set_to_none=True)
            for prediction, label in self.peer.score(batch):
                (self.peer.judge(prediction, label) / batch.count).backward()
            self.optimizer.step()
        return sum(batch.count for batch in self.batches)


def speed(epoch: Callable[[], int], seconds: float) -> float:
    """Instances a second."""
    done, began = 0, time.perf_counter()
    while True:
        done += epoch()
        passed = time.perf_counter() - began
        if passed >= seconds:
            return done / passed


def difference(one: Ported, batch: list[Record]) -> tuple[float, str]:
    """How far the gradients of a batch are from torch's (see `apart`)."""
    ours = of_inline(one.compiled(batch[0], torch.float64), batch)
    peer = one.peer(one.seeded(torch.float64))
    return apart(peer.weights(ours), of_peer(peer, batch))


def race(one: Ported, seconds: float, turns: int, batches: int) -> Result:
    """See the head of this file."""
    records = one.batches(batches)
    gap, where = difference(one, records[0])
    if not gap <= TOLERANCE:
        raise AssertionError(f"{one.name}: gradients of ours and of torch differ by {gap:.2g} in float64, at {where}")
    ours, theirs = OursRow(one, records), TorchRow(one, records)
    with ours.runtime:
        ours.epoch()
        theirs.epoch()
        speeds: dict[str, list[float]] = {"ours": [], "torch": []}
        for _ in range(turns):
            speeds["ours"].append(speed(ours.epoch, seconds))
            speeds["torch"].append(speed(theirs.epoch, seconds))
        waves = ours.waves()
    best = {name: max(found) for name, found in speeds.items()}
    return Result(
        model=one.name,
        ours=best["ours"],
        torch=best["torch"],
        ratio=best["ours"] / best["torch"],
        bound=BOUND,
        waves=waves,
        difference=gap,
        turns=speeds,
    )
