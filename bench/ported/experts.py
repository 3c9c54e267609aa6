"""Routed experts: every token goes through one of several MLPs in each layer, by an integer of the data.

    h_t = h_t + expert[route_t](h_t)       in every layer        the class of the mean over all tokens

The routes are given with the data, as hash routing does (Roller et al. 2021). Each layer has experts of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ampnet import Model, Seq
from ampnet.lang import choose, each, loss, reduce
from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State
from bench.ported.entry import Ported

WORDS, WIDTH, INNER, EXPERTS, LAYERS, CLASSES = 400, 64, 128, 8, 3, 5
FEWEST, MOST = 5, 20
"""Tokens of an instance."""


def data(count: int, seed: int) -> Iterator[tuple[Seq, Tensor]]:
    rng = np.random.default_rng((seed, 24))
    hashes = np.random.default_rng(24).integers(0, EXPERTS, (LAYERS, WORDS))
    for _ in range(count):
        words = rng.integers(0, WORDS, int(rng.integers(FEWEST, MOST + 1)))
        routes = {f"route{k}": hashes[k, words] for k in range(LAYERS)}
        yield Seq(word=torch.from_numpy(words), **routes), torch.tensor(int(words.sum()) % CLASSES)


class Experts(Model):
    """Tokens with a ``word`` and, for each layer, the number of an expert; and a class."""

    def __init__(self, words: int = WORDS, width: int = WIDTH, inner: int = INNER, classes: int = CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)) for _ in range(EXPERTS)
            )
            for _ in range(LAYERS)
        )
        self.classify = nn.Linear(width, classes)

    def forward(self, tokens: Seq, label: Tensor) -> None:
        h = each(self.embedding, tokens.word)
        for k, experts in enumerate(self.layers):
            route = getattr(tokens, f"route{k}")
            h = each(lambda h, number, experts=experts: h + choose(number, experts, h), h, route)
        loss(self.classify(reduce(h, "mean")), label)


class Padded(Peer):
    """The tokens of all instances by expert, each expert's padded to as many as the busiest has: two batched products a
    layer. (A loop over the experts without padding takes longer.)

    The mean over the tokens of an instance is a product with a matrix that is made beforehand.
    """

    def build(self, model: Any) -> None:
        self.embedding = nn.Embedding(model.embedding.num_embeddings, model.embedding.embedding_dim)
        self.layers = nn.ModuleList(Stacked(layer) for layer in model.layers)
        self.classify = nn.Linear(model.classify.in_features, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        out = {name: value for name, value in state.items() if not name.startswith("layers.")}
        for k in range(LAYERS):
            for place, name in (("0", "up"), ("2", "down")):
                experts = [f"layers.{k}.{e}.{place}" for e in range(EXPERTS)]
                out[f"layers.{k}.{name}"] = torch.stack([state[f"{one}.weight"].t() for one in experts])
                out[f"layers.{k}.{name}_bias"] = torch.stack([state[f"{one}.bias"] for one in experts]).unsqueeze(1)
        return out

    def collate(self, batch: Batch) -> Collated:
        rows = [tokens for tokens, _ in batch]  # type: ignore[union-attr]
        words = torch.cat([tokens._columns["word"] for tokens in rows])  # type: ignore[misc]
        plans = [_plan(np.concatenate([tokens._columns[f"route{k}"] for tokens in rows])) for k in range(LAYERS)]
        dtype = self.classify.weight.dtype
        mean = torch.block_diag(*(torch.full((1, len(tokens)), 1 / len(tokens), dtype=dtype) for tokens in rows))
        labels = torch.stack([label for _, label in batch])  # type: ignore[union-attr]
        return Collated(len(rows), (words, plans, mean), labels)

    def forward(self, words: Tensor, plans: list[tuple[Tensor, Tensor]], mean: Tensor) -> Tensor:
        h = self.embedding(words)
        for layer, (picked, back) in zip(self.layers, plans, strict=True):
            h = h + layer(h.index_select(0, picked).view(EXPERTS, -1, h.shape[1])).flatten(0, 1).index_select(0, back)
        out: Tensor = self.classify(mean @ h)
        return out


class Stacked(nn.Module):
    """The experts of one layer, their weights in one tensor."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        (inner, width), count = experts[0][0].weight.shape, len(experts)
        self.up, self.up_bias = (
            nn.Parameter(torch.empty(count, width, inner)),
            nn.Parameter(torch.empty(count, 1, inner)),
        )
        self.down = nn.Parameter(torch.empty(count, inner, width))
        self.down_bias = nn.Parameter(torch.empty(count, 1, width))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self.down_bias, torch.baddbmm(self.up_bias, rows, self.up).relu(), self.down)


def _plan(routes: np.ndarray) -> tuple[Tensor, Tensor]:
    """Which token each place of each expert holds, and the place of each token. Places to spare hold token 0."""
    most = int(np.bincount(routes, minlength=EXPERTS).max())
    picked, back = np.zeros((EXPERTS, most), dtype=np.int64), np.empty_like(routes)
    for expert in range(EXPERTS):
        own = np.flatnonzero(routes == expert)
        picked[expert, : len(own)] = own
        back[own] = expert * most + np.arange(len(own))
    return torch.from_numpy(picked.reshape(-1)), torch.from_numpy(back)


ROUTED_EXPERTS = Ported(
    name="experts",
    about=f"{LAYERS} layers of {EXPERTS} experts, width {WIDTH}, inner {INNER}, {FEWEST} to {MOST} tokens",
    model=Experts,
    peer=Padded,
    data=data,
)
