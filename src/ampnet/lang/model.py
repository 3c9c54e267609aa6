"""Model: a network written for one instance, which runs eagerly and compiles to a graph of nodes.

It is an `nn.Module`: submodules, parameters, ``state_dict()``, ``to()`` are torch's. ``forward`` takes what one
instance is made of (tensors, integers, `Seq`, `Tree`, `Edges`), computes with submodules, torch functions and the
combinators, and calls `loss`. What it returns is up to it.

    model(*instance)                     runs forward, in plain torch: print, set breakpoints
    model.loss(*instance).backward()     the sum of its losses, with autograd
    compile(model, *instance)            the graph, with the same parameters

An instance can be given by name as well: ``model(**row)``, ``model.loss(**row)`` or ``model.loss(row)`` with a dict.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ampnet.errors import ModelError
from ampnet.lang.arguments import Signature
from ampnet.lang.calls import families_taken
from ampnet.lang.eager import Judged, record
from ampnet.lang.trace import current


class Model(nn.Module):
    """Base of models. See the head of this file."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` eagerly."""
        if current.get() is not None:  # a part of a model that is being compiled
            return super().__call__(*args, **kwargs)
        with families_taken() as plain:
            return plain(self, *args, **kwargs)

    def loss(self, /, *instance: Any, **named: Any) -> Tensor:
        """The sum of all losses of one instance, differentiable. Runs eagerly."""
        judged = self.judge(*instance, **named)
        if not judged:
            raise ModelError(f"the forward of {type(self).__name__} calls no loss(...), so there is nothing to train")
        return torch.stack([j.value for j in judged]).sum()

    def judge(self, /, *instance: Any, **named: Any) -> list[Judged]:
        """Every loss of one instance by itself: name, value, prediction, label. Runs eagerly."""
        signature = Signature(self)
        bound = signature.bind(instance, named)
        signature.check(bound)
        args, kwargs = signature.call(bound)
        judged: list[Judged] = []
        token = record.set(judged)
        try:
            self(*args, **kwargs)
        finally:
            record.reset(token)
        return judged

    def zeros(self, *shape: int) -> Tensor:
        """A tensor of zeros with the dtype and on the device of the model's parameters: the start of a loop."""
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        if like is None:
            return torch.zeros(*shape)
        return torch.zeros(*shape, dtype=like.dtype, device=like.device)
