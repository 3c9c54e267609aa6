"""Estimate: the backward uses an estimate of its forward's weights, without any copy of them (PipeMare's T2).

A backward that uses other weights than its forward did is not the gradient of anything: on ``a/2 w^2`` that discrepancy
alone can make training diverge at rates that the delay would allow. ``weights="stash"`` removes it and keeps a copy of
the weights for every version in flight; this needs two copies, however many are in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ampnet.update.remedies.mean import MovingWeights, WeightsInUse

if TYPE_CHECKING:
    from ampnet.update.updater import Updater


class Estimate(WeightsInUse):
    """Moves the current weights back along the mean update."""

    def __init__(self, updater: Updater) -> None:
        super().__init__(updater)
        self.moving: MovingWeights = MovingWeights(updater)

    def backward(self, version: int) -> list[Tensor]:
        lag = self.updater.seen_version() - version
        return self.moving.moved(-lag) if lag > 0 else self.updater.weights
