"""The machine's peak: what the fastest of a few float32 matrix products gets, with as many threads as torch has.

On a CPU each shape is tried with `torch.mm` (MKL) and with the linear layer of oneDNN, weights packed beforehand: MKL
does not use all vector units of every processor, and XLA's products are of the other kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

SHAPES = ((2048, 2048, 2048), (784, 100, 784), (100, 784, 784), (400, 100, 300))
"""A large one, and some of the workloads'."""
SECONDS = 0.3


def peak(device: str = "cpu") -> float:
    """GFLOP/s."""
    return max(rate(*shape, device) for shape in SHAPES)


@torch.no_grad()
def rate(m: int, k: int, n: int, device: str = "cpu", seconds: float = SECONDS) -> float:
    """GFLOP/s of ``[m, k] x [k, n]``, the best of three stretches of each way to compute it."""
    a, b, out = (torch.randn(*size, device=device) for size in ((m, k), (k, n), (m, n)))
    ways: list[Callable[[], object]] = [lambda: torch.mm(a, b, out=out)]
    if device == "cpu" and torch.backends.mkldnn.is_available():
        ways.append(packed(a, n))
    return max(2e-9 * m * k * n * _speed(way, m * k * n, device, seconds / len(ways)) for way in ways)


def packed(a: torch.Tensor, n: int) -> Callable[[], object]:
    """oneDNN's product of ``a`` and a matrix that is packed beforehand, as compiled programs call it."""
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.randn(n, a.shape[1]), len(a))
    return lambda: torch.ops.mkldnn._linear_pointwise(a, weight, None, "none", [], "")


def _speed(way: Callable[[], object], size: int, device: str, seconds: float) -> float:
    """Calls a second, the best of three stretches."""
    best = 0.0
    for _ in range(3):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds / 3:
            for _ in range(max(1, 10**8 // size)):
                way()
                count += 1
            if device != "cpu":
                torch.cuda.synchronize()
        best = max(best, count / (time.perf_counter() - began))
    return best
