"""Peers: models of `examples/gallery`, batched by hand in torch as somebody would who knows it well.

    padded     [instances, longest] with a mask, where a layer takes one
    packed     time step by time step, the longest sequence first, where a recurrent layer reads in both directions
    joined     the graphs of a batch as one graph, where messages are added up along edges

They have the layers of the gallery's model. Where one is written with cells, the peer has torch's layer for whole
sequences, which is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, leaky_relu, linear
from torch.nn.utils.rnn import PackedSequence, pad_sequence

from ampnet import Seq
from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State
from bench.ported.joined import joined
from bench.ported.packed import by_time


class Gallery(Peer):
    """Base: the layers are copies of the model's."""

    def build(self, model: nn.Module) -> None:
        for name, layer in model.named_children():
            self.add_module(name, deepcopy(layer))


class Encoder(Gallery):
    """Padded, with ``src_key_padding_mask``."""

    def collate(self, batch: Batch) -> Collated:
        seqs, labels = _columns(batch)
        words, places = (_padded(seqs, name) for name in ("word", "place"))
        beyond, lengths = _mask(seqs)
        return Collated(len(seqs), (words, places, beyond, lengths), torch.stack(labels))

    def forward(self, words: Tensor, places: Tensor, beyond: Tensor, lengths: Tensor) -> Tensor:
        xs = self.word(words) + self.place(places)
        for layer in self.layers:
            xs = layer(xs, src_key_padding_mask=beyond)
        out: Tensor = self.out(xs.masked_fill(beyond.unsqueeze(-1), 0.0).sum(1) / lengths.unsqueeze(-1))
        return out


class Tagger(Gallery):
    """Packed: padding would come first where the GRU reads backward."""

    def collate(self, batch: Batch) -> Collated:
        (seqs,) = _columns(batch)
        _, places, sizes = by_time([len(seq) for seq in seqs])
        signs, tags = (torch.cat([seq._columns[name] for seq in seqs])[places] for name in ("sign", "tag"))
        return Collated(len(seqs), (signs, sizes), tags)

    def forward(self, signs: Tensor, sizes: Tensor) -> Tensor:
        states, _ = self.gru(PackedSequence(self.sign(signs), sizes))
        out: Tensor = self.tag(states.data)
        return out


class Cnn(Gallery):
    """All images as one batch."""

    def build(self, model: nn.Module) -> None:
        super().build(model)
        for mine, its in zip(self.parameters(), model.parameters(), strict=True):
            mine.requires_grad_(its.requires_grad)

    def collate(self, batch: Batch) -> Collated:
        images, labels = (torch.stack(column) for column in _columns(batch))
        return Collated(len(labels), (images,), labels)

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(images))
        return out


class _OfCells(Gallery):
    """A model with a GRU cell, ``cell``, which becomes an `nn.GRU`."""

    def build(self, model: Any) -> None:
        super().build(model)
        del self.cell
        self.gru = nn.GRU(model.hidden, model.hidden)

    @staticmethod
    def weights(state: State) -> State:
        return {
            f"gru.{name.removeprefix('cell.')}_l0" if name.startswith("cell.") else name: value
            for name, value in state.items()
        }


class Language(_OfCells):
    """Packed, so that the last layer reads no padding. The table of words is also the last layer's weight."""

    def build(self, model: Any) -> None:
        super().build(model)
        self.out.weight = self.embedding.weight

    def collate(self, batch: Batch) -> Collated:
        (seqs,) = _columns(batch)
        _, places, sizes = by_time([len(seq) for seq in seqs])
        words, following = (torch.cat([seq._columns[name] for seq in seqs])[places] for name in ("token", "following"))
        return Collated(len(seqs), (words, sizes), following)

    def forward(self, words: Tensor, sizes: Tensor) -> Tensor:
        states, _ = self.gru(PackedSequence(embedding(words, self.embedding.weight), sizes))
        return linear(states.data, self.embedding.weight, self.out.bias)


