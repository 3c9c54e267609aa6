"""Peer: a model in plain torch, batched by hand, that computes what ours does.

    Peer(model)            built like our model, with the same weights
    collate(batch)         a batch, as this peer likes it; before anything is timed
    forward(*inputs)       all predictions of a batch
    score(collated)        predictions and what they should be, in pieces; a piece goes backward by itself

A peer may have its weights in another form (two matrices in one, say). ``weights`` says how ours become its own. It
only copies, stacks and transposes, so gradients go the same way: tests hold them against ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.batch import Batch

State = Mapping[str, Tensor]


class Collated(NamedTuple):
    """A batch that is ready for a peer."""

    count: int
    """Records in it."""
    inputs: tuple[Any, ...]
    label: Tensor


class Peer(nn.Module):
    """Base of peers. See the head of this file."""

    needs: ClassVar[str | None] = None
    """A package that must be installed."""
    squared: ClassVar[bool] = False
    """Whether the loss is the squared error; else it is the cross entropy."""
    compiled: ClassVar[bool] = False

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.build(model)
        given = next(model.parameters())
        self.to(given.dtype)
        self.load_state_dict(self.weights(model.state_dict()))

    def build(self, model: nn.Module) -> None:
        """Make the layers, in the sizes of our model."""
        raise NotImplementedError

    @staticmethod
    def weights(state: State) -> State:
        """The weights of our model in the form of this one's."""
        return state

    def collate(self, batch: Batch) -> Collated:
        raise NotImplementedError

    def score(self, batch: Collated) -> Iterator[tuple[Tensor, Tensor]]:
        yield self(*batch.inputs), batch.label

    def judge(self, prediction: Tensor, label: Tensor) -> Tensor:
        """The sum of the losses."""
        if self.squared:
            return functional.mse_loss(prediction, label, reduction="sum")
        return functional.cross_entropy(prediction, label, reduction="sum")

    def metric(self, prediction: Tensor, label: Tensor) -> Tensor:
        """The sum of how many are right, or of how far off they are."""
        if self.squared:
            return (prediction - label).abs().sum()
        return (prediction.argmax(-1) == label).sum()


def compiled(kind: type[Peer], **how: Any) -> type[Peer]:
    """The same peer under `torch.compile`."""

    class Faster(kind):  # type: ignore[valid-type, misc]
        compiled = True

        def build(self, model: nn.Module) -> None:
            super().build(model)
            torch._dynamo.config.recompile_limit = 64  # sequences have nine lengths, and eight is the default
            self.forward = torch.compile(self.forward, **how)

    Faster.__name__ = f"{kind.__name__}, compiled"
    Faster.__doc__ = f"{kind.__doc__} Compiled."
    return Faster


def moved(given: Any, device: str) -> Any:
    """All tensors of a collated batch on that device."""
    if isinstance(given, Tensor):
        return given.to(device)
    if isinstance(given, Collated):
        return Collated(given.count, moved(given.inputs, device), moved(given.label, device))
    if isinstance(given, tuple | list):
        return type(given)(moved(one, device) for one in given)
    return given
