"""Messages of different lengths, packed, padded and stacked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from ampnet.nodes.lengths import Lengths

SOME = [[3, 1, 5, 2, 5], [1], [4, 4], [1, 900, 2, 1, 700, 3]]


@pytest.mark.parametrize("counts", SOME)
def test_packing_is_torchs(counts: list[int]) -> None:
    lengths, rows = Lengths(np.array(counts)), torch.randn(sum(counts), 2)
    want = pack_sequence(list(rows.split(counts)), enforce_sorted=False)
    packing = lengths.packing
    assert torch.equal(rows[packing.rows], want.data)
    assert torch.equal(packing.sizes, want.batch_sizes)
    assert torch.equal(packing.order[packing.back], torch.arange(len(counts)))
    assert torch.equal(rows[packing.rows][packing.places], rows)


@pytest.mark.parametrize("counts", SOME)
def test_padded_rows_come_back(counts: list[int]) -> None:
    lengths, rows = Lengths(np.array(counts)), torch.randn(sum(counts), 2)
    pieces, padded = [], 0
    for part in lengths.parts(100):
        wide, mask = lengths.pad(rows, part)
        padded += wide.shape[0] * wide.shape[1]
        assert (mask is None) == (len(set(np.array(counts)[part])) == 1)
        pieces.append((part, lengths.unpad(wide, part)))
    assert torch.equal(lengths.put_together(pieces), rows)
    assert padded + 100 * len(pieces) <= min(100 + len(counts) * max(counts), sum(counts) + 100 * len(set(counts)))


@pytest.mark.parametrize("counts", SOME)
def test_equal_lengths_are_together(counts: list[int]) -> None:
    parts = Lengths.equal([np.array(counts), np.ones(len(counts), dtype=np.int64)])
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(counts)))
    assert all(len(set(np.array(counts)[part])) == 1 for part in parts)
    assert len(parts) == len(set(counts))
