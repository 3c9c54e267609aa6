"""Slice: rows of one site and round on their way to another worker, or their gradients on the way back.

Both sides know the layout of the wave, so a slice names no states and no keys: crossing, round and direction say what
its rows are, and how many there must be. The digest of the sender's layout shows at once if the two differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True, eq=False)
class Slice:
    """See the head of this file."""

    wave: int
    """The number of the wave, the same on all workers."""
    crossing: int
    """The number of the crossing in the plan of the team, the same on all its workers."""
    round: int
    direction: int
    """0: rows, forward. 1: their gradients, backward."""
    digest: int
    """Of the sender's layout of the wave: 63 bits, not negative."""
    rows: Tensor | None
    """None, backward only: no gradient has come to any of the rows."""
    left_out: tuple[int, ...] = ()
    """Instances that are skipped because a number was not finite."""
    era: int = 0
    """The era of the run: slices of an earlier one are dropped. Set by the sender."""
