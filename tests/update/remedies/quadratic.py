"""A quadratic under delay, whose behaviour is known in closed form, trained through a real `Updater`.

The loss is ``a/2 w^2``. The gradient that is applied in update t was computed from a forward ``lag`` updates earlier:

    g = (a + b) w_forward - b w_backward

With ``b = 0`` that is plain delayed gradient descent. ``b > 0`` models a backward that reads weights itself, as every
layer's does (Yang et al. 2021, section 3.2): if it reads those of its forward, g is the true gradient there.

    update   ──[1]──> forward(t) reads weights ──[2]──> kept for lag updates ──[3]──> backward reads weights ──> update
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from ampnet.update.policy import Update
from ampnet.update.updater import Updater


def train(update: Update, *, lag: int, steps: int, a: float = 1.0, b: float = 0.0) -> list[float]:
    """Returns the weight after every update, beginning with 1."""
    parameter = nn.Parameter(torch.ones(1, dtype=torch.float64))
    updater = Updater([parameter])
    flight: deque[tuple[int, float]] = deque()
    updater.live_versions = lambda: {version for version, _ in flight}
    updater.adopt(update)
    weights = [1.0]
    for _ in range(steps):
        version = updater.seen_version()
        flight.append((version, float(updater.forward_weights()[0])))  # [1]
        if len(flight) <= lag:  # [2]
            continue
        version, forward = flight.popleft()  # [3]
        updater.note_lags([(version, 1)])
        backward = float(updater.weights_of(version)[0]) if updater.looks_back else float(updater.weights[0])
        updater.adding[0].add_((a + b) * forward - b * backward)
        updater.count_messages(1)
        updater.apply()
        updater.forget_versions(updater.live_versions())
        weights.append(float(updater.weights[0]))
    return weights


def radius(step: Callable[[np.ndarray], np.ndarray], size: int) -> float:
    """Returns the spectral radius of a linear map of ``size`` numbers: how fast its iterates grow or shrink."""
    matrix = np.stack([step(column) for column in np.eye(size)], axis=1)
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def growth(weights: list[float]) -> float:
    """Returns the factor by which the weight's envelope grows per update, over the last half."""
    half = len(weights) // 2
    tail = np.abs(np.array(weights[half:])) + 1e-300
    pieces = np.array_split(tail, 8)  # the largest of each: oscillations do not matter
    peaks = np.log([piece.max() for piece in pieces])
    return float(np.exp(np.polyfit(np.arange(8) * len(tail) / 8, peaks, 1)[0]))


def bound(lag: int, a: float = 1.0) -> float:
    """Returns the largest stable rate of gradient descent with delayed gradients."""
    return float(2 / a * np.sin(np.pi / (4 * lag + 2)))
