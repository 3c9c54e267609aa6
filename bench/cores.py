"""Cores: put this process on a number of cores, those that are least busy now.

torch is told how many threads to use. XLA is not: it makes as many as the process may use cores, so a row of one
thread is a process on one core. Which one matters on a machine with other users: a process that may run anywhere, like
torch's and ours, leaves a core that somebody else takes; one that is fixed cannot.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

GLANCE = 0.2
"""Seconds of looking which cores are idle."""


def keep(count: int) -> set[int]:
    """Put this process on ``count`` cores; returns which. Must come before a library starts its threads."""
    free = os.sched_getaffinity(0)
    if count < len(free):
        os.sched_setaffinity(0, set(quietest(free)[:count]))
    return os.sched_getaffinity(0)


def quietest(cores: set[int]) -> list[int]:
    """These cores, the most idle first; in their order where the system does not tell."""
    before = _idle()
    time.sleep(GLANCE)
    after = _idle()
    return sorted(cores, key=lambda core: (before.get(core, 0) - after.get(core, 0), core))


def _idle() -> dict[int, int]:
    """Ticks that each core has been idle since the machine started."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return {}
    found = [line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit()]
    return {int(words[0][3:]): int(words[4]) for words in found}
