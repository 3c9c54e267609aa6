"""Every test of processes: nothing is left behind, whoever was killed (promises P5 and P13)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


def children() -> set[int]:
    """The processes of which this one is the parent."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that is just ending
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


def shared() -> set[str]:
    """Shared memory and semaphores that have a name."""
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No process, no shared memory, no semaphore, no file descriptor."""
    before, kids, fds = shared(), children(), len(os.listdir("/proc/self/fd"))
    yield
    assert children() == kids
    assert shared() <= before
    assert len(os.listdir("/proc/self/fd")) <= fds
