"""A contender in JAX. Only the process of such a row imports this file, once it is on its cores.

Steps are dispatched one after the other and may still be under way when `train` has been given its last batch; the
running loss, which every step adds to, is waited for before anything returns.
"""

from __future__ import annotations

from collections.abc import Iterable

import jax
import jax.numpy as jnp

from bench.contender import Contender, Part
from bench.peers.jax_optimizer import optimizer_of
from bench.peers.jax_peer import JaxPeer, Ready
from bench.peers.jax_step import Step
from bench.workload import Data, Workload


class JaxRow(Contender):
    """A peer in JAX on a workload."""

    def __init__(self, workload: Workload, data: Data, kind: type[JaxPeer]) -> None:
        self.peer = kind(workload.seeded(data))
        self._train, self._valid = (self.peer.collate(part) for part in (data.train, data.valid))
        rates = {f"{name}.weight": make.keywords["lr"] for name, make in workload.optimizers.items()}  # type: ignore[attr-defined]
        self.step = Step(self.peer, optimizer_of(workload.optimizer), rates)
        self.params = self.peer.params
        self.memory = self.step.memory(self.params)
        self._steps = 0

    def train(self, batches: Iterable[int]) -> Part:
        total, rows, records = jnp.zeros(()), 0, 0
        for place in batches:
            one = self._train[place]
            self.params, self.memory, total = self.step.train(self.params, self.memory, total, one.batch)
            rows, records = rows + one.rows, records + one.records
            self._steps += 1
        jax.block_until_ready((total, self.params))
        return Part(records, float(total) / max(rows, 1), float("nan"))

    def valid(self, batches: Iterable[int]) -> Part:
        told, rows, records = (jnp.zeros(()), jnp.zeros(())), 0, 0
        for place in batches:
            one = self._valid[place]
            told = self.step.valid(self.params, told, one.batch)
            rows, records = rows + one.rows, records + one.records
        loss, right = (float(x) for x in told)
        return Part(records, loss / max(rows, 1), right / max(rows, 1))

    def updates(self) -> int:
        return self._steps

    def warm(self) -> None:
        """Meet a batch of each shape, so that nothing is compiled while it is timed."""
        for part, go in ((self._train, self.train), (self._valid, self.valid)):
            go(sorted({_shape(one): place for place, one in enumerate(part)}.values()))


def _shape(one: Ready) -> tuple[tuple[int, ...], ...]:
    return tuple(leaf.shape for leaf in jax.tree.leaves(one.batch))
