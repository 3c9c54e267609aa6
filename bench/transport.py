"""Transport: round trips of a slice between two processes of one machine, by carrier (`python -m bench.transport`).

    mesh    shared memory (`runtime.transport.mesh`): what workers of one machine use
    tcp     pyzmq over loopback, encrypted, acknowledged (`runtime.transport.tcp`): what workers of several machines use
    gloo    `torch.distributed.send` and `recv` over loopback: neither encrypted nor framed. The receiver must know
            sender, shape and dtype beforehand, and waits for this sender alone

Both processes sleep while they wait. Medians of all turns but the first tenth.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

import torch

from ampnet.runtime.transport import Mesh
from ampnet.runtime.transport.keys import make_keys
from ampnet.runtime.transport.tcp import TcpEndpoint
from ampnet.wave.slice import Slice

SIZES = {"1 kB": 1_000, "50 kB": 50_000, "1 MB": 1_000_000}
PORTS = (47811, 47812)

Play = Callable[[int, int, float], list[float]]
"""Plays one party (0 or 1) with slices of so many bytes until that time; returns the seconds of each round trip."""


def _endpoint(made: Callable[[int], object], party: int, size: int, until: float) -> list[float]:
    end, rows, times = made(party), torch.randn(size // 100, 25), []
    last = False
    while not last:
        began = time.perf_counter()
        if party == 0:
            end.send(1, Slice(0, 0, 0, int(began > until), 0, rows))  # type: ignore[attr-defined]
        while not (got := end.receive()):  # type: ignore[attr-defined]
            end.wait(5.0)  # type: ignore[attr-defined]
        last = bool(got[0][1].direction)
        times.append(time.perf_counter() - began)
        if party == 1:
            end.send(0, got[0][1])  # type: ignore[attr-defined]
    deadline = time.perf_counter() + 1.0
    while not end.flush() and time.perf_counter() < deadline:  # type: ignore[attr-defined]
        end.wait(0.01)  # type: ignore[attr-defined]
    end.close()  # type: ignore[attr-defined]
    return times


def mesh() -> Play:
    made = Mesh(2)
    return lambda *how: _endpoint(lambda party: made.endpoint(party, spin=0.0), *how)


def tcp() -> Play:
    keys = make_keys(2)

    def endpoint(party: int) -> TcpEndpoint:
        end = TcpEndpoint(keys[party], port=PORTS[party])
        end.connect({1 - party: f"tcp://127.0.0.1:{PORTS[1 - party]}"})
        return end

    return lambda *how: _endpoint(endpoint, *how)


def gloo() -> Play:
    store = tempfile.mktemp()

    def play(party: int, size: int, until: float) -> list[float]:
        import torch.distributed as distributed

        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        distributed.init_process_group("gloo", f"file://{store}", world_size=2, rank=party)
        rows, times, more = torch.randn(size // 100, 25), [], True
        while more:
            began = time.perf_counter()
            if party == 0:
                rows[0, 0] = float(began <= until)
                distributed.send(rows, 1)
                distributed.recv(rows, 1)
            else:
                distributed.recv(rows, 0)
                distributed.send(rows, 0)
            more = bool(rows[0, 0] > 0)
            times.append(time.perf_counter() - began)
        distributed.destroy_process_group()
        return times

    return play


def measure(carrier: Callable[[], Play], size: int, seconds: float) -> float:
    """Returns the median round trip in microseconds."""
    play, until = carrier(), time.perf_counter() + seconds
    child = os.fork()
    if child == 0:
        try:
            play(1, size, until)
        finally:
            os._exit(0)
    ready, done = os.pipe()
    other = os.fork()  # party 0 in a process of its own, too: carriers leave threads behind
    if other == 0:
        try:
            times = play(0, size, until)
            os.write(done, f"{statistics.median(times[len(times) // 10 :]) * 1e6}".encode())
        finally:
            os._exit(0)
    os.close(done)
    with os.fdopen(ready) as text:
        found = float(text.read())
    for pid in (child, other):
        os.waitpid(pid, 0)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"{'round trip, microseconds: best of 3':40}" + "".join(f"{name:>10}" for name in SIZES))
    for carrier in (mesh, tcp, gloo):
        found = [min(measure(carrier, size, 1.0) for _ in range(3)) for size in SIZES.values()]
        print(f"{carrier.__name__:40}" + "".join(f"{us:10.0f}" for us in found), flush=True)
