"""Cores: every stage has a set of cores to itself, the same for all contenders.

Hardware threads of one core stay together. A set has room for threads beside the one that computes: gloo has some.
"""

from __future__ import annotations

import os
from pathlib import Path


def sets_for(stages: int) -> list[set[int]]:
    """Returns the processors of each stage. On a machine with fewer cores than stages, stages share them."""
    cores: dict[tuple[str, str], list[int]] = {}
    for number in sorted(os.sched_getaffinity(0)):
        cores.setdefault(_place(number), []).append(number)
    some = list(cores.values())
    each = len(some) // stages
    if not each:
        return [set(some[i % len(some)]) for i in range(stages)]
    return [{number for core in some[i * each : (i + 1) * each] for number in core} for i in range(stages)]


def _place(processor: int) -> tuple[str, str]:
    """Returns the package and the core that a processor is a hardware thread of."""
    topology = Path(f"/sys/devices/system/cpu/cpu{processor}/topology")
    try:
        return (topology / "physical_package_id").read_text().strip(), (topology / "core_id").read_text().strip()
    except OSError:
        return "", str(processor)
