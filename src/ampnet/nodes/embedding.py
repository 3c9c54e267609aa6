"""Embedding: the lookup table, a parameterised node whose parameter is the table.

forward    y = W[i]                 keeps i
backward   W[i] += dy               nothing to return: indices have no gradient, the answer is empty
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ampnet.errors import GraphError, PayloadError
from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Parameterised, Residuals


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

    def apply(self, x: Tensor, w: Sequence[Tensor], messages: Messages) -> tuple[Tensor, Residuals]:
        if x.dtype != torch.int64:
            raise PayloadError(f"expects int64 indices, got a payload of {x.dtype}")
        flat = x.reshape(-1)
        try:
            if flat.is_cuda and bool(((flat < 0) | (flat >= self.size)).any()):
                raise IndexError  # asked beforehand: a kernel that meets such an index takes the device down
            y = w[0].index_select(0, flat)
        except (IndexError, RuntimeError) as error:
            raise PayloadError(
                f"has {self.size} entries (0 to {self.size - 1}); got {int(flat.min())} to {int(flat.max())}"
            ) from error
        return y.view(*x.shape, y.shape[-1]), (x,)

    def gradient(self, g: Tensor, kept: Kept, w: Sequence[Tensor], sums: Sequence[Tensor]) -> None:
        x = kept[0]
        index, rows = (x, g) if x.dim() == 1 else (x.reshape(-1), g.reshape(-1, g.shape[-1]))
        if self.padding is not None:
            real = index != self.padding
            index, rows = index[real], rows[real]
        self.updater.touch(index)
        # index_add_ takes a slow path for rows that are not contiguous (a Concat's gradient is a slice).
        sums[0].index_add_(0, index, rows.to(sums[0].dtype).contiguous())

    def describe(self) -> str:
        return f"Embedding {self.size}×{self.updater.weights[0].shape[1]}"
