"""JaxPeer: a model in JAX, compiled by XLA, that computes what a peer in torch does.

    of               the peer in torch whose weights and collated batches it takes over
    size(batch)      what differs from batch to batch: number of nodes, of edges, of nodes of a level ...
    pad(batch, to)   the batch as arrays of one of a few sizes, with a weight of zero wherever a row is only padding
    forward(...)     all predictions

XLA compiles a program for every shape that it meets. So batches are put into a few groups of similar size, and padded
to the largest of their group (`groups`); all of this before anything is timed. Padding is computed and not counted: a
rate is of real records only.

Matrices are kept transposed, [in, out]. Weights are copied and transposed, never combined, so gradients translate in
the same way (`own`) and tests hold them against torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from torch import Tensor, nn

from bench.batch import Batch
from bench.peers.peer import Collated, Peer

Params = dict[str, jax.Array]
Size = tuple[int, ...]


class Padded(NamedTuple):
    """A batch that is ready: what the compiled step takes."""

    inputs: tuple[Any, ...]
    label: np.ndarray
    weight: np.ndarray
    """By row of the predictions: 1, or 0 for padding."""
    count: np.float32
    """Real records, which the mean is over."""
    touched: dict[str, np.ndarray]
    """By the name of a table of which an update moves some rows only: their numbers, each once. Numbers beyond the
    table are padding."""


class Ready(NamedTuple):
    """A padded batch on the device, and what Python has to know of it."""

    records: int
    rows: int
    """Rows that have a loss."""
    batch: Padded


class JaxPeer:
    """Base of peers in JAX. See the head of this file."""

    of: ClassVar[type[Peer]]
    most_shapes: ClassVar[int] = 4
    """Groups of batches, each with a shape of its own."""

    def __init__(self, model: nn.Module) -> None:
        self.torch = self.of(model)
        self.params: Params = {name: jnp.asarray(w) for name, w in own(self.torch.state_dict()).items()}

    def collate(self, batches: Sequence[Batch]) -> list[Ready]:
        """All batches, in at most `most_shapes` shapes."""
        collated = [self.torch.collate(batch) for batch in batches]
        sizes = groups([self.size(one) for one in collated], self.most_shapes)
        return [self._ready(one, size) for one, size in zip(collated, sizes, strict=True)]

    def _ready(self, collated: Collated, size: Size) -> Ready:
        padded = self.pad(collated, size)
        return Ready(collated.count, int(padded.weight.sum()), jax.device_put(padded))

    def size(self, batch: Collated) -> Size:
        raise NotImplementedError

    def pad(self, batch: Collated, size: Size) -> Padded:
        raise NotImplementedError

    def forward(self, params: Params, batch: Padded) -> jax.Array:
        raise NotImplementedError

    def judge(self, prediction: jax.Array, label: jax.Array, weight: jax.Array) -> jax.Array:
        """The sum of the losses of real rows."""
        if self.of.squared:
            return jnp.sum(weight * jnp.sum((prediction - label) ** 2, -1))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(prediction), label[:, None], 1)[:, 0]
        return -jnp.sum(weight * chosen)

    def metric(self, prediction: jax.Array, label: jax.Array, weight: jax.Array) -> jax.Array:
        """The sum of how many are right, or of how far off they are."""
        if self.of.squared:
            return jnp.sum(weight * jnp.abs(prediction - label).sum(-1))
        return jnp.sum(weight * (prediction.argmax(-1) == label))


def own(state: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Weights (or gradients) of the peer in torch in the form of the one in JAX."""
    flip = {name for name, w in state.items() if w.ndim == 2 and not name.startswith("embedding.")}
    return {name: (w.T if name in flip else w).detach().numpy().copy() for name, w in state.items()}


def groups(sizes: Sequence[Size], most: int) -> list[Size]:
    """For every batch the size that it is padded to: the largest of its group, in each direction.

    Batches are sorted (by the first number, then by the sum) and cut into groups of as many batches each. Where there
    are no more different sizes than groups, nothing is padded.
    """
    if len(set(sizes)) <= most:
        return list(sizes)
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i][0], sum(sizes[i])))
    out: list[Size] = list(sizes)
    for group in np.array_split(np.array(order), most):
        largest = tuple(int(n) for n in np.max([sizes[i] for i in group], axis=0))
        for i in group:
            out[int(i)] = largest
    return out


def filled(rows: Tensor | np.ndarray, count: int, value: float = 0) -> np.ndarray:
    """As an array of ``count`` rows, in 32 bits; rows that are added have this value."""
    array = np.asarray(rows)
    kind = np.int32 if array.dtype.kind in "iu" else np.float32
    out = np.full((count, *array.shape[1:]), value, dtype=kind)
    out[: len(array)] = array
    return out


def ones(real: int, count: int) -> np.ndarray:
    """Weights of rows of which the last are padding."""
    return (np.arange(count) < real).astype(np.float32)
