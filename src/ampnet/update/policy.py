"""Update: when and how a node with parameters updates itself.

A parameterised node adds up the gradients of the backward messages it gets. When ``min_update_frequency`` of them have
come in, it divides the sum by their number, clips it if asked to, and lets its own `torch.optim` optimizer take a step.
No other node takes part. The unit of the count has a name:

* ``count="messages"`` (the paper): a backward message at this node is one gradient. A sequence of nine tokens brings
  nine of them to the node inside the loop and one to the node behind it. Message by message, a batch is cut where the
  counter fills, so an update holds exactly ``min_update_frequency`` gradients, however the messages came. A wave
  (`ampnet.wave`) counts as one: the node updates at its end, with all that has come in, if that is enough.
* ``count="instances"``: an instance counts when it retires, at every node at once. The sum is divided by the number of
  instances retired since the last update. With ``max_active_keys=1`` and a frequency of 1 this is minibatch training,
  the instance being the minibatch: equal to plain torch to rounding.

Gradients left over at the end of an epoch are applied there, divided by their own count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ampnet.errors import a
from ampnet.update.remedies.remedy import Remedy

MakeOptimizer = Callable[[Iterable[Tensor]], Optimizer]
MakeSchedule = Callable[[Optimizer], LRScheduler]


@dataclass(frozen=True, slots=True)
class Update:
    """How a node updates itself. Give one for all nodes, and others by node name where they differ."""

    optimizer: MakeOptimizer = partial(torch.optim.SGD, lr=0.1)
    """Called with the node's parameters, once: ``partial(torch.optim.Adam, lr=1e-3)``."""
    min_update_frequency: int = 1
    """The minimum number of gradients in an update."""
    count: Literal["messages", "instances"] = "messages"
    """What counts as one gradient."""
    average: bool = True
    """Divide the sum of gradients by their number; False applies the sum."""
    clip_norm: float | None = None
    """Scale the node's gradient down to this norm (of all its parameters together)."""
    clip_value: float | None = None
    """Clamp every entry of the node's gradient to this size."""
    schedule: MakeSchedule | None = None
    """A learning-rate schedule: ``partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)``."""
    schedule_every: Literal["update", "epoch"] = "epoch"
    """When the schedule takes a step."""
    weights: Literal["auto", "current", "stash", "estimate", "predict"] = "auto"
    """Which weights are used where they change between a forward and its backward. "current": whatever they are;
    "stash": the backward uses those of the forward, which are kept until no message needs them; "estimate": ... or an
    estimate of them; "predict": both use those expected at the backward (`ampnet.update.remedies`). "auto": stash;
    current for an embedding, whose backward reads no weights. Under message passing the backward of "predict", and of
    "stash" where replicas share weights, uses the current ones."""
    remedies: tuple[Remedy, ...] | None = None
    """How the staleness of gradients changes the steps made with them (`ampnet.update.remedies`). None: where replicas
    share weights ``(AnnealedRate(1000),)``, or ``(InverseRate(0.5),)`` with SGD and Adagrad; else not at all. Gradients
    that are not stale are never changed."""

    def __post_init__(self) -> None:
        given: Any = self.optimizer
        if isinstance(given, Optimizer) or not callable(given):
            kind = type(given).__name__
            raise TypeError(
                f"optimizer is a function that makes one, because each node has its own; got {a(kind)}: give "
                f"partial(torch.optim.{kind if isinstance(given, Optimizer) else 'Adam'}, lr=...)"
            )
        if self.min_update_frequency < 1:
            raise ValueError(f"min_update_frequency must be 1 or more, got {self.min_update_frequency}")
        for name, allowed in (
            ("count", ("messages", "instances")),
            ("schedule_every", ("update", "epoch")),
            ("weights", ("auto", "current", "stash", "estimate", "predict")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}; got {getattr(self, name)!r}")
        given = () if self.remedies is None else self.remedies
        if not isinstance(given, tuple) or not all(isinstance(one, Remedy) for one in given):
            raise TypeError(f"remedies is a tuple of Remedy objects, like (AnnealedRate(1000),); got {self.remedies!r}")
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def but(self, **changes: Any) -> Update:
        """A copy of the policy with some settings changed."""
        return replace(self, **changes)
