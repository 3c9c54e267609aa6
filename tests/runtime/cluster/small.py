"""Models and data that workers import: defined in a module, as a user's are."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ampnet
from ampnet import Model, Update
from ampnet.lang import Compiled, loss, repeat

ADAM = Update(partial(torch.optim.Adam, lr=1e-2), 4)
WHOLE = {"first": 0, "middle": 1, "last": 0}
"""The worker of each layer of `Depth`."""


class Depth(Model):
    """A layer applied as many times as each point specifies."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(3, width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor, depth: int, label: Tensor) -> Tensor:
        h = repeat(lambda h: torch.tanh(self.middle(h)), self.first(x), times=depth)
        scores = self.last(h)
        loss(scores, label)
        return scores


def points(count: int = 24, seed: int = 0) -> list[tuple[Any, ...]]:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=random, dtype=torch.float64)
    return [(row, i % 3 + 1, torch.tensor(int(row.sum() > 0))) for i, row in enumerate(rows)]


def more_points_elsewhere() -> list[tuple[Any, ...]]:
    """Not the same data on every machine: workers of Ray have a point that differs."""
    import ray

    there = ray.get_runtime_context().worker.mode != ray.SCRIPT_MODE
    return points(seed=0)[:7] + points(seed=1 if there else 0)[7:]


def depth(**options: Any) -> Compiled:
    torch.manual_seed(0)
    return ampnet.compile(Depth().double(), *points(1)[0], **options)


def listening() -> set[str]:
    """The TCP ports that this process listens on."""
    mine = {os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}
