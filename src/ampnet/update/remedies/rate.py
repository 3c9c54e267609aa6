"""Rate: smaller steps for older gradients.

Gradient descent on ``a/2 w^2`` with gradients ``lag`` updates old is stable up to a rate of

    2/a sin(pi / (4 lag + 2))        lag 0: 2/a        lag 1: 1/a        lag 10: 0.15/a         about pi / (2 a lag)

so a rate that is right without delay is about ``lag`` times too large with it. Both remedies divide by it, if it is
above 1:

    AnnealedRate    in the first updates only, where steps are largest; later the full rate (PipeMare's T1, Yang et al.
                    2021)
    InverseRate     always (Zhang, Gupta, Lian, Liu 2016)
"""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import ASGD, SGD, Adagrad, Optimizer

from ampnet.update.remedies.nesterov import AsyncNesterov
from ampnet.update.remedies.remedy import Remedy


def grows(optimizer: Optimizer) -> bool:
    """Whether n replicas that share weights together take too large steps, not only at first: plain gradient descent,
    which the bound above is about; and Adagrad, if each replica has the squares of its own gradients only, so that its
    steps are sqrt(n) times those of one that has all of them. The steps of Adam and its relatives have a size of their
    own."""
    return isinstance(optimizer, SGD | ASGD | AsyncNesterov | Adagrad)


@dataclass(frozen=True, slots=True)
class AnnealedRate(Remedy):
    """Multiplies the rate by ``lag ** -p``, where ``p`` falls from 1 to 0 over the first ``updates``."""

    updates: int
    """Updates of the node's weights, by all replicas, after which it has its full rate."""

    def __post_init__(self) -> None:
        if self.updates < 1:
            raise ValueError(f"updates must be 1 or more, got {self.updates}")

    def over(self, updates: int) -> bool:
        return updates >= self.updates

    def rate(self, lag: float, updates: int) -> float:
        power = 1 - min(updates / self.updates, 1)
        return float(max(lag, 1.0) ** -power)


@dataclass(frozen=True, slots=True)
class InverseRate(Remedy):
    """Divides the rate by the lag, to a power: 1 is Zhang's rule, 0.5 is milder."""

    power: float = 1.0
    least: float = 0.0
    """The factor is at least this."""

    def __post_init__(self) -> None:
        if not self.power > 0 or not 0 <= self.least <= 1:
            raise ValueError(f"power must be positive and least from 0 to 1, got {self.power} and {self.least}")

    def rate(self, lag: float, updates: int) -> float:
        return float(max(max(lag, 1.0) ** -self.power, self.least))
