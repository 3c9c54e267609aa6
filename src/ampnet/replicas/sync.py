"""Sync: when and how the replicas of a node are synchronised.

Each replica updates itself, so they drift apart. What brings them together has a name:

    "epoch"      at the end of a training stream, all take the mean of their weights (the paper)
    "updates"    likewise, and each time that every replica has made ``every`` updates of its own
    "ring"       likewise, and each time that the first has made ``every`` updates: a message then runs round the group
                 and takes along what each replica has at that moment (the paper's asynchronous trigger)
    "shared"     the replicas have one set of weights in shared memory, which all update without locks (Hogwild); at the
                 end of a training stream only what their optimizers remember is averaged
    "gradients"  the replicas give their gradients, not their weights: as soon as each has enough of them for an update,
                 the first makes one with the mean, and the others take its weights. They never drift (the synchronous
                 way, for comparison)

Where weights are shared, the staleness of a gradient counts the updates of all replicas.

No replica ever stops for it: while it waits for the mean, it goes on with its messages and only its own updates wait.
After a synchronisation all replicas are equal to the bit; so they are at the end of every training stream. What their
optimizers remember (momentum, Adam's averages) is averaged as well, or kept, each its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

When = Literal["epoch", "updates", "ring", "shared", "gradients"]
KINDS: tuple[str, ...] = get_args(When)


@dataclass(frozen=True, slots=True)
class Sync:
    """How replicas are synchronised. The string ``"epoch"`` is short for ``Sync("epoch")``."""

    when: When = "epoch"
    """The policy; see the head of this file."""
    every: int = 100
    """Updates between two synchronisations, for "updates" and "ring"."""
    optimizer: Literal["average", "keep"] = "average"
    """Average the replicas' optimizer state, or keep it separate."""

    def __post_init__(self) -> None:
        if self.when not in KINDS:
            raise ValueError(f"sync must be one of {', '.join(KINDS)}; got {self.when!r}")
        if self.every < 1:
            raise ValueError(f"every must be 1 or more, got {self.every}")
        if self.optimizer not in ("average", "keep"):
            raise ValueError(f"optimizer must be average or keep, got {self.optimizer!r}")
