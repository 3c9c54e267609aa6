"""Embedding: the different rows of the table that a wave asks for, each once if there are many.

    tokens   7 3 7 7 3         rows  [W_3, W_7]        inverse  1 0 1 1 0

Where the table is no larger than what is asked for, its own memory is what is read, and the tokens are the inverse. Who
reads looks through the inverse (`Read.places`), and whose only input this is computes each different row once.

    few tokens     a row for each of them, equal or not
    others         a row for each different one

What is chosen depends on the layout alone, never on earlier waves: gradients of equal rows are added up in another
order, so a run that remembered those could not be resumed to the bit.

A kept layout remembers the tokens. As long as as many are different as the time before, all that is computed with them
is where it was, so readers can be on the tape. Once more or fewer are, its readers are off it from then on.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ampnet.nodes.embedding import Embedding
from ampnet.plan.layout import Operation
from ampnet.wave.arena import add_back, fetch
from ampnet.wave.kernels.kernel import Kernel

FEW: Final = 64
"""Tokens of a wave for which it does not pay to find equal ones."""


class EmbeddingKernel(Kernel):
    """`Embedding` nodes that have an arena of their own."""

    def begin(self) -> None:
        node = self.site.face
        assert isinstance(node, Embedding)
        self.node = node
        self._seen: Tensor | None = None
        """The tokens of the wave before."""
        self._inverse: Tensor | None = None
        self._chosen: Tensor | None = None
        """The rows that were asked for, in the order of the arena's; None: all of the table."""
        self._count: int | None = None
        """The number of different rows of the wave before."""
        if self.site.number in self.layout.varying:
            self.out.varies = True

    def forward(self, op: Operation) -> None:
        tokens = self.rows(op, 0)
        again = self._seen is not None and torch.equal(self._seen, tokens)
        if not again:
            self.node.check(tokens)
            self.node.check_range(tokens)
        table, self.out.table = self.passage.weights(self.node)[0], True
        if tokens.dim() > 1:
            self.out.varies = True
            self._chosen = tokens.reshape(-1)
            self.out.put(op.start, op.stop, table.index_select(0, self._chosen).view(*tokens.shape, -1))
        elif self.node.size <= len(tokens):
            if op.reads[0].index is not None:  # fetched: to where the tokens of the next wave will be, too
                tokens = self.layout.pool.take((self.site.number, "tokens"), tokens.shape, tokens).copy_(tokens)
            if not self.passage.alone:  # an update of another passage must not change what was read
                table = self.take("table", table.shape[0], table.shape[1], table).copy_(table)
            self.out.data, self.out.inverse = table, tokens
        elif tokens.is_cuda:  # to find the different ones, one would have to wait for the device
            self.out.varies = True
            self._chosen = tokens
            self.out.put(op.start, op.stop, table.index_select(0, tokens))
        elif len(tokens) <= FEW:
            self._chosen = tokens
            fetch(self.out.open(table.shape[1:], table), table, tokens)
        else:
            if not again:
                self._find(tokens)
            self._look_up(table)

    def _find(self, tokens: Tensor) -> None:
        """Find the different rows that these tokens ask for."""
        self._chosen, inverse = torch.unique(tokens, return_inverse=True)
        before, self._count = self._count, len(self._chosen)
        if before not in (None, self._count) and not self.out.varies:
            self._vary()
        if self._inverse is None:
            self._inverse = inverse
        else:
            self._inverse.copy_(inverse)  # its readers may know where it is
        self._seen = tokens.clone() if self.layout.fixed else None

    def _look_up(self, table: Tensor) -> None:
        """Fetch these rows."""
        assert self._chosen is not None
        self.out.inverse = self._inverse
        if self.out.varies or not self.layout.fixed:
            self.out.data = table.index_select(0, self._chosen)
            return
        shape = (len(self._chosen), table.shape[1])
        self.out.data = self.layout.pool.take((self.out.number, "rows"), shape, table)
        fetch(self.out.data, table, self._chosen)

    def _vary(self) -> None:
        """This wave asks for more rows than those before, or fewer: what its readers know of them is not true now."""
        self.layout.anew = True
        self.layout.varying.add(self.site.number)
        self.out.varies, self.out.grad = True, None
        for kernel in self.passage.kernels.values():
            if any(read.arena is self.out for read in kernel.whole.reads):
                kernel.unsettle()

    def backward(self, op: Operation) -> None:
        pass

    def collect(self) -> None:
        node, g = self.node, self.out.grad
        if g is None:
            return
        total = self.passage.sums(node)[0]
        g = g.view(-1, g.shape[-1])
        if node.padding is not None:
            where = node.padding if self._chosen is None else torch.nonzero(self._chosen == node.padding).flatten()
            g[where] = 0
        if self._chosen is None:
            total.add_(g)
            assert self.out.inverse is not None
            node.updater.touch(self.out.inverse.clone())
        else:
            add_back(total, g.to(total.dtype), self._chosen)
            node.updater.touch(self._chosen.clone())  # the next wave writes its tokens there
