"""Packed: sequences of different lengths by time, as `torch.nn.utils.rnn.PackedSequence` has them, for peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def by_time(lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """How to pack sequences that lie one behind the other.

    Returns the sequences' numbers, the longest first; for each packed element, its place in the unpacked row of all
    sequences; and how many sequences there are at each time.
    """
    length = np.asarray(lengths)
    first = np.cumsum(length) - length
    order = np.argsort(-length, kind="stable")
    sizes = [int((length > t).sum()) for t in range(int(length.max()))]
    place = np.concatenate([first[order[:n]] + t for t, n in enumerate(sizes)])
    return torch.from_numpy(order), torch.from_numpy(place), torch.tensor(sizes)
