"""Hops: how long a batch takes from one process to another, by `ampnet.runtime.transport`.

Two processes play ping-pong with a batch of ten messages; half of the time there and back is a hop. It holds all that a
batch goes through: written to the ring, the other process finding it (or being woken), put together there. The median
is that of the quietest of several rounds: other programs on the machine only ever make it longer.

"asleep": the receiver does not look out for a while before it sleeps (``spin=0``), so each hop holds a wake-up by the
operating system.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from ampnet.message import Messages, offsets_of
from ampnet.runtime.transport import Batch, Endpoint, Mesh
from ampnet.state import States

SIZES = {"1 kB": 1_000, "10 kB": 10_000, "100 kB": 100_000, "1 MB": 1_000_000}
MESSAGES = 10
WIDTH = 25
BOUNDS = {"1 kB": 25.0, "100 kB": 60.0}
"""Microseconds."""


def batch(size: int) -> Batch:
    """Ten messages of a state of two fields, with ``size`` bytes of payload."""
    states = States.of(instance=np.arange(MESSAGES), t=3)
    each = size // (4 * WIDTH * MESSAGES)
    payload = torch.randn(each * MESSAGES, WIDTH)
    offsets = None if each == 1 else offsets_of(np.full(MESSAGES, each))
    return Batch(1, 0, Messages(payload, states, offsets))


def next_batch(endpoint: Endpoint) -> Batch | None:
    """The one batch that comes next; None where a note came, or nothing for a while."""
    while not (frames := endpoint.receive()):
        if not endpoint.wait(5.0):
            return None
    frame = frames[0][1]
    return frame if isinstance(frame, Batch) else None


def echo(endpoint: Endpoint) -> None:
    while (frame := next_batch(endpoint)) is not None and len(frame.messages):
        endpoint.send(0, frame)


def measure(size: int, seconds: float, spin: float | None) -> float:
    """Median microseconds of a hop."""
    with Mesh(2) as mesh:
        child = os.fork()
        if child == 0:
            try:
                echo(mesh.endpoint(1, spin=spin))
            finally:
                os._exit(0)
        endpoint, frame = mesh.endpoint(0, spin=spin), batch(size)
        empty = Batch(1, 0, frame.messages.slice(0, 0))
        times: list[float] = []
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            endpoint.send(1, frame)
            if next_batch(endpoint) is None:
                raise RuntimeError("the other process does not answer")
            times.append((time.perf_counter() - began) / 2 * 1e6)
        endpoint.send(1, empty)
        os.waitpid(child, 0)
    return statistics.median(times[len(times) // 10 :])


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    rounds = 2 * repeats
    out: dict[str, Any] = {}
    print(f"\n{'one hop between two processes, microseconds':46} {'best':>8} {'median':>8} {'MB/s':>8}")
    for name, size in SIZES.items():
        for label, spin in ((name, None), (f"{name}, asleep", 0.0)):
            values = [measure(size, seconds / rounds, spin) for _ in range(rounds)]
            out[label] = {"best": min(values), "median": statistics.median(values)}
            best, middle = out[label].values()
            print(f"{label:46} {best:8.1f} {middle:8.1f} {size / best:8,.0f}")
    checks = [
        (f"a hop of {name} under {most:.0f} us: {out[name]['best']:.1f} us", out[name]["best"] < most)
        for name, most in BOUNDS.items()
    ]
    return out, checks


if __name__ == "__main__":
    torch.set_num_threads(1)
    for text, kept in run(4.0, 2)[1]:
        print(f"  {'ok  ' if kept else 'MISS'}  {text}")
