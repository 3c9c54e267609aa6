"""Permuted layers: an instance at a time, or by depth, where a loader has planned which rows need which layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.batch import Batch
from bench.peers.peer import Collated, Peer, State


class OneByOne(Peer):
    """An instance at a time."""

    def build(self, model: Any) -> None:
        self.width, self.count = model.classify.in_features, len(model.layers)
        self.layers = nn.ModuleList(nn.Linear(self.width, self.width) for _ in model.layers)
        self.classify = nn.Linear(self.width, model.classify.out_features)

    def collate(self, batch: Batch) -> Collated:
        rows, orders, labels = _parts(batch)
        return Collated(len(labels), (list(rows.split(1)), orders.tolist(), list(labels.split(1))), labels)

    def score(self, batch: Collated) -> Iterator[tuple[Tensor, Tensor]]:
        for h, order, label in zip(*batch.inputs, strict=True):
            for number in order:
                h = torch.relu(self.layers[number](h))
            yield self.classify(h), label


class Sorted(OneByOne):
    """By depth: rows sorted by layer and split, one cat, one relu. They stay in that order until the next sort."""

    def collate(self, batch: Batch) -> Collated:
        rows, orders, labels = _parts(batch)
        at, plan = np.arange(len(labels)), []
        for depth in orders.T:
            order = np.argsort(depth[at], kind="stable")
            at = at[order]
            plan.append((torch.from_numpy(order), np.bincount(depth, minlength=self.count).tolist()))
        return Collated(len(labels), (rows, plan), labels[torch.from_numpy(at)])

    score = Peer.score

    def forward(self, h: Tensor, plan: list[tuple[Tensor, list[int]]]) -> Tensor:
        for order, counts in plan:
            parts = h.index_select(0, order).split(counts)
            h = torch.relu(torch.cat([f(x) for f, x in zip(self.layers, parts, strict=True) if len(x)]))
        out: Tensor = self.classify(h)
        return out


class Padded(Peer):
    """By depth: weights stacked, rows padded to the fullest layer, one batched product for all layers."""

    def build(self, model: Any) -> None:
        self.width, self.count = model.classify.in_features, len(model.layers)
        self.weight = nn.Parameter(torch.empty(self.count, self.width, self.width))
        self.bias = nn.Parameter(torch.empty(self.count, 1, self.width))
        self.classify = nn.Linear(self.width, model.classify.out_features)

    @staticmethod
    def weights(state: State) -> State:
        count = sum(name.startswith("layers.") for name in state) // 2
        ours = {name: value for name, value in state.items() if name.startswith("classify.")}
        return ours | {
            "weight": torch.stack([state[f"layers.{i}.weight"].t() for i in range(count)]),
            "bias": torch.stack([state[f"layers.{i}.bias"].unsqueeze(0) for i in range(count)]),
        }

    def collate(self, batch: Batch) -> Collated:
        rows, orders, labels = _parts(batch)
        where, plan = np.arange(len(labels)), []
        for depth in orders.T:
            counts = np.bincount(depth, minlength=self.count)
            most = int(counts.max())
            order = np.argsort(depth, kind="stable")
            layer = depth[order]
            slot = layer * most + np.arange(len(order)) - (np.cumsum(counts) - counts)[layer]
            source = np.zeros(self.count * most, dtype=np.int64)
            source[slot] = where[order]
            where[order] = slot
            plan.append(torch.from_numpy(source))
        return Collated(len(labels), (rows, plan, torch.from_numpy(where)), labels)

    def forward(self, h: Tensor, plan: list[Tensor], where: Tensor) -> Tensor:
        for source in plan:
            given = h.index_select(0, source).view(self.count, -1, self.width)
            h = torch.relu(torch.baddbmm(self.bias, given, self.weight)).view(-1, self.width)
        out: Tensor = self.classify(h.index_select(0, where))
        return out


def _parts(batch: Batch) -> tuple[Tensor, np.ndarray, Tensor]:
    """Rows, the order of the layers of each, and labels."""
    rows, orders, labels = zip(*batch, strict=True)  # type: ignore[arg-type]
    return torch.stack(rows), np.stack([order._columns["value"] for order in orders]), torch.stack(labels)
