"""Joined: the graphs of a batch as one graph of many parts, for peers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ampnet import Edges, Seq


def joined(graphs: Sequence[tuple[Seq, Edges]]) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """The nodes' columns by name, the source and target of every edge, and the graph that each node belongs to."""
    sizes = np.array([len(nodes) for nodes, _ in graphs])
    first = np.cumsum(sizes) - sizes
    source = np.concatenate([edges._source + at for (_, edges), at in zip(graphs, first, strict=True)])
    target = np.concatenate([edges._target + at for (_, edges), at in zip(graphs, first, strict=True)])
    owner = np.repeat(np.arange(len(graphs)), sizes)
    columns = {
        name: torch.cat([nodes._columns[name] for nodes, _ in graphs])  # type: ignore[misc]
        for name, column in graphs[0][0]._columns.items()
        if isinstance(column, Tensor)
    }
    return columns, torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(owner)