class Documents(_OfCells):
    """All sentences of all documents packed; then documents padded."""

    def build(self, model: Any) -> None:
        super().build(model)
        self.query = nn.Parameter(model.query.detach().clone())

    def collate(self, batch: Batch) -> Collated:
        documents, labels = _columns(batch)
        rows = [row._columns["value"] for document in documents for row in document._columns["words"].spaces]
        order, places, sizes = by_time([len(row) for row in rows])
        beyond, lengths = _mask(documents)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        sentences = pad_sequence(list(back.split(lengths.int().tolist())), batch_first=True)
        return Collated(len(labels), (torch.cat(rows)[places], sizes, sentences, beyond), torch.stack(labels))

    def forward(self, words: Tensor, sizes: Tensor, sentences: Tensor, beyond: Tensor) -> Tensor:
        _, last = self.gru(PackedSequence(self.embedding(words), sizes))
        keys = self.key(last[0]) @ self.query / self.query.shape[0] ** 0.5
        weights = keys[sentences].masked_fill(beyond, -torch.inf).softmax(-1)
        out: Tensor = self.topic((weights.unsqueeze(1) @ embedding(sentences, last[0])).squeeze(1))
        return out


class Reader(Gallery):
    """Padded, with masked attention in four heads."""

    heads = 4

    def collate(self, batch: Batch) -> Collated:
        facts, questions, labels = _columns(batch)
        beyond, _ = _mask(facts)
        names, colours = (_padded(facts, name) for name in ("name", "colour"))
        return Collated(
            len(facts), (names, colours, torch.stack(questions), beyond[:, None, None, :]), torch.stack(labels)
        )

    def forward(self, names: Tensor, colours: Tensor, questions: Tensor, beyond: Tensor) -> Tensor:
        named = self.name(names)
        keys = self._split(self.key(named)).transpose(-2, -1)
        values = self._split(torch.tanh(self.value(torch.cat((named, self.colour(colours)), -1))))
        h = self.name(questions)
        for _ in range(2):
            scores = self._split(self.ask(h).unsqueeze(1)) @ keys / keys.shape[2] ** 0.5
            h = h + (scores.masked_fill(beyond, -torch.inf).softmax(-1) @ values).flatten(1)
        out: Tensor = self.answer(h)
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Graphs(Gallery):
    """Joined, with a softmax over the edges of each target."""

    def collate(self, batch: Batch) -> Collated:
        columns, source, target, _ = joined(batch)  # type: ignore[arg-type]
        return Collated(len(batch), (columns["kind"], source, target), columns["label"])

    def forward(self, kinds: Tensor, source: Tensor, target: Tensor) -> Tensor:
        h = self.embedding(kinds)
        for value, score in zip(self.values, self.scores, strict=True):
            v = value(h)
            sent = v.index_select(0, source)
            s = leaky_relu(score(torch.cat((sent, v.index_select(0, target)), -1)), 0.2).squeeze(-1)
            most = s.detach().new_full((len(v),), -torch.inf).scatter_reduce(0, target, s.detach(), "amax")
            w = (s - most.index_select(0, target)).exp()
            w = w / w.new_zeros(len(v)).index_add(0, target, w).index_select(0, target)
            h = torch.tanh(v.index_add(0, target, w.unsqueeze(-1) * sent))
        out: Tensor = self.classify(h)
        return out


def _columns(batch: Batch) -> list[Any]:
    return [list(column) for column in zip(*batch, strict=True)]  # type: ignore[arg-type]


def _padded(seqs: Sequence[Seq], name: str) -> Tensor:
    return pad_sequence([seq._columns[name] for seq in seqs], batch_first=True)  # type: ignore[misc]


def _mask(seqs: Sequence[Seq]) -> tuple[Tensor, Tensor]:
    """Where padding is, and the lengths as floating point numbers."""
    lengths = torch.tensor([len(seq) for seq in seqs])
    return torch.arange(int(lengths.max())) >= lengths.unsqueeze(-1), lengths.float()


PEERS: dict[str, type[Peer]] = {
    "transformer_encoder": Encoder,
    "gru_tagger": Tagger,
    "frozen_cnn": Cnn,
    "tied_language_model": Language,
    "document_classifier": Documents,
    "attention_reader": Reader,
    "graph_attention": Graphs,
}
"""By the name of the gallery's file."""
