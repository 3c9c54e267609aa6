"""Remedies for stale gradients: small policies, one for each published idea, chosen per node with `Update`.

A gradient that comes back to a node was computed with weights that have changed ``lag`` times since; the runtime knows
the lag of every message exactly. What a node can do about it:

    which weights    Update(weights="stash")         the backward uses the forward's weights       PipeDream 2019
                                                     ... where replicas share them: a copy         `copied`
                     Update(weights="estimate")      ... or an estimate of them                    `estimate`
                     Update(weights="predict")       both use weights of ``lag`` ahead             `predict`
    how large a step AnnealedRate(updates)           small at first, then the full rate            `rate`
                     InverseRate()                   rate / lag                                    `rate`
    how much of the  LoweredMomentum()               less, as asynchrony adds its own              `momentum`
    last step        AsyncNesterov (an optimizer)    more, with gradients discounted               `nesterov`

`docs/asynchrony.md` says what each gave, and when to use it.
"""

from ampnet.update.remedies.momentum import LoweredMomentum
from ampnet.update.remedies.nesterov import AsyncNesterov
from ampnet.update.remedies.rate import AnnealedRate, InverseRate
from ampnet.update.remedies.remedy import Remedy

__all__ = ["AnnealedRate", "AsyncNesterov", "InverseRate", "LoweredMomentum", "Remedy"]
