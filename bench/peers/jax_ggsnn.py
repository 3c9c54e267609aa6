"""Gated graph networks in JAX: a batch is one graph of many parts, padded with nodes and edges that nobody reads.

    m = h (W_0 | W_1 | ...)           every kind's product for every node, in one
    segment_sum over edges            rows picked by (source, kind), added up at the targets

This is how jraph writes such models; its ``segment_sum`` is JAX's. The padding is one further node, which edges of the
padding start from and end at, and for molecules one further graph, which the nodes of the padding belong to.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bench.peers.ggsnn import BabiSparse, Qm9Sparse
from bench.peers.jax_peer import JaxPeer, Padded, Params, Size, filled, ones
from bench.peers.peer import Collated


class GraphPeer(JaxPeer):
    """The steps, which bAbI and QM9 have in common."""

    def propagate(self, params: Params, h: jax.Array, picked: jax.Array, target: jax.Array) -> jax.Array:
        nodes, width = h.shape
        for _ in range(self.torch.steps):  # type: ignore[arg-type]
            sent = (h @ params["along.weight"]).reshape(-1, width)[picked]
            arrived = jax.ops.segment_sum(sent, target, nodes)
            h = self.cell(params, arrived, h)
        return h

    def cell(self, params: Params, x: jax.Array, h: jax.Array) -> jax.Array:
        """As torch.nn.GRUCell has it."""
        r, z, n = jnp.split(x @ params["cell.weight_ih"] + params["cell.bias_ih"], 3, axis=1)
        r_h, z_h, n_h = jnp.split(h @ params["cell.weight_hh"] + params["cell.bias_hh"], 3, axis=1)
        z = jax.nn.sigmoid(z + z_h)
        n = jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h)
        return n + z * (h - n)

    def edges(self, batch: Collated, nodes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """(source, kind) and target of all edges. Edges of the padding connect the last node with itself."""
        _, _, picked, target, *_ = batch.inputs
        return filled(picked, count, (nodes - 1) * self.torch.kinds), filled(target, count, nodes - 1)  # type: ignore[operator]


class Babi(GraphPeer):
    """A score for every node. All batches have one shape: nothing is padded."""

    of = BabiSparse

    def size(self, batch: Collated) -> Size:
        return len(batch.inputs[0]), len(batch.inputs[2])

    def pad(self, batch: Collated, size: Size) -> Padded:
        nodes, edges = size
        assert nodes == len(batch.inputs[0])  # scores are told apart by place: all graphs have as many nodes
        picked, target = self.edges(batch, nodes, edges)
        weight = ones(batch.count, batch.count)
        inputs = (filled(batch.inputs[0], nodes), picked, target)
        return Padded(inputs, filled(batch.label, batch.count), weight, batch.count, {})

    def forward(self, params: Params, batch: Padded) -> jax.Array:
        x, picked, target = batch.inputs
        both = jnp.concatenate((self.propagate(params, x, picked, target), x), 1)
        h = jnp.tanh(both @ params["mix.weight"] + params["mix.bias"])
        scores = h @ params["score_node.weight"] + params["score_node.bias"]
        return scores.reshape(len(batch.label), -1)


class Qm9(GraphPeer):
    """A gated sum over the atoms of each molecule."""

    of = Qm9Sparse

    def size(self, batch: Collated) -> Size:
        return 1 + len(batch.inputs[0]), len(batch.inputs[2])

    def pad(self, batch: Collated, size: Size) -> Padded:
        nodes, edges = size
        picked, target = self.edges(batch, nodes, edges)
        x, *_, owner, count = batch.inputs
        inputs = (filled(x, nodes), picked, target, filled(owner, nodes, count))
        return Padded(inputs, filled(batch.label, count + 1), ones(count, count + 1), batch.count, {})

    def forward(self, params: Params, batch: Padded) -> jax.Array:
        x, picked, target, owner = batch.inputs
        both = jnp.concatenate((self.propagate(params, x, picked, target), x), 1)
        gate = jax.nn.sigmoid(both @ params["gate.weight"] + params["gate.bias"])
        value = jnp.tanh(both @ params["value.weight"] + params["value.bias"])
        molecules = jax.ops.segment_sum(gate * value, owner, len(batch.label))
        return jnp.tanh(molecules) @ params["out.weight"] + params["out.bias"]
