"""Kept: what a store gives back for a batch.

A backward batch is answered in **parts**, one for each record that holds some of its messages, in the order of the
batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ampnet.nodes.store import Part
from ampnet.state import Ints, States


def gather(parts: Sequence[Part], i: int) -> Tensor | None:
    """The rows of the ``i``-th tensor of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0].rows(i)
    pieces = [p.rows(i) for p in parts]
    known = [p for p in pieces if p is not None]
    if not known:
        return None
    assert len(known) == len(pieces), "messages with and without rows are asked for apart"
    return torch.cat(known)


def gather_states(parts: Sequence[Part]) -> States:
    """The states of all parts, one after the other."""
    return States.merge([p.states() for p in parts])


def gather_counts(parts: Sequence[Part]) -> Ints | None:
    """Rows of each message of all parts, one after the other; None: one each."""
    if all(p.record.offsets is None for p in parts):
        return None
    return np.concatenate([p.counts() for p in parts])


class Kept:
    """The tensors that a transform kept for the messages of a backward batch: ``kept[i]`` is the i-th, row by row."""

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts

    def __getitem__(self, i: int) -> Tensor:
        rows = gather(self.parts, i)
        assert rows is not None
        return rows

    def maybe(self, i: int) -> Tensor | None:
        """The same where it may be None."""
        return gather(self.parts, i)
