"""Kernel: how a site computes, for all instances of a wave at once. It belongs to a passage, and lives as long.

    forward     one operation: make its rows from those it reads
    backward    the same operation, when all gradients of its rows are in: add to those of the rows it read
    collect     all operations of the site are done: what the parameters get, of all of them together

The gradient of a weight matrix is one product over all rows of a wave, whatever the number of rounds.

A layout that is used again has fixed memory (`Layout.fixed`): its kernels are kept with it, and what they know of their
tensors holds for the next passage (`renew`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch import Tensor

from ampnet.plan.layout import Operation
from ampnet.plan.sites import Site

if TYPE_CHECKING:
    from ampnet.wave.passage import Passage


class Kernel:
    """Base of all kernels."""

    answers = False
    """Whether `backward` must run even if no row has a gradient."""

    tapes = False
    """Whether all that it computes with lies in arenas and in memory of its own, so that its native calls are the same
    in every wave of a fixed layout (`ampnet.wave.tape`)."""

    def __init__(self, site: Site, passage: Passage) -> None:
        self.site, self.layout = site, passage.layout
        self.whole, self.out = self.layout.wholes[site.number], self.layout.arenas[site.arena]
        self.columns = [part.columns for part in site.parts]
        self.renew(passage)
        self.begin()

    def renew(self, passage: Passage) -> None:
        """Called when another passage begins with the same layout."""
        self.passage, self.train = passage, passage.train

    def begin(self) -> None:
        """Called once, before the first operation."""

    def unsettle(self) -> None:
        """The number of rows that it reads is another one than in the waves before, from now on."""

    def forward(self, op: Operation) -> None:
        raise NotImplementedError

    def backward(self, op: Operation) -> None:
        raise NotImplementedError

    def collect(self) -> None:
        """Add the gradients of the parameters to their sums."""

    def may_go_direct(self) -> bool:
        """Whether `collect` adds gradients to the weights themselves in some waves, and to sums in others."""
        return False

    def end(self) -> None:
        """Called when the passage has ended: drop tensors that belong to it."""

    def unread(self, op: Operation) -> Collection[int]:
        """Slots whose rows an operation does not look at: what it needs of them was computed before."""
        return ()

    def rows(self, op: Operation, slot: int) -> Tensor:
        """The input rows of an operation; read-only."""
        return op.reads[slot].rows(self.columns[slot])

    def add(self, op: Operation, slot: int, g: Tensor) -> None:
        """Add to the gradient of the input rows of an operation."""
        op.reads[slot].add(g, self.columns[slot])

    def take(self, name: str, rows: int, width: int, like: Tensor) -> Tensor:
        """A tensor that belongs to the site until the passage ends."""
        return self.layout.pool.take((self.site.number, name, "site"), (rows, width), like)

    def gradient(self, op: Operation) -> Tensor:
        """The gradients of an operation's rows, complete by now; they may be written to."""
        return self.out.gradient()[op.start : op.stop]
