"""Remedy: changes one step of a node's optimizer according to how old the gradients in it are.

gradients of lags 3, 3, 5 ──> lag 3.7 ──> rate x remedy.rate(3.7, ...)   for this step only: what the optimizer and
                                          remedy.momentum(0.9, 3.7)      its schedule hold is not changed
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.optim import Optimizer


class Remedy:
    """Has no state, so one object may serve all nodes. Subclasses override what they change."""

    def rate(self, lag: float, updates: int) -> float:
        """Returns the factor of the learning rate. ``lag``: the mean over the gradients of this update, or that of the
        stalest node if it is larger and replicas share weights; ``updates``: those of the weights before it, by all
        replicas."""
        return 1.0

    def over(self, updates: int) -> bool:
        """Whether it changes nothing any more, whatever the lag."""
        return False

    def momentum(self, momentum: float, lag: float) -> float:
        """Returns the momentum to use instead of the optimizer's own (Adam's is beta1)."""
        return momentum


@contextmanager
def remedied(optimizer: Optimizer, remedies: Sequence[Remedy], lag: float, updates: int) -> Iterator[None]:
    """Within this context the optimizer has the rate and momentum that the remedies give for such a lag."""
    before = [dict(group) for group in optimizer.param_groups] if remedies else []
    for remedy in remedies:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * remedy.rate(lag, updates)  # of a tensor, a new one
            if group.get("momentum"):
                group["momentum"] = remedy.momentum(group["momentum"], lag)
            elif "betas" in group:
                group["betas"] = (remedy.momentum(group["betas"][0], lag), *group["betas"][1:])
    try:
        yield
    finally:
        for group, given in zip(optimizer.param_groups, before, strict=True) if remedies else ():
            group.update({name: given[name] for name in ("lr", "momentum", "betas") if name in given})
