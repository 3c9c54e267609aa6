"""Kernel: how a site computes, for all instances of a wave at once.

    begin       a wave begins: how many rows there will be
    forward     one operation: make its rows from those it reads
    backward    the same operation, when all gradients of its rows are in: add to those of the rows it read
    finish      all operations are done: what the parameters get, of all of them together

The gradient of a weight matrix is one product over all rows of a wave, whatever the number of rounds.
"""

from __future__ import annotations

from torch import Tensor

from ampnet.update.sums import Sums
from ampnet.wave.arena import Arena, Pool
from ampnet.wave.layout import Layout, Operation, Whole
from ampnet.wave.sites import Site


class Kernel:
    """Base of all kernels. One for every site; it lives as long as the runtime."""

    def __init__(self, site: Site, pool: Pool) -> None:
        self.site, self.pool = site, pool
        self.layout: Layout
        self.whole: Whole
        self.out: Arena
        self.train = True

    def begin(self, layout: Layout, whole: Whole, train: bool) -> None:
        """``train``: whether there will be a backward."""
        self.layout, self.whole, self.train = layout, whole, train
        self.out = layout.arenas[self.site.arena]

    def forward(self, op: Operation) -> None:
        raise NotImplementedError

    def backward(self, op: Operation) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Add the gradients of the parameters to their sums."""

    def take(self, name: str, rows: int, width: int, like: Tensor) -> Tensor:
        """A tensor of the site's own, until the next wave."""
        return self.pool.take((self.site.number, name, "site"), (rows, width), like)

    def made(self, op: Operation) -> Tensor:
        """The rows of an operation."""
        assert self.out.data is not None
        return self.out.data[op.start : op.stop]

    def gradient(self, op: Operation) -> Tensor:
        """Their gradients, complete by now; they may be written to."""
        return self.out.gradient()[op.start : op.stop]

    @property
    def weights(self) -> list[Tensor]:
        return self.site.node.updater.weights  # type: ignore[union-attr]

    @property
    def sums(self) -> Sums:
        return self.site.node.updater.adding  # type: ignore[union-attr]
