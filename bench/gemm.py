"""The machine's peak: what the fastest of a few float32 matrix products gets, with as many threads as torch has."""

from __future__ import annotations

import time

import torch

SHAPES = ((2048, 2048, 2048), (784, 100, 784), (100, 784, 784), (400, 100, 300))
"""A large one, and some of the workloads'."""
SECONDS = 0.3


def peak(device: str = "cpu") -> float:
    """GFLOP/s."""
    return max(rate(*shape, device) for shape in SHAPES)


@torch.no_grad()
def rate(m: int, k: int, n: int, device: str = "cpu", seconds: float = SECONDS) -> float:
    """GFLOP/s of ``[m, k] x [k, n]``, the best of three stretches."""
    a, b, out = (torch.randn(*size, device=device) for size in ((m, k), (k, n), (m, n)))
    best = 0.0
    for _ in range(3):
        count, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds / 3:
            for _ in range(max(1, 10**8 // (m * k * n))):
                torch.mm(a, b, out=out)
                count += 1
            if device != "cpu":
                torch.cuda.synchronize()
        best = max(best, 2e-9 * m * k * n * count / (time.perf_counter() - began))
    return best
