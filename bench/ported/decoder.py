"""Teacher-forced decoder: a GRU reads the source, another writes the target, with a loss at every target position.

h_0 = last state of the encoder        h_t = GRU(embedding(y_t-1), h_t-1)        the loss of out(h_t) beside y_t
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from ampnet import Model, Seq
from ampnet.lang import each, fold, loss, scan
from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State
from bench.ported.entry import Ported
from bench.ported.packed import by_time

WORDS, EMBEDDING, HIDDEN = 120, 64, 128
FEWEST, MOST = 4, 16
"""Tokens of a source; a target is up to three shorter or longer."""


def data(count: int, seed: int) -> Iterator[tuple[Seq, Seq]]:
    """The target repeats the source's words, each moved on by one, from the end; then comes the word 0."""
    rng = np.random.default_rng((seed, 27))
    for _ in range(count):
        length = int(rng.integers(FEWEST, MOST + 1))
        source = rng.integers(1, WORDS, length)
        target = np.resize((source[::-1] + 1) % WORDS, max(2, length + int(rng.integers(-3, 4))))
        target[-1] = 0
        before = np.concatenate(([0], target[:-1]))
        yield Seq(torch.from_numpy(source)), Seq(before=torch.from_numpy(before), word=torch.from_numpy(target))


class Decoder(Model):
    """The words of the source; the words of the target, each with the one ``before`` it."""

    def __init__(self, words: int = WORDS, embedding: int = EMBEDDING, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.width = hidden
        self.source, self.target = nn.Embedding(words, embedding), nn.Embedding(words, embedding)
        self.encoder, self.decoder = nn.GRUCell(embedding, hidden), nn.GRUCell(embedding, hidden)
        self.out = nn.Linear(hidden, words)

    def forward(self, source: Seq, target: Seq) -> None:
        read = fold(lambda h, word: self.encoder(self.source(word), h), source, self.zeros(self.width))
        states, _ = scan(lambda h, word: self.decoder(self.target(word), h), target.before, read)
        each(lambda h, word: loss(self.out(h), word), states, target.word)


class Packed(Peer):
    """Two `nn.GRU` on sequences packed by time. Scores are computed for all target positions at once."""

    def build(self, model: Any) -> None:
        words, embedding = model.source.num_embeddings, model.source.embedding_dim
        self.source, self.target = nn.Embedding(words, embedding), nn.Embedding(words, embedding)
        self.encoder, self.decoder = nn.GRU(embedding, model.width), nn.GRU(embedding, model.width)
        self.out = nn.Linear(model.width, words)

    @staticmethod
    def weights(state: State) -> State:
        return {
            f"{name}_l0" if name.startswith(("encoder", "decoder")) else name: value for name, value in state.items()
        }

    def collate(self, batch: Batch) -> Collated:
        order, place, sizes = by_time([len(source) for source, _ in batch])  # type: ignore[union-attr]
        source = torch.cat([source._columns["value"] for source, _ in batch])[place]  # type: ignore[union-attr,misc]
        after, place, lasting = by_time([len(target) for _, target in batch])  # type: ignore[union-attr]
        before, words = (
            torch.cat([target._columns[name] for _, target in batch])[place]  # type: ignore[union-attr,misc]
            for name in ("before", "word")
        )
        moved = torch.argsort(order)[after]  # from the order of sources to that of targets
        return Collated(len(order), (source, sizes, moved, before, lasting), words)

    def forward(self, source: Tensor, sizes: Tensor, moved: Tensor, before: Tensor, lasting: Tensor) -> Tensor:
        _, read = self.encoder(PackedSequence(self.source(source), sizes))
        states, _ = self.decoder(PackedSequence(self.target(before), lasting), read.index_select(1, moved))
        out: Tensor = self.out(states.data)
        return out


DECODER = Ported(
    name="decoder",
    about=f"GRU encoder and teacher-forced GRU decoder of {HIDDEN}, {FEWEST} to {MOST} tokens, a loss at each",
    model=Decoder,
    peer=Packed,
    data=data,
)
