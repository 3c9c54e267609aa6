"""Mean: how a node's weights move, per update, as a running mean.

    w - (lag) mean    about the weights of ``lag`` updates ago         `Estimate`
    w + (lag) mean    about the weights of ``lag`` updates from now    `Predict`

The mean forgets: after ``lag`` updates a change counts 0.135 of what it did (PipeMare). It is measured on the weights
themselves, so any optimizer will do, and where replicas share weights it is their common movement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ampnet.update.updater import Updater

KEPT = 0.135
"""What is left of a change after ``lag`` updates."""


class MovingWeights:
    """Measures the movement of one node's weights, and holds the weights that were derived from it."""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self.mean = [torch.zeros_like(w) for w in updater.weights]
        self.last = [w.clone() for w in updater.weights]
        self.at = updater.seen_version()
        """The version of ``last``."""
        self._derived: dict[tuple[int, float], list[Tensor]] = {}

    def stepped(self) -> None:
        """Called after an update: add to the mean what changed since the last call, for each update."""
        now = self._updater.seen_version()
        count = now - self.at
        if count < 1:  # versions are counted anew
            self.rebase()
            return
        kept = KEPT ** (count / max(self._updater.lag, 1.0))
        for mean, last, weight in zip(self.mean, self.last, self._updater.weights, strict=True):
            torch.lerp(torch.sub(weight, last).div_(count), mean, kept, out=mean)
            last.copy_(weight)
        self.at = now
        self._derived.clear()

    def rebase(self) -> None:
        """The weights were replaced: the mean is kept, and movement is measured from here."""
        for last, weight in zip(self.last, self._updater.weights, strict=True):
            last.copy_(weight)
        self.at = self._updater.seen_version()
        self._derived.clear()

    def moved(self, updates: float) -> list[Tensor]:
        """Returns the weights as they may be that many updates from now (negative: as they may have been). They are
        not written to afterwards."""
        now = self._updater.seen_version()
        found = self._derived.get((now, updates))
        if found is None:
            if any(version != now for version, _ in self._derived):
                self._derived.clear()
            weights = self._updater.weights
            found = [torch.add(w, mean, alpha=updates) for w, mean in zip(weights, self.mean, strict=True)]
            self._derived[now, updates] = found
        return found


class WeightsInUse:
    """Which weights a forward and its backward use. This one: the current ones, whenever they run."""

    moving: MovingWeights | None = None
    lasts = False
    """Whether a wave goes on to use the weights of its first forward, in all rounds and in the backward."""
    direct = False
    """Whether gradients may be added to the weights without sums (`Updater.go_direct`): nothing is to be measured."""

    def __init__(self, updater: Updater) -> None:
        self.updater = updater

    def forward(self) -> list[Tensor]:
        """Returns the weights of a forward."""
        return self.updater.weights

    def backward(self, version: int) -> list[Tensor]:
        """Returns the weights of the backward of a forward that saw ``version``."""
        return self.updater.weights

    def release(self, weights: list[Tensor]) -> None:
        """Called with what `forward` returned, if it ``lasts``, when the wave has ended."""
