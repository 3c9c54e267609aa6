"""Dropout: in training each entry is zeroed with probability p and the rest scaled by 1 / (1 - p); in inference
nothing.

    forward    y = x mask / (1 - p)      keeps the mask
    backward   dx = dy mask / (1 - p)

The mask is a function of the seed, the message's state and the place in its payload, not of a stream of random
numbers: a message meets the same mask in whatever batch, order or process it is handled, so promises P3 and P4 hold
with dropout too. An instance gets a new number, and so new masks, every time it is pumped.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampnet.message import Messages
from ampnet.nodes.kept import Kept
from ampnet.nodes.transform import Residuals, Transform

Words = NDArray[np.uint64]


class Dropout(Transform):
    """Dropout with probability ``p``. Two nodes with one ``seed`` drop alike; give each its own."""

    looks_at_states = True

    def __init__(self, p: float = 0.5, seed: int = 0, key: Sequence[str] | None = None) -> None:
        if not 0 <= p < 1:
            raise ValueError(f"p must be in [0, 1), got {p}")
        super().__init__(key)
        self.p, self.seed = p, seed

    def apply(self, x: Tensor, messages: Messages) -> tuple[Tensor, Residuals]:
        if not messages.train or self.p == 0:
            return x, (None,)
        scale = self.mask(messages, x).to(x.dtype).mul_(1 / (1 - self.p))
        return x * scale, (scale,)

    def gradient(self, g: Tensor, kept: Kept) -> Tensor:
        scale = kept.maybe(0)
        return g if scale is None else g * scale

    def mask(self, messages: Messages, x: Tensor) -> Tensor:
        """The mask of entries that are kept."""
        word: Words = np.full(len(messages), self.seed & (2**64 - 1), dtype=np.uint64)
        for column in messages.states.columns:
            word = _mix(word ^ column.view(np.uint64))
        if messages.offsets is not None:
            counts = messages.row_counts()
            inside = np.arange(messages.rows) - np.repeat(messages.offsets[:-1], counts)
            # A message of one row has the same mask whether or not others in its batch have more.
            word = np.repeat(word, counts)
            word = np.where(inside == 0, word, _mix(word ^ inside.astype(np.uint64)))
        width = x[0].numel() if len(x) else 0
        entry = _mix(word[:, None] + np.arange(1, width + 1, dtype=np.uint64)[None, :])
        keep = entry >= np.uint64(int(self.p * 2**64))
        return torch.from_numpy(keep).view(x.shape).to(x.device)

    def reference(self, x: Tensor) -> Tensor:
        return x

    def describe(self) -> str:
        return f"Dropout {self.p:g}"


def _mix(word: Words) -> Words:
    """The finaliser of SplitMix64: every input bit flips every output bit with probability about a half."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
