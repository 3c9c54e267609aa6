"""LSTM with attention: the last state asks, all states answer.

    s_t = h_t . h_last / sqrt(d)        w = softmax(s)        the class of [sum of w_t h_t, h_last]

The softmax over a sequence is ``exp(s_t - logsumexp of all s)``, with `reduce`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ampnet import Model, Seq
from ampnet.lang import each, loss, reduce, scan
from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State
from bench.ported.entry import Ported

WORDS, EMBEDDING, HIDDEN, CLASSES = 500, 64, 128, 5
FEWEST, MOST = 5, 25
"""Tokens of a sequence."""


def data(count: int, seed: int) -> Iterator[tuple[Seq, Tensor]]:
    rng = np.random.default_rng((seed, 25))
    for _ in range(count):
        words = rng.integers(0, WORDS, int(rng.integers(FEWEST, MOST + 1)))
        yield Seq(torch.from_numpy(words)), torch.tensor(int(words.max()) % CLASSES)


class Attention(Model):
    """The words of a sequence, and a class."""

    def __init__(self, words: int = WORDS, embedding: int = EMBEDDING, hidden: int = HIDDEN, classes: int = CLASSES):
        super().__init__()
        self.width = hidden
        self.embedding = nn.Embedding(words, embedding)
        self.cell = nn.LSTMCell(embedding, hidden)
        self.classify = nn.Linear(2 * hidden, classes)

    def forward(self, words: Seq, label: Tensor) -> None:
        start = self.zeros(self.width)
        (h, _), (last, _) = scan(lambda state, word: self.cell(self.embedding(word), state), words, (start, start))
        scores = each(lambda h: (h * last).sum(-1, keepdim=True) / self.width**0.5, h)
        total = reduce(scores, "logsumexp")
        context = reduce(each(lambda h, s: torch.exp(s - total) * h, h, scores), "sum")
        loss(self.classify(torch.cat((context, last), -1)), label)


class Padded(Peer):
    """`nn.LSTM` on padded sequences, then a softmax over the states that are not padding.

    Padding costs less than `PackedSequence` here, for which torch does not use its fused LSTM.
    """

    def build(self, model: Any) -> None:
        self.width = model.width
        self.embedding = nn.Embedding(model.embedding.num_embeddings, model.embedding.embedding_dim)
        self.lstm = nn.LSTM(model.embedding.embedding_dim, self.width)
        self.classify = nn.Linear(model.classify.in_features, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        return {
            f"lstm.{name.removeprefix('cell.')}_l0" if name.startswith("cell.") else name: value
            for name, value in state.items()
        }

    def collate(self, batch: Batch) -> Collated:
        rows: list[Tensor] = [words._columns["value"] for words, _ in batch]  # type: ignore[union-attr]
        lengths = torch.tensor([len(row) for row in rows])
        words = pad_sequence(rows)
        beyond = torch.arange(len(words)).unsqueeze(1) >= lengths
        labels = torch.stack([label for _, label in batch])  # type: ignore[union-attr]
        ends = (lengths - 1) * len(rows) + torch.arange(len(rows))
        return Collated(len(rows), (words, ends, beyond), labels)

    def forward(self, words: Tensor, ends: Tensor, beyond: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(words))
        last = states.flatten(0, 1).index_select(0, ends)
        scores = (states * last).sum(-1) / self.width**0.5
        weights = scores.masked_fill(beyond, -torch.inf).softmax(0)
        context = (weights.unsqueeze(-1) * states).sum(0)
        out: Tensor = self.classify(torch.cat((context, last), -1))
        return out


ATTENTION = Ported(
    name="attention",
    about=f"LSTM of {HIDDEN} with attention, sequences of {FEWEST} to {MOST} tokens",
    model=Attention,
    peer=Padded,
    data=data,
)
