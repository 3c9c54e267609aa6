"""Copied: ``weights="stash"`` where replicas share weights, which other processes write to at any time.

    a wave begins, or a node's first forward of it ──> a copy of the node's weights ──> all rounds and the backward of
    that wave use the copy

Without it forward and backward see different weights, and what comes back is the gradient of nothing: plain gradient
descent then diverges at rates that the delay alone would allow. A stash of versions is not possible here: nobody can
tell in time that another process is about to write. The memory of copies is used again: fresh memory costs more than
the copying.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ampnet.update.remedies.mean import WeightsInUse

if TYPE_CHECKING:
    from ampnet.update.updater import Updater


class CopiedWeights(WeightsInUse):
    """Copies the current weights for a wave."""

    lasts = direct = True

    def __init__(self, updater: Updater) -> None:
        super().__init__(updater)
        self._free: list[list[Tensor]] = []
        """Copies that no wave uses any more."""

    def forward(self) -> list[Tensor]:
        weights = self.updater.weights
        copies = self._free.pop() if self._free else [torch.empty_like(w) for w in weights]
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight)
        return copies

    def release(self, weights: list[Tensor]) -> None:
        self._free.append(weights)
