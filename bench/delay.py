"""Delay: how large a rate each remedy allows on a quadratic, by the delay of gradients. Computed, not trained.

    python -m bench.delay --picture docs/pictures/delay.png

The loss is ``1/2 w^2``; the gradient of update t is ``(1 + b) w_forward - b w_backward``, with the weights of ``lag``
updates ago in the forward (`tests/update/remedies/quadratic.py` trains the same through the library, and agrees). Every
remedy makes this a linear recurrence; a rate is stable if its spectral radius is below 1. ``b`` is how strongly a
backward reads weights itself; with the forward's weights in the backward it does not matter.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ampnet.update.remedies.mean import KEPT

Vector = NDArray[np.float64]
Step = Callable[[Vector], Vector]
DISCREPANCY = 2.0
LAGS = (1, 2, 3, 4, 6, 8, 12, 16)


def current(rate: float, lag: int) -> tuple[Step, int]:
    """Nothing is done: the backward uses the newest weights."""

    def step(w: Vector) -> Vector:
        g = (1 + DISCREPANCY) * w[lag] - DISCREPANCY * w[0]
        return np.concatenate([[w[0] - rate * g], w[:-1]])

    return step, lag + 1


def stash(rate: float, lag: int) -> tuple[Step, int]:
    """The backward uses the weights of its forward."""
    return lambda w: np.concatenate([[w[0] - rate * w[lag]], w[:-1]]), lag + 1


def estimate(rate: float, lag: int) -> tuple[Step, int]:
    """The backward uses an estimate of the weights of its forward."""
    kept = KEPT ** (1 / lag)

    def step(z: Vector) -> Vector:
        w, mean = z[:-1], z[-1]
        new = w[0] - rate * ((1 + DISCREPANCY) * w[lag] - DISCREPANCY * (w[0] - lag * mean))
        return np.concatenate([[new], w[:-1], [kept * mean + (1 - kept) * (new - w[0])]])

    return step, lag + 2


def predict(rate: float, lag: int) -> tuple[Step, int]:
    """The forward uses the weights expected at its backward."""
    kept = KEPT ** (1 / lag)

    def step(z: Vector) -> Vector:
        w, means = z[: lag + 1], z[lag + 1 :]
        forward = w[lag] + lag * means[lag]
        new = w[0] - rate * ((1 + DISCREPANCY) * forward - DISCREPANCY * w[0])
        return np.concatenate([[new], w[:-1], [kept * means[0] + (1 - kept) * (new - w[0])], means[:-1]])

    return step, 2 * lag + 2


def inverse(rate: float, lag: int) -> tuple[Step, int]:
    """Stashed weights, and the rate over the lag: also what an annealed rate begins with."""
    return stash(rate / max(lag, 1), lag)


def nesterov(rate: float, lag: int, momentum: float = 0.95) -> tuple[Step, int]:
    """Stashed weights and AsyncNesterov."""

    def step(z: Vector) -> Vector:
        w, v = z[:-1], z[-1]
        short = -rate * (1 - momentum) * w[lag]
        v = momentum * v + short
        return np.concatenate([[w[0] + short + momentum * v], w[:-1], [v]])

    return step, lag + 2


REMEDIES: dict[str, Callable[[float, int], tuple[Step, int]]] = {
    "rate over lag, stash": inverse,
    "Nesterov, stash": nesterov,
    "stash": stash,
    "predict": predict,
    "estimate": estimate,
    "current": current,
}


def radius(step: Step, size: int) -> float:
    """Returns the spectral radius of a linear map of ``size`` numbers."""
    matrix = np.stack([step(column) for column in np.eye(size)], axis=1)
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def largest_rate(remedy: str, lag: int, rates: Sequence[float] | Vector | None = None) -> float:
    """Returns the largest stable rate, of a fine grid up to 4; 0 if none is."""
    grid = np.geomspace(0.003, 4, 250) if rates is None else rates
    stable = [rate for rate in grid if radius(*REMEDIES[remedy](float(rate), lag)) < 1]
    return float(max(stable, default=0.0))


def paint(path: Path) -> None:
    """Draw the largest stable rate of each remedy against the lag."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    colours = mpl.colormaps["tab10"].colors  # type: ignore[attr-defined]
    ends = []
    for colour, name in zip(colours, REMEDIES, strict=False):
        rates = [largest_rate(name, lag) / 2 for lag in LAGS]
        axes.plot(LAGS, rates, "o-", color=colour, markersize=3.5, linewidth=1.4)
        ends.append([np.log(rates[-1]), name, colour])
    ends.sort(key=lambda end: end[0])
    for below, above in itertools.pairwise(ends):  # names that would lie on each other move apart
        above[0] = max(above[0], below[0] + 0.22)
    for height, name, colour in ends:
        axes.annotate(name, (LAGS[-1], np.exp(height)), (6, 0), textcoords="offset points", color=colour, va="center")
    axes.set(xscale="log", yscale="log", xlabel="staleness of gradients, in updates")
    axes.set_ylabel("largest stable rate / that without delay")
    axes.set_xticks(LAGS, [str(lag) for lag in LAGS])
    axes.minorticks_off()
    axes.set_yticks([0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0.02", "0.05", "0.1", "0.2", "0.5", "1"])
    axes.set_xlim(0.93, 34)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rates and draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.delay", description="Rates that remedies allow, by delay.")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it to FILE (default: only print)")
    args = parser.parse_args(argv)
    print(f"{'largest stable rate, lag':24}" + "".join(f"{lag:8}" for lag in LAGS))
    for name in REMEDIES:
        print(f"{name:24}" + "".join(f"{largest_rate(name, lag):8.3f}" for lag in LAGS))
    if args.picture is not None:
        paint(args.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
