"""The compiled training step of a peer in JAX: gradients, optimizer and the running loss in one program.

Weights and what the optimizer remembers are donated to it, so that they are updated in place.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.peers.jax_optimizer import Optimizer, adagrad_rows
from bench.peers.jax_peer import JaxPeer, Padded, Params

Memory = tuple[Any, dict[str, jax.Array]]
"""What the optimizer of the weights remembers, and the sums of squares of tables."""


class Step:
    """The compiled functions of a peer. ``rates``: by the name of a table, the learning rate of its Adagrad."""

    def __init__(self, peer: JaxPeer, optimizer: Optimizer, rates: dict[str, float]) -> None:
        self.peer, self.optimizer, self.rates = peer, optimizer, rates
        self.train = jax.jit(self._train, donate_argnums=(0, 1, 2))
        self.valid = jax.jit(self._valid, donate_argnums=(1,))
        self.gradients = jax.jit(lambda params, batch: self._gradients(params, batch)[1:])

    def memory(self, params: Params) -> Memory:
        """What is remembered before the first update."""
        weights = {name: w for name, w in params.items() if name not in self.rates}
        return self.optimizer.start(weights), {name: jnp.zeros_like(params[name]) for name in self.rates}

    def _train(
        self, params: Params, memory: Memory, total: jax.Array, batch: Padded
    ) -> tuple[Params, Memory, jax.Array]:
        loss, dense, rows = self._gradients(params, batch)
        remembered, sums = memory
        weights = {name: w for name, w in params.items() if name not in self.rates}
        moved, remembered = self.optimizer.step(weights, dense, remembered)
        out: Params = dict(moved)
        for name, rate in self.rates.items():
            out[name], sums[name] = adagrad_rows(params[name], sums[name], batch.touched[name], rows[name], rate)
        return out, (remembered, sums), total + loss * batch.count

    def _gradients(self, params: Params, batch: Padded) -> tuple[jax.Array, Params, Params]:
        """Mean loss; gradients of all weights but tables, and of the rows of tables that the batch has."""
        weights = {name: w for name, w in params.items() if name not in self.rates}
        rows = {name: params[name].at[batch.touched[name]].get(mode="fill", fill_value=0) for name in self.rates}

        def mean(weights: Params, rows: Params) -> jax.Array:
            prediction = self.peer.forward(weights | rows, batch)
            return self.peer.judge(prediction, batch.label, batch.weight) / batch.count

        loss, (dense, of_rows) = jax.value_and_grad(mean, (0, 1))(weights, rows)
        return loss, dense, of_rows

    def _valid(self, params: Params, told: tuple[jax.Array, jax.Array], batch: Padded) -> tuple[jax.Array, jax.Array]:
        """The sums of losses and metrics so far, with this batch's."""
        rows = {name: params[name].at[batch.touched[name]].get(mode="fill", fill_value=0) for name in self.rates}
        prediction = self.peer.forward(params | rows, batch)
        loss = self.peer.judge(prediction, batch.label, batch.weight)
        return told[0] + loss, told[1] + self.peer.metric(prediction, batch.label, batch.weight)
