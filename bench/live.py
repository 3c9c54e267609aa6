"""What the live view costs: ``python -m bench.live``. Asked for: under 2 % of the time of the process that trains.

    nobody    listeners for staleness (every run of the command line has one) and for its ends      1
    waiting   a `Live` that has had its sample: the rest of every second                     cost: a look at the clock
    looking   a `Live` that is told of all operations                                        cost: of one operation
    page      the parts of the page, made once                                               cost: processor time

    in all    waiting + `MOST` operations a second + a page a second, or what is allowed for it where that is less

The three runtimes take turns of some hundredths of a second, on generated data and one core, by processor time of the
thread, and the medians of very many turns are compared: so it can be measured on a machine that does other things, too.
To hold whole seconds against whole seconds would need a quiet one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ampnet.controller import Progress
from ampnet.events.live import PATIENCE, Live
from ampnet.events.live.page import parts
from ampnet.events.log import Begin, Epoch, Event, Rest
from ampnet.events.sampling import EVERY, MOST
from ampnet.events.staleness import StalenessMeter
from bench.contender import OurRuntime
from bench.engine import RECORDS, WORKLOADS
from bench.workload import Wanted
from bench.workloads import BY_NAME

FOREVER = 10**9


class _Ends:
    """A listener for the events that a run has once, for turns are so short that these would count; and for progress,
    which every run of the command line shows."""

    kinds = (Begin, Epoch, Rest)

    def __call__(self, event: Event) -> None:
        pass

    def turn(self, progress: Progress) -> None:
        """Progress was made."""


class Row:
    """A runtime, and its `Live` if it has one."""

    def __init__(self, name: str, live: Live | None, batches: int) -> None:
        workload = BY_NAME[name]
        listeners = [StalenessMeter(), live if live is not None else _Ends()]
        ours = workload.ours["ours"]
        ours = replace(ours, settings={**ours.settings, "listeners": listeners})
        data = workload.data(Wanted(workload.batch, "generated", None, RECORDS.get(name, 1_600)))
        self._runtime, self.live = OurRuntime(workload, data, ours, "cpu"), live
        self._batches = range(min(batches, len(data.train)))
        self._runtime.warm()
        self.turn()

    def turn(self) -> float:
        """Processor seconds of the same few batches."""
        began = time.thread_time()
        self._runtime.train(self._batches)
        return time.thread_time() - began

    def close(self) -> None:
        """End what it began."""
        self._runtime.close()
        if self.live is not None:
            self.live.close()


def measure(name: str, turns: int, batches: int) -> dict[str, float]:
    """The pieces of the cost, and all of it as a part of the time."""
    looking = Live(most=FOREVER)
    rows = {
        "nobody": Row(name, None, batches),
        "waiting": Row(name, Live(most=1, every=FOREVER), batches),
        "looking": Row(name, looking, batches),
    }
    told = looking._watch.record().totals.boxes
    took: dict[str, list[float]] = {row: [] for row in rows}
    for _ in range(turns):
        for row, one in rows.items():
            took[row].append(one.turn())
    operations = (looking._watch.record().totals.boxes - told) / turns
    pages = []
    for _ in range(20):
        began = time.thread_time()
        parts(looking._watch, looking._plan, 1, False, None)
        pages.append(time.thread_time() - began)
    for one in rows.values():
        one.close()
    median = {row: statistics.median(times) for row, times in took.items()}
    waiting = max(0.0, median["waiting"] / median["nobody"] - 1)
    operation = max(0.0, median["looking"] - median["waiting"]) / operations
    page = statistics.median(pages)
    sample = min(MOST / EVERY, operations / median["nobody"]) * operation
    shown = min(page / EVERY, 1 / PATIENCE)
    return {
        "turn ms": 1e3 * median["nobody"],
        "waiting %": 100 * waiting,
        "operation us": 1e6 * operation,
        "sample %": 100 * sample,
        "page ms": 1e3 * page,
        "page %": 100 * shown,
        "unwatched %": 100 * (waiting + sample),
        "watched %": 100 * (waiting + sample + shown),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.live", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=WORKLOADS, help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--turns", type=int, default=150, help="of each runtime (default: 150)")
    parser.add_argument("--batches", type=int, default=4, help="of a turn (default: 4)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in given.names:
        found[name] = measure(name, given.turns, given.batches)
        print(f"{name:16}", "  ".join(f"{what} {value:.2f}" for what, value in found[name].items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
