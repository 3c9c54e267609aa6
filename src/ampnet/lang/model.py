"""Model: a network written for one instance, which runs eagerly and compiles to a graph of nodes.

It is an `nn.Module`: submodules, parameters, ``state_dict()``, ``to()`` are torch's. ``forward`` takes what one
instance is made of (tensors, integers, `Seq`, `Tree`, `Edges`), computes with submodules, torch functions and the
combinators, and calls `loss`. What it returns is up to it.

    model(*instance)                     runs forward, in plain torch: print, set breakpoints
    model.loss(*instance).backward()     the sum of its losses, with autograd
    compile(model, *instance)            the graph, with the same parameters
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ampnet.errors import ModelError
from ampnet.lang.eager import Judged, record


class Model(nn.Module):
    """Base of models. See the head of this file."""

    def loss(self, *instance: Any) -> Tensor:
        """The sum of all losses of one instance, differentiable. Runs eagerly."""
        judged = self.judge(*instance)
        if not judged:
            raise ModelError(f"the forward of {type(self).__name__} calls no loss(...), so there is nothing to train")
        return torch.stack([j.value for j in judged]).sum()

    def judge(self, *instance: Any) -> list[Judged]:
        """Every loss of one instance by itself: name, value, prediction, label. Runs eagerly."""
        judged: list[Judged] = []
        token = record.set(judged)
        try:
            self(*instance)
        finally:
            record.reset(token)
        return judged

    def zeros(self, *shape: int) -> Tensor:
        """A tensor of zeros with the dtype and on the device of the model's parameters: the start of a loop."""
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        if like is None:
            return torch.zeros(*shape)
        return torch.zeros(*shape, dtype=like.dtype, device=like.device)
