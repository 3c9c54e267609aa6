"""Predict: forward and backward use the weights that the gradient will meet.

    forward at version 7, usual lag 3 ──> with the weights expected at version 10 ──> backward at version 10, with those

The prediction follows the mean update: the direction of momentum (SpecTrain, Chen et al. 2018), for Adam scaled as its
steps are (XPipe, Guan et al. 2019). A node that reads rows of a table (an embedding) is not predicted: few of its rows
move in any update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ampnet.update.remedies.mean import MovingWeights, WeightsInUse

if TYPE_CHECKING:
    from ampnet.update.updater import Updater


class Predict(WeightsInUse):
    """Moves the current weights ahead along the mean update, by the node's usual lag."""

    lasts = True

    def __init__(self, updater: Updater) -> None:
        super().__init__(updater)
        self.moving: MovingWeights = MovingWeights(updater)

    def forward(self) -> list[Tensor]:
        lag = round(self.updater.lag, 1)
        return self.moving.moved(lag) if lag > 0 else self.updater.weights
