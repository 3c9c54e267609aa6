"""Models whose forward is a function of the test. It uses the layers that it needs of those that are here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.lang import Model, loss


class WrittenBase(Model):
    """Subclasses have the ``forward`` that passes its arguments to ``body``."""

    def __init__(self, body: Callable[..., Any], width: int = 3) -> None:
        super().__init__()
        self.body = body
        self.a, self.b, self.c = (nn.Linear(width, width) for _ in range(3))
        self.two, self.score = nn.Linear(2 * width, width), nn.Linear(2 * width, 1)
        self.cell, self.outer, self.lstm = nn.GRUCell(width, width), nn.GRUCell(width, width), nn.LSTMCell(width, width)
        self.options = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.scale, self.factor = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(()))

    def compare(self, out: Any, y: Tensor) -> None:
        """Add the loss of what ``body`` returned; None: it computed losses of its own."""
        if out is not None:
            loss(out, y, "squared_error")
