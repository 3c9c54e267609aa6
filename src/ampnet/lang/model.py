"""Model: a network written for one instance, which runs eagerly and compiles to a graph of nodes.

It is an `nn.Module`: submodules, parameters, ``state_dict()``, ``to()`` are torch's. ``forward`` takes the parts of one
instance (tensors, integers, `Seq`, `Tree`, `Edges`), computes with submodules, torch functions and combinators, and
calls `loss`. Its return value is what `predict` returns.

    model(*instance)                     runs forward, in plain torch: print, set breakpoints; what predict returns
    model.loss(*instance).backward()     the sum of its losses, with autograd
    compile(model, *instance)            the graph, with the same parameters

An instance can be given by name as well: ``model(**row)``, ``model.loss(**row)`` or ``model.loss(row)`` with a dict.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from ampnet.errors import ModelError
from ampnet.lang.arguments import Signature
from ampnet.lang.calls import families_taken
from ampnet.lang.eager import Judged, as_tensors, record
from ampnet.lang.trace import current

_running: ContextVar[bool] = ContextVar("running", default=False)
"""Whether a model is running eagerly."""

RESERVED = {"judge": "score", "loss": "criterion", "zeros": "start"}
"""Methods of `Model` that a model cannot replace, each with a name to use instead."""


class Model(nn.Module):
    """Base class of models. See the head of this file."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a class that replaces a method which `loss`, training and tests call."""
        super().__init_subclass__(**kwargs)
        for name in RESERVED:
            if getattr(cls, name) is not getattr(Model, name):
                raise ModelError(_reserved(cls, name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse ``self.loss = nn.MSELoss()``: torch would keep it, and ``self.loss(...)`` call the method instead."""
        if name in RESERVED:
            raise ModelError(_reserved(type(self), name))
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` eagerly. Families that it returns become tensors, as from `predict`."""
        if current.get() is not None:  # a part of a model that is being compiled
            return super().__call__(*args, **kwargs)
        with families_taken() as plain:
            if _running.get():  # a part of another model
                return plain(self, *args, **kwargs)
            token = _running.set(True)
            try:
                return as_tensors(plain(self, *args, **kwargs))
            finally:
                _running.reset(token)

    def loss(self, /, *instance: Any, **named: Any) -> Tensor:
        """Returns the sum of all losses of one instance, differentiable. Runs eagerly."""
        judged = self.judge(*instance, **named)
        if not judged:
            raise ModelError(no_loss(self))
        return torch.stack([j.value for j in judged]).sum()

    def judge(self, /, *instance: Any, **named: Any) -> list[Judged]:
        """Returns every loss of one instance separately: name, value, prediction, label. Runs eagerly."""
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
        """Returns zeros with the dtype and device of the model's parameters, for the start of a loop."""
        like = next((p for p in self.parameters() if p.is_floating_point()), None)
        if like is None:
            return torch.zeros(shape)
        return torch.zeros(shape, dtype=like.dtype, device=like.device)


def no_loss(model: nn.Module) -> str:
    """Returns the message for a model whose forward calls no loss."""
    return (
        f"the forward of {type(model).__name__} calls no loss(...), so there is nothing to train. Call "
        f"ampnet.lang.loss(prediction, label) in it, or loss(value) for a number to minimise; what forward returns is "
        f"its prediction, not its loss"
    )


def _reserved(model: type, name: str) -> str:
    return (
        f"{model.__name__} defines '{name}', which is a method of ampnet.Model that training and tests call: use "
        f"another name, like '{RESERVED[name]}'"
    )
