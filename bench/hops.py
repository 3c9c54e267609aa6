"""Hops: how long rows of a crossing take from one process to another, and what they cost each, by `runtime.transport`.

    sender      rows made ──send──┐                           [ made, in an ordinary tensor, fresh in the caches ]
                                  └ ring, slab ┐
    receiver                                   └──receive──> a tensor ──copy──> arena
                      |<──────── readable ───────────────────>|
                      |<──────── in an arena ──────────────────────────────────>|

Two processes, each on a core of its own, send each other slices in turn. The sender writes the time (a clock that both
share) into the digest. "sender" and "receiver" are the times spent in `send` and in the `receive` that finds the slice:
work that these two cannot use for anything else. Medians of each round; "best" is the quietest round's, for other
programs on the machine only ever make it longer.

ring only   without a slab: rows of any size are copied into the ring and out of it
16 kept     the receiver keeps 16 slices, as where rows wait for their operation, or become an arena themselves
asleep      the receiver does not look out for a while before it sleeps: each hop holds a wake-up by the system
"""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

import numpy as np
import torch

from ampnet.runtime.transport import Endpoint, Mesh
from ampnet.runtime.transport.endpoint import SPIN
from ampnet.runtime.transport.mesh import SLAB
from ampnet.wave.slice import Slice

SIZES = {"1 kB": 1_000, "10 kB": 10_000, "100 kB": 100_000, "230 kB": 230_000, "1 MB": 1_000_000}
WIDTH = 25
KEPT = 16
BOUNDS = {"1 kB": 25.0, "100 kB": 60.0, "100 kB, 16 kept": 60.0}
"""Microseconds until the rows are readable."""
COLUMNS = ("readable", "in an arena", "sender", "receiver")


def play(endpoint: Endpoint, size: int, until: float, kept: int) -> list[list[int]]:
    """Send and receive in turn until it is time. Nanoseconds of each turn, a list for each of `COLUMNS`."""
    clock, other = time.perf_counter_ns, 1 - endpoint.party
    rows = torch.randn(size // (4 * WIDTH), WIDTH)
    arena, keep = torch.zeros_like(rows), list[Slice]()
    times: list[list[int]] = [[] for _ in COLUMNS]
    first, last = endpoint.party == 0, False
    while not last:
        if first:
            rows.add_(1.0)
            last = time.perf_counter() > until
            began = clock()
            endpoint.send(other, Slice(0, 0, 0, int(last), began, rows))
            times[2].append(clock() - began)
        first = True
        looked = clock()
        while not (frames := endpoint.receive()):
            if not endpoint.wait(5.0):
                raise RuntimeError("the other process does not answer")
            looked = clock()
        found = clock()
        _, frame = frames.pop()
        assert isinstance(frame, Slice)
        assert frame.rows is not None
        arena.copy_(frame.rows)
        times[0].append(found - frame.digest)
        times[1].append(clock() - frame.digest)
        times[3].append(found - looked)
        last = last or bool(frame.direction)
        keep.append(frame)
        if len(keep) >= kept:
            keep.clear()
        del frame
    if endpoint.party == 1:
        endpoint.send(other, Slice(0, 0, 0, 1, clock(), rows))
    return times


def measure(size: int, seconds: float, *, spin: float = SPIN, slab: int = SLAB, kept: int = 1) -> list[float]:
    """Median microseconds, for each of `COLUMNS`."""
    cores = sorted(os.sched_getaffinity(0))
    with Mesh(2, slab=slab) as mesh:
        until = time.perf_counter() + seconds
        child = os.fork()
        if child == 0:
            try:
                os.sched_setaffinity(0, cores[-1:])
                play(mesh.endpoint(1, spin=spin), size, until + 60.0, kept)
            finally:
                os._exit(0)
        try:
            os.sched_setaffinity(0, cores[:1])
            times = play(mesh.endpoint(0, spin=spin), size, until, kept)
        finally:
            os.sched_setaffinity(0, cores)
            os.waitpid(child, 0)
    return [statistics.median(some[len(some) // 10 :]) / 1e3 for some in times]


def run(seconds: float, repeats: int) -> tuple[dict[str, Any], list[tuple[str, bool]]]:
    ways: dict[str, tuple[int, dict[str, Any]]] = {name: (size, {}) for name, size in SIZES.items()}
    for name, size in SIZES.items():
        ways[f"{name}, asleep"] = size, {"spin": 0.0}
        if size >= 100_000:
            ways[f"{name}, ring only"] = size, {"slab": 0}
            ways[f"{name}, {KEPT} kept"] = size, {"kept": KEPT}
            ways[f"{name}, {KEPT} kept, ring only"] = size, {"kept": KEPT, "slab": 0}
    rounds = 10 * repeats
    found: dict[str, list[list[float]]] = {label: [] for label in ways}
    for _ in range(rounds):
        for label, (size, how) in ways.items():
            found[label].append(measure(size, seconds / rounds / 2, **how))
    out: dict[str, Any] = {}
    head = "".join(f" {column:>17}" for column in COLUMNS)
    print(f"\n{'one hop, microseconds: best, median':36}{head}")
    for label, values in found.items():
        columns = list(zip(*values, strict=True))
        out[label] = {
            c: {"best": min(v), "median": statistics.median(v)} for c, v in zip(COLUMNS, columns, strict=True)
        }
        cells = "".join(f"  {cell['best']:7.1f} {cell['median']:8.1f}" for cell in out[label].values())
        print(f"{label:36}{cells}")
    for column in COLUMNS:
        best = np.array([out[name][column]["best"] for name in SIZES])
        each, fixed = np.polyfit(np.array(list(SIZES.values())), best, 1, w=1 / best)
        out[f"{column}, fitted"] = {"fixed": fixed, "per MB": 1e6 * each}
        print(f"{column:>20}: about {fixed:.1f} us, and {1e6 * each:.1f} us for each MB ({1e-3 / each:,.1f} GB/s)")
    readable = {name: out[name]["readable"]["best"] for name in BOUNDS}
    checks = [
        (f"{name} readable under {BOUNDS[name]:.0f} us: {us:.1f} us", us < BOUNDS[name])
        for name, us in readable.items()
    ]
    return out, checks


if __name__ == "__main__":
    torch.set_num_threads(1)
    for text, kept in run(4.0, 2)[1]:
        print(f"  {'ok  ' if kept else 'MISS'}  {text}")
