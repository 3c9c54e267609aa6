"""The recurrent network for list reduction in JAX: a scan over steps, with the input half folded into the embedding.

Buckets have sequences of one length, so there is a shape for each length, and no padding.
"""

from __future__ import annotations

from typing import ClassVar

import jax

from bench.peers.jax_peer import JaxPeer, Padded, Params, Size, filled, ones
from bench.peers.list_reduction import Folded
from bench.peers.peer import Collated


class Scan(JaxPeer):
    """`jax.lax.scan` over the steps."""

    of = Folded
    most_shapes = 16
    unroll: ClassVar[bool] = False
    """Whether the loop is written out for the compiler."""

    def size(self, batch: Collated) -> Size:
        return tuple(batch.inputs[0].shape)

    def pad(self, batch: Collated, size: Size) -> Padded:
        (tokens,) = batch.inputs
        weight = ones(batch.count, batch.count)
        return Padded((filled(tokens, len(tokens)),), filled(batch.label, batch.count), weight, batch.count, {})

    def forward(self, params: Params, batch: Padded) -> jax.Array:
        (tokens,) = batch.inputs
        steps = (params["embedding.weight"] @ params["inputs.weight"] + params["inputs.bias"])[tokens]

        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.relu(x + h @ params["recur.weight"]), None

        h, _ = jax.lax.scan(cell, jax.nn.relu(steps[0]), steps[1:], unroll=self.unroll)
        return h @ params["classify.weight"] + params["classify.bias"]


class Unrolled(Scan):
    """The same with the loop written out."""

    unroll = True
