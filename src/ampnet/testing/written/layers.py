"""Layers: the modules and parameters of random models, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ampnet.lang import Model
from ampnet.nodes import TreeBranchCell, TreeLeafCell
from ampnet.testing.written.instances import FEW, MANY, OPTIONS, WIDTH


class Own(nn.Module):
    """A module with a parameter and a layer: it becomes one node."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.size = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return torch.tanh(self.layer(h)) * self.size + h


class Reader(nn.Module):
    """A module of a sequence: a row for each element, and one value."""

    def __init__(self) -> None:
        super().__init__()
        self.size = nn.Parameter(torch.ones(WIDTH))

    def forward(self, xs: Tensor) -> tuple[Tensor, Tensor]:
        seen = torch.tanh(xs * self.size).cumsum(0)
        return seen, (seen * xs).mean(0)


class Largest(nn.Module):
    """Scores, and which is the largest: an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.weight @ h
        return scores, scores.argmax()


class Layers(Model):
    """Each layer is there once: blocks that use the same one share its parameters."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.linear, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
            self.join, self.bilinear = nn.Linear(2 * WIDTH, WIDTH), nn.Bilinear(WIDTH, WIDTH, WIDTH)
            self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
            self.norm = nn.LayerNorm(WIDTH)
            self.cell, self.lstm = nn.GRUCell(WIDTH, WIDTH), nn.LSTMCell(WIDTH, WIDTH)
            self.tree_leaf, self.tree_branch = TreeLeafCell(WIDTH, WIDTH), TreeBranchCell(WIDTH)
            self.few, self.many = nn.Embedding(FEW, WIDTH), nn.Embedding(MANY, WIDTH)
            self.sequence = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.PReLU(), nn.Linear(WIDTH, WIDTH))
            self.prelu, self.own = nn.PReLU(), Own()
            self.options = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(OPTIONS))
            self.frozen, self.partly = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.known = nn.Embedding(FEW, WIDTH)
            self.scale, self.begin = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(WIDTH))
            self.shift = nn.Parameter(torch.randn(()))
            self.gru = nn.GRU(WIDTH, WIDTH)
            self.both_ways = nn.LSTM(WIDTH, WIDTH, num_layers=2, bidirectional=True)
            self.heads = nn.MultiheadAttention(WIDTH, WIDTH)
            self.encoder = nn.TransformerEncoderLayer(WIDTH, 1, 2 * WIDTH, dropout=0.0)
            self.reader, self.best, self.rnn = Reader(), Largest(), nn.RNNCell(WIDTH, WIDTH)
            self.scores, self.twin, self.shared = nn.Linear(WIDTH, FEW), nn.Linear(WIDTH, WIDTH), Own()
        self.scores.weight, self.twin.weight = self.few.weight, self.linear.weight  # tied
        self.shared.layer.weight = self.other.weight
        self.frozen.requires_grad_(False)
        self.known.requires_grad_(False)
        self.partly.weight.requires_grad_(False)
        self.double()
