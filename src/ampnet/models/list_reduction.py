"""The paper's recurrent network for list reduction, with the vanilla ReLU cell or a GRU or LSTM cell.

`ampnet.models.by_hand` is the same network with the vanilla cell, wired node by node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ampnet.data.list_reduction import CLASSES, VOCABULARY, Sequences, buckets
from ampnet.instance import Instance
from ampnet.lang import Compiled, Model, Seq, compile, fold, loss

HIDDEN = 128
Cell = Literal["relu", "gru", "lstm"]


class ListReduction(Model):
    """The tokens of a list (an operation and up to nine digits) and its result."""

    def __init__(self, hidden: int = HIDDEN, cell: Cell = "relu") -> None:
        super().__init__()
        self.width, self.kind = hidden, cell
        self.embedding = nn.Embedding(VOCABULARY, hidden)
        cells: dict[str, type[nn.GRUCell | nn.LSTMCell]] = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}
        self.cell = cells[cell](hidden, hidden) if cell in cells else nn.Linear(2 * hidden, hidden)
        self.classify = nn.Linear(hidden, CLASSES)
        if isinstance(self.cell, nn.Linear):
            nn.init.orthogonal_(self.cell.weight.detach()[:, hidden:])

    def step(self, state: Any, token: Tensor) -> Any:
        """One token."""
        x = self.embedding(token)
        if self.kind == "relu":
            return torch.relu(self.cell(torch.cat((x, state), -1)))
        return self.cell(x, state)

    def forward(self, tokens: Seq, label: Tensor) -> Tensor:
        start = self.zeros(self.width)
        last = fold(self.step, tokens, (start, start) if self.kind == "lstm" else start)
        scores: Tensor = self.classify(last[0] if self.kind == "lstm" else last)
        loss(scores, label)
        return scores


def build(hidden: int = HIDDEN, seed: int = 0, cell: Cell = "relu") -> Compiled:
    """The graph, with weights drawn from ``seed``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ListReduction(hidden, cell)
    return compile(model, Seq(torch.zeros(2, dtype=torch.int64)), torch.tensor(0))


def arguments(data: Sequences, i: int) -> tuple[Seq, Tensor]:
    """Returns the arguments of the model for one sequence."""
    return Seq(torch.from_numpy(data.tokens[i, : int(data.lengths[i])])), torch.as_tensor(int(data.labels[i]))


def instances(
    graph: Compiled, data: Sequences, bucket: int = 100, rng: np.random.Generator | None = None
) -> Iterator[Instance]:
    """An epoch: all sequences in buckets of one length (or one by one, with ``bucket=1``), shuffled by ``rng``."""
    if bucket == 1:
        order = rng.permutation(len(data)) if rng is not None else np.arange(len(data))
        yield from (graph.instance(*arguments(data, i)) for i in order.tolist())
        return
    for where in buckets(data, bucket, rng):
        tokens = np.ascontiguousarray(data.tokens[where, : data.lengths[where[0]]].T)
        labels = torch.from_numpy(data.labels[where])
        if len(where) == 1:
            tokens, labels = tokens[:, 0], labels[0]
        yield graph.bucket(len(where), Seq(torch.from_numpy(tokens)), labels)
