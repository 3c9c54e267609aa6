"""The binary Tree-LSTM in JAX, level by level, with every level padded to the widest of its group of batches.

    rows     [ leaves ........ | height 1 ...... | height 2 .... | ... | roots of the highest trees ]
    padding               ^^^^               ^^^            ^^^^         their labels have weight 0

Batches are grouped by the height of their highest tree, so a program has as many levels as its group needs, written out
one after the other. Word vectors are picked from the table once for each word of a batch, and an update moves only
those rows, as the sparse gradients of the peer in torch do.

The gradient of `climb` is written down. JAX's own has a gradient of the weights for every level and adds them up (80 MB
of temporary memory an update, and five times the time), and a gradient of all rows for every level that picks some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bench.peers.jax_peer import JaxPeer, Padded, Params, Size, filled
from bench.peers.peer import Collated
from bench.peers.tree_lstm import Level

TABLE = "embedding.weight"
HIGHEST = 64
"""Levels that a batch may have: all sizes have as many numbers."""


class Levels(JaxPeer):
    """Sizes are: number of levels, different words, leaves, and the branches of each height."""

    of = Level

    def __init__(self, model: object) -> None:
        super().__init__(model)  # type: ignore[arg-type]
        self.words = len(self.params[TABLE])

    def size(self, batch: Collated) -> Size:
        words, levels = batch.inputs
        widths = [len(pairs) // 2 for pairs in levels]
        return len(levels), len(words.unique()), len(words), *widths, *[0] * (HIGHEST - len(widths))

    def pad(self, batch: Collated, size: Size) -> Padded:
        words, levels = batch.inputs
        _, different, *places = size
        real = [len(words), *(len(pairs) // 2 for pairs in levels)]
        first = np.concatenate(([0], np.cumsum(places)))
        number = np.concatenate([first[i] + np.arange(n) for i, n in enumerate(real)])
        label, weight = np.zeros(sum(places), np.int32), np.zeros(sum(places), np.float32)
        label[number], weight[number] = batch.label.numpy(), 1
        unique, where = np.unique(words.numpy(), return_inverse=True)
        pairs = tuple(
            filled(number[levels[i].numpy()] if i < len(levels) else np.zeros(0, int), 2 * width)
            for i, width in enumerate(places[1:])
            if width
        )
        touched = {TABLE: filled(unique, different, self.words)}
        return Padded((filled(where, places[0]), pairs), label, weight, np.float32(batch.count), touched)

    def forward(self, params: Params, batch: Padded) -> jax.Array:
        words, levels = batch.inputs
        i, o, u = jnp.split(params[TABLE][words] @ params["leaf.weight"] + params["leaf.bias"], 3, axis=1)
        c = jax.nn.sigmoid(i) * jnp.tanh(u)
        leaves = jnp.concatenate((jax.nn.sigmoid(o) * jnp.tanh(c), c), 1)
        rows = climb(params["branch.weight"], params["branch.bias"], leaves, levels)
        return rows[:, : c.shape[1]] @ params["classify.weight"] + params["classify.bias"]


def gated(gates: jax.Array, below: jax.Array) -> jax.Array:
    """(h | c) of branches, from their gates and both children's c."""
    i, f_left, f_right, o, u = jnp.split(gates, 5, axis=1)
    left, right = jnp.split(below, 2, axis=1)
    c = jax.nn.sigmoid(i) * jnp.tanh(u) + jax.nn.sigmoid(f_left) * left + jax.nn.sigmoid(f_right) * right
    return jnp.concatenate((jax.nn.sigmoid(o) * jnp.tanh(c), c), 1)


@jax.custom_vjp
def climb(weight: jax.Array, bias: jax.Array, leaves: jax.Array, levels: Sequence[jax.Array]) -> jax.Array:
    """(h | c) of all nodes, level after level."""
    return _climb(weight, bias, leaves, levels)[0]


def _climb(weight: jax.Array, bias: jax.Array, leaves: jax.Array, levels: Sequence[jax.Array]) -> tuple[jax.Array, Any]:
    branches = sum(len(pairs) // 2 for pairs in levels)
    rows, first, kept = jnp.pad(leaves, ((0, branches), (0, 0))), len(leaves), []
    for pairs in levels:
        h, c = (x.reshape(len(pairs) // 2, -1) for x in jnp.split(rows[pairs], 2, axis=1))
        out, back = jax.vjp(gated, h @ weight + bias, c)
        rows = jax.lax.dynamic_update_slice(rows, out, (int(first), 0))
        kept.append((h, back, pairs, first))
        first += len(out)
    return rows, (weight, leaves, kept)


def _climb_back(residuals: Any, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    weight, leaves, kept = residuals
    of_gates = []
    for h, back, pairs, first in reversed(kept):
        gates, of_c = back(jax.lax.dynamic_slice_in_dim(gradient, first, len(h)))
        of_h = gates @ weight.T
        both = jnp.concatenate([x.reshape(len(pairs), -1) for x in (of_h, of_c)], 1)
        gradient = gradient.at[pairs].add(both)
        of_gates.append(gates)
    given, wanted = jnp.concatenate([h for h, *_ in reversed(kept)]), jnp.concatenate(of_gates)
    return given.T @ wanted, wanted.sum(0), gradient[: len(leaves)], None


climb.defvjp(_climb, _climb_back)
