"""Entry: a model that a user brings along, in both forms, with the data it is measured on.

    data(count, seed)  ──> records ─┬─> compiled.instance(*record) ──> Inline          "ours"
                                    └─> peer.collate(batch) ─────────> nn.Module       "torch"

Both start from the same weights and make an optimizer step for every ``batch`` records. Each model is written as its
user would write it, without regard to what the engine does best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ampnet import Inline, Model, compile
from ampnet.lang import Compiled
from ampnet.update.policy import MakeOptimizer
from bench.batch import Record
from bench.peers.peer import Peer


@dataclass(frozen=True, slots=True)
class Ported:
    """One of the models. See the head of this file."""

    name: str
    about: str
    """Sizes, in a line."""
    model: Callable[[], Model]
    """Draws its weights from torch's generator."""
    peer: type[Peer]
    data: Callable[[int, int], Iterator[Record]]
    """So many records, drawn from a seed."""
    batch: int = 32
    """Instances in an update."""
    optimizer: MakeOptimizer = partial(torch.optim.Adam, lr=1e-3, fused=True)

    def seeded(self, dtype: torch.dtype = torch.float32) -> Model:
        """The model with weights that are the same at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.model().to(dtype)

    def compiled(self, record: Record, dtype: torch.dtype = torch.float32) -> Compiled:
        """The graph of `seeded`. ``record`` is the example that it is compiled on."""
        return compile(self.seeded(dtype), *record)

    def batches(self, count: int, seed: int = 0) -> list[list[Record]]:
        """So many batches of records."""
        records = list(self.data(count * self.batch, seed))
        return [records[i : i + self.batch] for i in range(0, len(records), self.batch)]


def of_inline(graph: Compiled, records: Sequence[Record], **settings: Any) -> dict[str, Tensor]:
    """Gradients of the summed loss of all records by the name of the model's parameter, computed by the runtime."""
    with Inline(graph, update=None, max_active_keys=len(records), **settings) as runtime:
        runtime.train([graph.instance(*record) for record in records])
        sums = {name: total.clone() for name, total in graph.gradients().items()}
    names = {id(p): name for name, p in graph.model.named_parameters()}
    return {
        names[id(p)]: sums[f"{graph.called(node)}.{label}"]
        for node, found in graph.parameterised().items()
        for label, p in found.parameters.items()
    }


def of_eager(model: Model, records: Sequence[Record]) -> dict[str, Tensor]:
    """The same, by autograd through the model as it is written, one record after the other."""
    total = torch.stack([model.loss(*record) for record in records]).sum()
    return _named(model, total)


def of_peer(peer: Peer, records: Sequence[Record]) -> dict[str, Tensor]:
    """The same, by the peer on one batch of all records. Names and shapes are the peer's own: see `Peer.weights`."""
    pieces = [peer.judge(prediction, label) for prediction, label in peer.score(peer.collate(records))]
    return _named(peer, torch.stack(pieces).sum())


def apart(got: Mapping[str, Tensor], want: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference between two sets of gradients, relative to the largest entry of the gradient, and its
    name."""
    if got.keys() != want.keys():
        raise AssertionError(f"gradients on one side only: {sorted(got.keys() ^ want.keys())}")
    worst = {
        name: float((g - want[name]).abs().max() / want[name].abs().max().clamp(min=1e-12)) for name, g in got.items()
    }
    return max((value, name) for name, value in worst.items())


def _named(module: torch.nn.Module, total: Tensor) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(parameters.items(), grads, strict=True)
    }
