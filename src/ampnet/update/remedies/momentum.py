"""Momentum: asynchrony adds some of its own, so less is given.

If ``lag + 1`` gradients are under way, the updates of plain gradient descent behave, in expectation, like those with a
momentum of ``1 - 1 / (lag + 1)`` (Mitliagkas, Zhang, Hadjis, Re 2016). A momentum ``m`` makes steps ``1 / (1 - m)``
times as long; to keep their length, what is given shrinks with what asynchrony adds:

    1 - m' = (lag + 1) (1 - m)        m = 0.9:    lag 0: 0.9    lag 1: 0.8    lag 4: 0.5    lag 9 and more: 0
"""

from __future__ import annotations

from dataclasses import dataclass

from ampnet.update.remedies.remedy import Remedy


@dataclass(frozen=True, slots=True)
class LoweredMomentum(Remedy):
    """Lowers the optimizer's momentum (Adam's beta1) by what asynchrony adds."""

    def momentum(self, momentum: float, lag: float) -> float:
        return max(0.0, 1 - (lag + 1) * (1 - momentum))
