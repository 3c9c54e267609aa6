"""Parts: what single parts of the runtime cost, and what worker processes and replicas give against one process.

Results go to a file each. Everything is measured in this process, and its bounds are told with what was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from ampnet.cli.report import write_json
from bench import hops, invocations, processes, replicas
from bench.machine import describe

PARTS: dict[str, dict[str, Any]] = {
    "inline": {"invocations": invocations},
    "processes": {"hops": hops, "processes": processes},
    "replicas": {"replicas": replicas},
}
"""By file: what is measured."""


def run(folder: Path, seconds: float, repeats: int, patterns: Sequence[str] | None = None) -> bool:
    """Measure all, or those whose file is asked for; whether all bounds were kept."""
    torch.set_num_threads(1)
    checks: list[tuple[str, bool]] = []
    for file, inside in PARTS.items():
        if patterns and not any(fnmatchcase(file, pattern) for pattern in patterns):
            continue
        out: dict[str, Any] = {"machine": describe()}
        for name, part in inside.items():
            out[name], found = part.run(seconds, repeats)
            checks += found
        write_json(folder / f"{file}.json", out)
        print(f"\nwritten to {file}.json")
    for text, kept in checks:
        print(f"  {'ok  ' if kept else 'MISS'}  {text}")
    return all(kept for _, kept in checks)
