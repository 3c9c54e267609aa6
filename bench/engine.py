"""What the engine costs: waves in flight, instruments, and itself some commits ago: ``python -m bench.engine``.

    one wave at a time      the default of each workload                                    1
    4 in flight             the same waves, four of them in flight, taking turns (fifo)     asked for: at least 0.9
    log, trace              one wave at a time, with a LogWriter or a PerfettoWriter        asked for: at least 0.9
    before                  one wave at a time in another checkout (``--before DIR``)       asked for: 1 or less

All rows of a workload take turns, by processor time, on generated data and one core; the best turn of each counts. The
row "before" is measured in processes of its own, between the others' turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ampnet.events import LogWriter, PerfettoWriter
from bench.contender import OurRuntime, lasting
from bench.machine import describe
from bench.workload import Wanted, Workload
from bench.workloads import BY_NAME

WORKLOADS = ("list-reduction", "qm9", "sentiment", "mnist")
RECORDS = {"list-reduction": 20_000}
FLIGHT = 4


class Turns:
    """One row: a runtime and where it is in its data."""

    def __init__(self, workload: Workload, **settings: Any) -> None:
        data = workload.data(Wanted(workload.batch, "generated", None, RECORDS.get(workload.name, 1_600)))
        ours = workload.ours["ours"]
        in_flight = settings.pop("in_flight", 1) * ours.in_flight
        ours = replace(ours, in_flight=in_flight, settings={**ours.settings, **settings})
        self._runtime, self._places = OurRuntime(workload, data, ours, "cpu"), itertools.cycle(range(len(data.train)))
        self._runtime.warm()
        self.turn(1.0)

    def turn(self, seconds: float) -> float:
        """Records a second of processor time."""
        began = time.process_time()
        return self._runtime.train(lasting(self._places, seconds)).records / (time.process_time() - began)


def rows(name: str, folder: Path) -> dict[str, Turns]:
    """The rows of a workload that are measured in this process."""
    workload = BY_NAME[name]
    together = workload.ours["ours"].in_flight
    flight = {"in_flight": FLIGHT, "schedule": "fifo", "wave_size": together}
    return {
        "one wave at a time": Turns(workload),
        f"{FLIGHT} in flight": Turns(workload, **flight),
        "log": Turns(workload, listeners=[LogWriter(folder / "log.jsonl")]),
        "trace": Turns(workload, listeners=[PerfettoWriter(folder / "trace.json")]),
    }


def before(checkout: Path, name: str, seconds: float) -> float:
    """One turn of another checkout. This file is run there, with its own package."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(checkout)))}
    command = [sys.executable, str(Path(__file__).resolve()), "--turn", name, "--seconds", str(seconds)]
    said = subprocess.run(command, env=env, cwd=checkout, check=True, capture_output=True, text=True).stdout
    return float(said.splitlines()[-1])


def measure(name: str, seconds: float, turns: int, checkout: Path | None) -> dict[str, Any]:
    """Best speed of each row, and its ratio to one wave at a time."""
    with tempfile.TemporaryDirectory() as folder:
        mine = rows(name, Path(folder))
        best = dict.fromkeys(mine, 0.0) | ({} if checkout is None else {"before": 0.0})
        for _ in range(turns):
            for row, one in mine.items():
                best[row] = max(best[row], one.turn(seconds))
            if checkout is not None:
                best["before"] = max(best["before"], before(checkout, name, seconds))
    base = best["one wave at a time"]
    return {row: {"records a second": speed, "ratio": speed / base} for row, speed in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--seconds", type=float, default=0.6, help="of a turn (default: 0.6)")
    parser.add_argument("--turns", type=int, default=5, help="of each row; the best counts (default: 5)")
    parser.add_argument("--before", type=Path, metavar="DIR", help="another checkout, to compare with")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    parser.add_argument("--turn", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.turn:
        print(max(Turns(BY_NAME[given.turn]).turn(given.seconds) for _ in range(2)))
        return
    found = {}
    for name in given.names:
        found[name] = measure(name, given.seconds, given.turns, given.before)
        for row, one in found[name].items():
            print(f"{name:16} {row:20} {one['records a second']:10,.0f}/s {one['ratio']:6.2f}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
