"""Rows: who takes part in the comparison of a workload, and the command line of each.

ours                       one core, all in one process
ours 2 replicas            copies of the whole model with shared weights, on two workers
torch eager 1 thread       a peer, with one thread and with as many as there are cores
jax 1 thread               a peer in JAX, on one core and on as many as there are
external torch_manual ...  a hand-written program, see `bench.external`
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.peers.foreign import missing
from bench.workload import Ours, Which, Workload

CHECKOUT = Path(__file__).parents[1]
OURS, GEMM = "ours", "gemm"
OTHERS = {"DGLBACKEND": "pytorch", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
"""Of which JAX needs one on a GPU."""
MANY = (2, 4, 8)
"""Replicas of ours and threads of peers, besides one and as many as there are cores."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a turn is taken."""

    seconds: float = 4.0
    """Of timed training."""
    warmup: float = 1.0
    """Of training before it."""
    valid_seconds: float = 1.0
    device: str = "cpu"
    data: Which = "auto"
    data_dir: str | None = None
    most: int | None = None
    """Batches of data at most."""
    to_target: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A contender of a workload."""

    name: str
    kind: str
    """"ours", "peer", "external"."""
    cores: int
    """How many it may keep busy, by threads or by processes."""
    command: list[str]
    threads: int
    """Of each process."""
    skipped: str | None = None
    """Why it cannot take part."""
    platform: str = "cpu"
    """Where JAX computes."""

    def environment(self) -> dict[str, str]:
        """Threads are set before the libraries start their pools."""
        count = str(self.threads)
        pools = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count)
        xla = f"--xla_cpu_multi_thread_eigen={'true' if self.threads > 1 else 'false'}"
        return {**os.environ, **pools, "JAX_PLATFORMS": self.platform, "XLA_FLAGS": xla, **OTHERS}


def ours_of(workload: Workload, row: str) -> Ours:
    """What a row of ours is; that of replicas follows from the first."""
    if row in workload.ours:
        return workload.ours[row]
    return workload.ours[OURS].copied(int(row.split()[1]), workload.each)


def rows_of(workload: Workload, settings: Settings, cores: int) -> list[Row]:
    """All rows that are written here."""
    rows = [_ours(workload, name, settings) for name in workload.ours]
    if settings.device != "cpu":
        rows = [row for row in rows if row.cores == 1]
        threads = [1]
    else:
        counts = sorted({n for n in (*MANY, cores) if 1 < n <= cores})
        rows[1:1] = [_ours(workload, f"{OURS} {n} replicas", settings) for n in counts]
        rows = [row for row in rows if row.cores <= cores]
        threads = sorted({1, cores, *(n for n in MANY if n < cores)})
    for name, kind in workload.peers.items():
        skipped = None if kind.needs is None else missing((kind.needs,))
        rows += [_peer(workload, name, n, settings, skipped) for n in threads]
    for name, foreign in () if settings.to_target else workload.foreign.items():
        skipped = missing(foreign.needs) or (None if settings.device == "cpu" else _no_plugin())
        rows += [_peer(workload, name, n, settings, skipped) for n in threads]
    return rows


def _no_plugin() -> str | None:
    """Why JAX cannot use the GPU; None: it can."""
    return None if any(missing((plugin,)) is None for plugin in PLUGINS) else f"{PLUGINS[0]} is not installed"


def _ours(workload: Workload, name: str, settings: Settings) -> Row:
    return Row(name, "ours", ours_of(workload, name).workers, turn(workload.name, name, settings), 1)


def _peer(workload: Workload, name: str, threads: int, settings: Settings, skipped: str | None) -> Row:
    shown = f"{name} {threads} thread{'s' * (threads > 1)}" if settings.device == "cpu" else name
    command = turn(workload.name, name, settings, threads)
    return Row(shown, "peer", threads, command, threads, skipped, settings.device)


def gemm_row(threads: int, settings: Settings) -> Row:
    """Not a contender: the machine's peak, which is measured in the same rounds."""
    return Row(f"{GEMM} {threads}", GEMM, threads, turn("", GEMM, settings, threads), threads)


def turn(workload: str, row: str, settings: Settings, threads: int = 1) -> list[str]:
    """The command that takes a turn."""
    given: Mapping[str, object] = {
        "workload": workload,
        "row": row,
        "threads": threads,
        "settings": asdict(settings),
    }
    return [sys.executable, "-m", "bench.turn", json.dumps(given)]
