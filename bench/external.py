"""External contenders: hand-written programs of the same workloads, in a folder of their own.

    python FOLDER/qm9_ggsnn.py --peer torch_manual --threads 1 --seconds 4 --warmup 1 --valid-seconds 1 --batch 20
    {"train_inst_per_s": 1690.0, "valid_inst_per_s": 5144.0, "loss_first": 1.1, "loss_last": 0.4, "data": "real", ...}

The last line that is a JSON object counts. Peers that are listed here are taken along where the folder has the program
of the workload: the ceiling of what torch kernels give without autograd, in one process and in two that share weights.
Their data is their own, of the same shape.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from bench.rows import CHECKOUT, Row, Settings
from bench.workload import Workload

USUAL = CHECKOUT.parent / "shared" / "peers"
"""Looked at where no folder is given."""
MANUAL = "torch_manual"
PROCESSES = 2
PEERS = {"babi15_ggsnn.py": "torch_sparse"}
"""Programs that have no manual peer, and the one that they have in two processes."""


def external_rows(workload: Workload, folder: Path | None, settings: Settings, cores: int) -> Iterable[Row]:
    """The rows of the workload's program, if the folder has it."""
    if folder is None or workload.external is None or settings.device != "cpu" or settings.to_target:
        return
    program = folder / workload.external
    if not program.is_file():
        return
    peer = PEERS.get(workload.external, MANUAL)
    if peer == MANUAL:
        for threads in sorted({1, cores}):
            name = f"{peer} {threads} thread{'s' * (threads > 1)}"
            yield Row(name, "external", threads, _command(program, peer, workload, settings, threads), threads)
    if cores >= PROCESSES:
        command = [*_command(program, peer, workload, settings, 1), "--mode", f"hogwild{PROCESSES}"]
        yield Row(f"{peer} hogwild{PROCESSES}", "external", PROCESSES, command, 1)


def _command(program: Path, peer: str, workload: Workload, settings: Settings, threads: int) -> list[str]:
    options = {
        "peer": peer,
        "batch": workload.batch,
        "threads": threads,
        "seconds": settings.seconds,
        "warmup": settings.warmup,
        "valid-seconds": settings.valid_seconds,
        "data": {"generated": "synthetic"}.get(settings.data, settings.data),
    }
    pairs = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, str(program.resolve()), *pairs]


def read(found: dict[str, object]) -> dict[str, object]:
    """What such a program says, in our words."""
    names = {"train_inst_per_s": "train", "valid_inst_per_s": "valid", "loss_first": "loss_first"}
    names |= {"loss_last": "loss_last"}
    kind = {"synthetic": "generated"}
    return {ours: found.get(theirs) for theirs, ours in names.items()} | {
        "data": kind.get(str(found.get("data")), found.get("data"))
    }
