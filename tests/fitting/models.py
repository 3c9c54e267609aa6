"""A small model to fit: a line through points."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ampnet import Inline, Model, Update, compile
from ampnet.lang import Compiled, loss


class Line(Model):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)))
        loss(out, y, "squared_error")
        return out


def points(count: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    xs = torch.rand(count, 1, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return [(x, x.sin()) for x in xs]


def graph(seed: int = 0, **how: Any) -> Compiled:
    torch.manual_seed(seed)
    return compile(Line(), *points(1)[0], **how)


def policy(rate: float = 0.05, **settings: Any) -> Update:
    return Update(partial(torch.optim.SGD, lr=rate), 4, "instances", **settings)


def inline(rate: float = 0.05, **settings: Any) -> Inline:
    return Inline(graph(), update=policy(rate), max_active_keys=8, **settings)
