"""Rounds: every contender has a turn in each of them, so that whatever else the machine does hits all of them.

    round 1   gemm 1, gemm 2, ours, ours 2 replicas, torch eager 1 thread, torch eager 2 threads, ...
    round 2   gemm 1, gemm 2, ours, ...

A turn is a process (`bench.turn`, or an external program). One that fails is told and has no further turns; the others
go on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from bench.external import read
from bench.rows import CHECKOUT, Row

PATIENCE = 600.0
"""Seconds after which a turn is given up, beyond those it was given."""


class TurnFailed(Exception):
    """A contender's process ended without a result. The message is the last thing that it said."""


@dataclass(slots=True)
class Turns:
    """What came of a row in all rounds."""

    row: Row
    found: list[dict[str, Any]] = field(default_factory=list)
    """Of each turn."""
    failed: str | None = None
    """What it said when it failed."""


Tell = Callable[[int, Row], None]


def rounds(rows: Sequence[Row], repeats: int, limit: float, tell: Tell = lambda number, row: None) -> list[Turns]:
    """Let all take ``repeats`` turns, one after the other. A turn may take ``limit`` seconds, and `PATIENCE`."""
    every = [Turns(row) for row in rows]
    for number in range(repeats):
        for turns in every:
            if turns.failed is None and turns.row.skipped is None:
                tell(number, turns.row)
                try:
                    turns.found.append(take(turns.row, limit + PATIENCE))
                except TurnFailed as error:
                    turns.failed = str(error)
    return every


def take(row: Row, limit: float) -> dict[str, Any]:
    """One turn: what the process says in the end, and its peak of resident memory ("bytes").

    The peak is that of the largest process of the turn: they share what was there when they parted.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            row.command, stdout=out, stderr=err, env=row.environment(), cwd=CHECKOUT, start_new_session=True
        )
        clock = threading.Timer(limit, _end, (process.pid,))
        clock.start()
        try:
            _, status, used = os.wait4(process.pid, 0)  # unlike Popen.wait it tells what this process used
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            _end(process.pid)
            process.wait()
            raise
        finally:
            clock.cancel()
        out.seek(0)
        err.seek(0)
        said = _last(out.read())
        if process.returncode != 0 or said is None:
            lines = [line for line in err.read().splitlines() if line.strip()]
            late = " (it took too long)" if process.returncode == -signal.SIGKILL else ""
            raise TurnFailed((lines[-1] if lines else f"ended with {process.returncode}, without a result") + late)
    if row.kind == "external":
        said = read(said)
    return {**said, "bytes": used.ru_maxrss * 1024}


def _end(leader: int) -> None:
    """End a process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _last(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
    return None
