"""Embedding: the lookup table, a parameterised node whose parameter is the table.

forward    y = W[i]                 keeps i
backward   W[i] += dy               nothing to return: indices have no gradient, the answer is empty
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, PayloadError
from ampnet.native import calls
from ampnet.nodes.span import Span
from ampnet.nodes.transform import Parameterised


class Embedding(Parameterised):
    """`torch.nn.Embedding` on rows of int64 indices. ``Embedding(14, 128)`` makes its own; ``Embedding(module)`` uses
    yours."""

    saturates = False

    def __init__(
        self,
        module: nn.Embedding | int,
        embedding_dim: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        key: Sequence[str] | None = None,
    ) -> None:
        if isinstance(module, int):
            if embedding_dim is None:
                raise TypeError("Embedding(num_embeddings, embedding_dim) needs both, or an nn.Embedding")
            module = nn.Embedding(module, embedding_dim, dtype=dtype)
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise GraphError(["Embedding does not support max_norm, scale_grad_by_freq or sparse=True"])
        super().__init__(module, key)
        self.size, self.padding = module.num_embeddings, module.padding_idx

    def make_updater(self) -> None:
        super().make_updater()
        self.updater.touched = []

    def shape_out(self, x: Tensor) -> Sequence[int]:
        return (*x.shape[1:], self.updater.weights[0].shape[1])

    def check(self, x: Tensor) -> None:
        if x.dtype != torch.int64:
            raise PayloadError(f"expects int64 indices, got a payload of {x.dtype}")

    def check_range(self, x: Tensor) -> None:
        """Raise `PayloadError` where an index has no entry."""
        if x.numel() and not calls.within(x, self.size):
            low, high = torch.aminmax(x)  # asked beforehand: on a GPU, such an index would take the device down
            if int(low) < 0 or int(high) >= self.size:
                wrong = int(low) if int(low) < 0 else int(high)
                raise PayloadError(
                    f"index {wrong} is out of range: the table has {self.size} rows, 0 to {self.size - 1}"
                )

    def run(self, span: Span) -> None:
        x = span.x(0).reshape(-1)
        self.check_range(x)
        y = span.y.view(len(x), span.w[0].shape[1])
        if not calls.fetch(y, span.w[0], x):
            torch.index_select(span.w[0], 0, x, out=y)

    def back(self, span: Span) -> None:
        """Indices have no gradient."""

    def collect(self, span: Span) -> None:
        index, g = span.x(0).reshape(-1), span.g.reshape(-1, span.g.shape[-1])
        if self.padding is not None:
            real = index != self.padding
            index, g = index[real], g[real]
        self.updater.touch(index)
        total = span.sums[0]
        g = g.to(total.dtype)
        if not calls.add_back(total, g, index):
            total.index_add_(0, index, g.contiguous())  # it takes a slow path for rows that are not contiguous

    def describe(self) -> str:
        return f"Embedding {self.size}×{self.updater.weights[0].shape[1]}"
