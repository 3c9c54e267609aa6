"""Optimizers in JAX with the constants of torch: SGD, Adam, Adagrad, as functions inside of the compiled step.

A workload names its optimizer as torch's, ``partial(torch.optim.Adam, lr=...)``; `optimizer_of` makes the counterpart.
(optax has the same three. Its Adagrad starts from other constants, and only JAX is needed this way.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

Tree = Any
"""Arrays by name."""
BETA1, BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-8
ADAGRAD_EPSILON = 1e-10


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What is remembered at first, and a step: (weights, gradients, remembered) to (weights, remembered)."""

    start: Callable[[Tree], Tree]
    step: Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]


def optimizer_of(make: Any) -> Optimizer:
    """The counterpart of a partial of torch's with its learning rate, and all else as it is by default."""
    assert isinstance(make, partial)
    if not make.keywords.keys() <= {"lr", "fused"} or make.func not in KINDS:
        raise ValueError(f"{make} has no counterpart here; add it to bench/peers/jax_optimizer.py")
    return KINDS[make.func](make.keywords["lr"])


def sgd(rate: float) -> Optimizer:
    return Optimizer(
        lambda weights: (),
        lambda weights, gradients, memory: (jax.tree.map(lambda w, g: w - rate * g, weights, gradients), memory),
    )


def adam(rate: float) -> Optimizer:
    def start(weights: Tree) -> Tree:
        return jnp.zeros(()), jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights)

    def step(weights: Tree, gradients: Tree, memory: Tree) -> tuple[Tree, Tree]:
        count, means, squares = memory
        count = count + 1
        means = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, means, gradients)
        squares = jax.tree.map(lambda s, g: BETA2 * s + (1 - BETA2) * g * g, squares, gradients)
        first, second = 1 - BETA1**count, jnp.sqrt(1 - BETA2**count)

        def move(w: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
            return w - rate / first * m / (jnp.sqrt(s) / second + ADAM_EPSILON)

        return jax.tree.map(move, weights, means, squares), (count, means, squares)

    return Optimizer(start, step)


def adagrad(rate: float) -> Optimizer:
    def step(weights: Tree, gradients: Tree, sums: Tree) -> tuple[Tree, Tree]:
        sums = jax.tree.map(lambda s, g: s + g * g, sums, gradients)
        move = jax.tree.map(lambda w, g, s: w - rate * g / (jnp.sqrt(s) + ADAGRAD_EPSILON), weights, gradients, sums)
        return move, sums

    return Optimizer(lambda weights: jax.tree.map(jnp.zeros_like, weights), step)


KINDS: dict[Any, Callable[[float], Optimizer]] = {
    torch.optim.SGD: sgd,
    torch.optim.Adam: adam,
    torch.optim.Adagrad: adagrad,
}
"""By the class in torch."""


def adagrad_rows(
    table: jax.Array, sums: jax.Array, numbers: jax.Array, gradient: jax.Array, rate: float
) -> tuple[jax.Array, jax.Array]:
    """Adagrad for some rows of a table, each named once, in place; numbers beyond the table are dropped."""
    now = sums.at[numbers].get(mode="fill", fill_value=1) + gradient * gradient
    step = -rate * gradient / (jnp.sqrt(now) + ADAGRAD_EPSILON)
    return table.at[numbers].add(step, mode="drop"), sums.at[numbers].set(now, mode="drop")
