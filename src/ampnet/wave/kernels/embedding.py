"""Embedding: the different rows of the table that a wave asks for, each once.

    tokens   7 3 7 7 3         rows  [W_3, W_7]        inverse  1 0 1 1 0

Where the table is no larger than what is asked for, its own memory is what is read, and the tokens are the inverse. Who
reads looks through the inverse (`Read.places`), and whose only input this is computes each different row once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampnet.errors import PayloadError
from ampnet.nodes.embedding import Embedding
from ampnet.wave.kernels.kernel import Kernel
from ampnet.wave.layout import Operation


class EmbeddingKernel(Kernel):
    """`Embedding` nodes that have an arena of their own."""

    def forward(self, op: Operation) -> None:
        node = self.site.node
        assert isinstance(node, Embedding)
        tokens = op.reads[0].rows()
        if tokens.dtype != torch.int64 or tokens.dim() != 1:
            raise PayloadError(f"expects int64 indices, got a payload of {tokens.dtype} {tuple(tokens.shape)}")
        if not tokens.is_cuda and len(tokens):
            low, high = torch.aminmax(tokens)
            if int(low) < 0 or int(high) >= node.size:
                raise PayloadError(f"has {node.size} entries (0 to {node.size - 1}); got {int(low)} to {int(high)}")
        table, self.out.table = self.weights[0], True
        self._chosen: Tensor | None = None
        if node.size <= len(tokens):
            self.out.data, self.out.inverse = table, tokens
        elif tokens.is_cuda:  # to find the different ones, one would have to wait for the device
            self._chosen = tokens
            self.out.put(op.start, op.stop, table.index_select(0, tokens))
        else:
            self._chosen, self.out.inverse = torch.unique(tokens, return_inverse=True)
            self.out.data = table.index_select(0, self._chosen)

    def backward(self, op: Operation) -> None:
        pass

    def finish(self) -> None:
        node, g = self.site.node, self.out.grad
        assert isinstance(node, Embedding)
        if g is None:
            return
        total = self.sums[0]
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
