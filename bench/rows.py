"""Rows: who takes part in the comparison of a workload, and the command line of each.

ours                       one core, all in one process
ours 2 replicas            copies of the whole model with shared weights, on two workers
torch eager 1 thread       a peer, with one thread and with as many as there are cores
external torch_manual ...  a hand-written program, see `bench.external`
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.workload import Ours, Which, Workload

CHECKOUT = Path(__file__).parents[1]
OURS, GEMM = "ours", "gemm"


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

    def environment(self) -> dict[str, str]:
        """Threads are set before the libraries start their pools."""
        count = str(self.threads)
        return {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}


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
        counts = sorted({n for n in (2, cores) if 1 < n <= cores})
        rows[1:1] = [_ours(workload, f"{OURS} {n} replicas", settings) for n in counts]
        rows = [row for row in rows if row.cores <= cores]
        threads = sorted({1, cores, *(n for n in (2, 4, 8) if n < cores)})
    for name, kind in workload.peers.items():
        missing = kind.needs is not None and importlib.util.find_spec(kind.needs) is None
        skipped = f"{kind.needs} is not installed" if missing else None
        rows += [_peer(workload, name, n, settings, skipped) for n in threads]
    return rows


def _ours(workload: Workload, name: str, settings: Settings) -> Row:
    return Row(name, "ours", ours_of(workload, name).workers, turn(workload.name, name, settings), 1)


def _peer(workload: Workload, name: str, threads: int, settings: Settings, skipped: str | None) -> Row:
    shown = f"{name} {threads} thread{'s' * (threads > 1)}" if settings.device == "cpu" else name
    return Row(shown, "peer", threads, turn(workload.name, name, settings, threads), threads, skipped)


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
