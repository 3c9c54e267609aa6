"""The perceptron for MNIST in JAX: layer after layer, one compiled step."""

from __future__ import annotations

import jax

from bench.peers.jax_peer import JaxPeer, Padded, Params, Size, filled, ones
from bench.peers.mnist import Eager
from bench.peers.peer import Collated


class Perceptron(JaxPeer):
    """All batches have one shape."""

    of = Eager

    def size(self, batch: Collated) -> Size:
        return (batch.count,)

    def pad(self, batch: Collated, size: Size) -> Padded:
        (images,) = batch.inputs
        n = size[0]
        return Padded((filled(images, n),), filled(batch.label, n), ones(batch.count, n), batch.count, {})

    def forward(self, params: Params, batch: Padded) -> jax.Array:
        (h,) = batch.inputs
        for i in range(len(self.torch.hidden)):  # type: ignore[arg-type]
            h = jax.nn.relu(h @ params[f"hidden.{i}.weight"] + params[f"hidden.{i}.bias"])
        return h @ params["classify.weight"] + params["classify.bias"]
