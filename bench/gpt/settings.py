"""Settings of one run, and what a run leaves behind.

updates     1 .. warm | warm + 1 ............ updates
measured               |<──────── seconds ───────>|
snapshots              0     1     2    ...     n      of all weights, for the curve
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from examples.gpt.model import Gpt, Sizes
from torch import Tensor
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

CONTENDERS = ("ours", "1f1b", "gpipe")
FURTHER = ("ours-momentum",)
"""Run if asked for: ours, with a lower beta1 where gradients are stale (`ampnet.update.remedies.momentum`)."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One run."""

    contender: str
    microbatches: int
    """Microbatches in an update."""
    updates: int
    sizes: Sizes = field(default_factory=Sizes)
    sequences: int = 2
    """Sequences in a microbatch."""
    stages: int = 4
    in_flight: int = 5
    """Ours: microbatches in flight at most. Synchronous schedules have up to as many as there are in an update."""
    warm: int = 4
    """Updates before the measurement begins."""
    snapshots: int = 10
    held_out: int = 128
    """Sequences that the loss is measured on."""
    learning_rate: float = 1e-3
    ramp: int = 20
    """Updates in which the rate rises, linearly, to the full one."""
    seed: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in an update."""
        return self.microbatches * self.sequences * self.sizes.context

    def marks(self) -> list[int]:
        """Returns the numbers of updates after which snapshots are taken; the first is the end of the warm-up."""
        steps = min(self.snapshots, self.updates - self.warm)
        return [self.warm + i * (self.updates - self.warm) // steps for i in range(steps + 1)]

    def optimizer(self, parameters: Iterable[Tensor]) -> AdamW:
        """Returns the optimizer of a stage, or of a node."""
        return AdamW(parameters, lr=self.learning_rate, fused=True)

    def schedule(self, optimizer: Optimizer) -> LambdaLR:
        """Returns the learning rate's schedule, with a step for each update."""
        return LambdaLR(optimizer, lambda update: min(1.0, (update + 1) / self.ramp))

    def model(self) -> Gpt:
        """Returns the model with its initial weights."""
        torch.manual_seed(self.seed)
        return Gpt(self.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """What a run leaves behind."""

    seconds: list[float]
    """Of each mark, since the first."""
    busy: list[float]
    """Of each stage: seconds spent computing, from the first mark to the last."""
    weights: list[list[Tensor]]
    """Of each mark: all parameters, in the order of `Gpt.plain`."""
    staleness: float = 0.0
    """Mean number of updates between the forward and the backward of a microbatch, over all nodes."""
