"""Embedding: the different rows of the table that a wave asks for, each once.

    tokens   7 3 7 7 3         rows  [W_3, W_7]        inverse  1 0 1 1 0

Where the table is no larger than what is asked for, its own memory is what is read, and the tokens are the inverse. Who
reads looks through the inverse (`Read.places`), and whose only input this is computes each different row once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.nodes.embedding import Embedding
from ampnet.plan.layout import Operation
from ampnet.wave.kernels.kernel import Kernel


class EmbeddingKernel(Kernel):
    """`Embedding` nodes that have an arena of their own."""

    def begin(self) -> None:
        node = self.site.face
        assert isinstance(node, Embedding)
        self.node = node

    def forward(self, op: Operation) -> None:
        tokens = self.rows(op, 0)
        self.node.check(tokens)
        self.node.check_range(tokens)
        table, self.out.table = self.passage.weights(self.node)[0], True
        whole = tokens.dim() == 1 and self.node.size <= len(tokens)
        self.out.varies = not whole
        self._chosen: Tensor | None = None
        if tokens.dim() > 1:
            self._chosen = tokens.reshape(-1)
            self.out.put(op.start, op.stop, table.index_select(0, self._chosen).view(*tokens.shape, -1))
        elif whole:
            if op.reads[0].index is not None:  # fetched: to where the tokens of the next wave will be, too
                tokens = self.layout.pool.take((self.site.number, "tokens"), tokens.shape, tokens).copy_(tokens)
            if not self.passage.alone:  # an update of another passage must not change what was read
                table = self.take("table", table.shape[0], table.shape[1], table).copy_(table)
            self.out.data, self.out.inverse = table, tokens
        elif tokens.is_cuda:  # to find the different ones, one would have to wait for the device
            self._chosen = tokens
            self.out.put(op.start, op.stop, table.index_select(0, tokens))
        else:
            self._chosen, self.out.inverse = torch.unique(tokens, return_inverse=True)
            self.out.data = table.index_select(0, self._chosen)

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
            total.index_add_(0, self._chosen, g.to(total.dtype))
            node.updater.touch(self._chosen if not g.is_cuda else self._chosen.clone())
