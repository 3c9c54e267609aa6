"""Kernel: how a site computes, for all instances of a wave at once.

    begin       a wave begins: how many rows there will be
    forward     one operation: make its rows from those it reads
    backward    the same operation, when all gradients of its rows are in: add to those of the rows it read
    finish      all operations are done: what the parameters get, of all of them together

The gradient of a weight matrix is one product over all rows of a wave, whatever the number of rounds.

A layout that is used again has fixed memory (`Layout.fixed`): then what an operation does are the same calls on the
same tensors every time. A kernel whose operations write where they are told to, and to which nothing else happens, says
so (``taped``) and makes its calls by `do`: they are noted once, and only repeated from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ampnet.nodes.transform import Parameterised
from ampnet.update.sums import Sums
from ampnet.update.updater import Updater
from ampnet.wave.arena import Arena, Pool, Read
from ampnet.wave.kernels.products import Products
from ampnet.wave.layout import Layout, Operation, Whole
from ampnet.wave.sites import Site

Calls = list[Callable[[], object]]


class Kernel:
    """Base of all kernels. One for every site; it lives as long as the runtime."""

    taped = False

    def __init__(self, site: Site, pool: Pool, products: Products) -> None:
        self.site, self.pool, self.products = site, pool, products
        self._noted: Calls | None = None
        self.layout: Layout
        self.whole: Whole
        self.out: Arena
        self.train = True

    def begin(self, layout: Layout, whole: Whole, train: bool) -> None:
        """``train``: whether there will be a backward."""
        self.layout, self.whole, self.train = layout, whole, train
        self.out, self.pool = layout.arenas[self.site.arena], layout.pool

    def forward(self, op: Operation) -> None:
        raise NotImplementedError

    def backward(self, op: Operation) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Add the gradients of the parameters to their sums."""

    def do(self, function: Callable[..., object], *args: Any, **named: Any) -> None:
        """Call a function now, and again whenever the operation is repeated."""
        function(*args, **named)
        if self._noted is not None:
            self._noted.append(partial(function, *args, **named))

    def run_forward(self, op: Operation) -> None:
        """`forward`, or what was noted of it."""
        if op.forward_calls is not None:
            for call in op.forward_calls:
                call()
        elif self.taped and self.layout.fixed and self.train:
            op.forward_calls = self._note(self.forward, op)
        else:
            self.forward(op)

    def run_backward(self, op: Operation) -> None:
        """`backward`, or what was noted of it."""
        if op.backward_calls is not None:
            for call in op.backward_calls:
                call()
        elif self.taped and self.layout.fixed:
            op.backward_calls = self._note(self.backward, op)
        else:
            self.backward(op)

    def _note(self, function: Callable[[Operation], None], op: Operation) -> Calls:
        noted: Calls = []
        self._noted = noted
        try:
            function(op)
        finally:
            self._noted = None
        return noted

    def add_product(self, read: Read, g: Tensor, w: Tensor, columns: tuple[int, int] | None = None) -> None:
        """Add ``g w`` to the gradient of the rows that were read."""
        if not read.moved:
            return
        if read.places() is not None:
            self.do(self._add_rows, read, g, w, columns)
            return
        total = read.arena.gradient()[read.start : read.stop]
        self.do(self.products.add, total if columns is None else total[:, columns[0] : columns[1]], g, w)

    def _add_rows(self, read: Read, g: Tensor, w: Tensor, columns: tuple[int, int] | None) -> None:
        read.add(self.products.of(g, w), columns)

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
        return self._updater.weights

    @property
    def sums(self) -> Sums:
        return self._updater.adding

    @property
    def _updater(self) -> Updater:
        node = self.site.node
        assert isinstance(node, Parameterised)
        return node.updater
