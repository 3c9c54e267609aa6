"""AsyncNesterov: Nesterov's method for gradients that come late (Ajanthan et al., ICML 2025).

    v <- m v - rate (1 - m) g           g: a gradient at the weights of ``lag`` updates ago
    w <- w - rate (1 - m) g + m v       w: where the next forward looks: one momentum step ahead

Two things differ from ``SGD(nesterov=True)``: the gradient is discounted by ``1 - m``, and ``m`` is near 1. A late
gradient then changes the direction little, and the look-ahead, along a direction that hardly changes, makes up for the
delay. Made for ``weights="stash"``. `torch.optim.NAdam` with a beta1 of 0.99 is its relative for Adam.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class AsyncNesterov(Optimizer):
    """``Update(partial(AsyncNesterov, lr=0.1), weights="stash")``. See the head of this file."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.1, momentum: float = 0.99) -> None:
        if not lr > 0 or not 0 <= momentum < 1:
            raise ValueError(f"lr must be positive and momentum from 0 up, below 1; got {lr} and {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step with the gradients of the parameters."""
        found = None if closure is None else closure()
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if "velocity" not in state:
                        state["velocity"] = torch.zeros_like(p)
                    short = p.grad * (-rate * (1 - momentum))
                    velocity = state["velocity"].mul_(momentum).add_(short)
                    p.add_(short).add_(velocity, alpha=momentum)
        return found
