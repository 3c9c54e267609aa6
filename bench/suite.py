"""All measurements of one machine, one after the other: ``python -m bench.suite 2-cores``.

    2-cores     bench/results/*.json          the workloads beside all peers, growth, single instances, fresh
                                              structures, users' models, the gallery, what parts of the runtime cost
    16-cores    bench/results/16/*.json       replicas 2 to 16 beside torch with 1 to 16 threads; still learning
    h200        bench/results/h200/*.json     one process on the GPU beside torch and torch_geometric

Each part is a command of its own, and writes files of its own. A part that fails, or that misses a bound (exit code 1),
is told at the end, and the others go on. All files written have to name one commit: this is checked last. On a machine
without git, ``AMPNET_COMMIT=$(python -m bench.suite commit)`` is made where git is and handed over.

    python -m bench.suite 16-cores --list                     the commands, with the minutes that each takes about
    python -m bench.suite 16-cores --only qm9 learning-mnist  some of them
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.machine import code
from bench.rows import CHECKOUT

RESULTS = CHECKOUT / "bench" / "results"
FOLDERS = {"2-cores": RESULTS, "16-cores": RESULTS / "16", "h200": RESULTS / "h200"}


@dataclass(frozen=True, slots=True)
class Part:
    """A command of a machine."""

    name: str
    words: tuple[str, ...]
    """After ``python -m``; OUT stands for the folder of results."""
    minutes: float
    """That it takes, about."""

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-m", *(word.replace("OUT", str(out)) for word in self.words)]


def _part(name: str, minutes: float, words: str) -> Part:
    return Part(name, tuple(shlex.split(words)), minutes)


def _workload(name: str, minutes: float, options: str = "") -> Part:
    return _part(name, minutes, f"ampnet bench {name} --out OUT {options}")


def _file(name: str, minutes: float, module: str, options: str = "") -> Part:
    return _part(name, minutes, f"bench.{module} --json OUT/{name}.json {options}")


WORKLOADS = {"mnist": 6, "list-reduction": 9, "sentiment": 12, "babi15": 12, "qm9": 8, "permuted-layers": 6}
"""With the minutes that three rounds take on two cores."""
MANY = "--cores 16 --seconds 3 --repeats 1 --batches 120 --rows ours 'ours * replicas'"
"""One round: machines with many cores are lent for minutes, and nobody else is on them."""
GPU = "--device cuda --seconds 3 --repeats 1 --batches 100"
PARTS: Mapping[str, Sequence[Part]] = {
    "2-cores": [
        *(_workload(name, minutes) for name, minutes in WORKLOADS.items()),
        _workload("growth", 2),
        _workload("parts", 4),
        _file("single", 2, "single"),
        _file("fresh", 1, "fresh"),
        _file("ported", 3, "ported"),
        _file("gallery", 4, "gallery"),
        _file("engine", 2, "engine"),
        _file("predict", 1, "predict"),
        _file("learning", 6, "learning", "--replicas 2 --seeds 2"),
        _file("simulate", 4, "simulate"),
        _file("plan", 4, "plan"),
        _file("first-run", 1, "first_run"),
    ],
    "16-cores": [
        _workload("mnist", 5, f"{MANY} 'torch eager*' 'jax 1 *' 'jax 16*'"),
        _workload(
            "list-reduction", 5, f"{MANY} 'torch folded*' 'torch nn.RNN 1 *' 'jax unrolled 1 *' 'jax unrolled 16*'"
        ),
        _workload("sentiment", 8, f"{MANY} 'torch level*' 'jax 1 *' 'jax 16*'"),
        _workload("babi15", 8, f"{MANY} 'torch sparse 1 *' 'torch sparse 4 *' 'torch sparse 16*' 'pyg 1 *' 'jax 16*'"),
        _workload("qm9", 5, f"{MANY} 'torch sparse*' 'pyg 16*' 'jax 1 *' 'jax 16*'"),
        _workload("permuted-layers", 5, f"{MANY} 'torch by depth padded*' 'torch by depth sorted 1 *'"),
        _workload("growth", 3),
        _file("simulate", 8, "simulate"),
        *(
            _file(f"learning-{name}", minutes, "learning", f"{name} --replicas 16")
            for name, minutes in {"mnist": 4, "list-reduction": 2, "sentiment": 9, "qm9": 4}.items()
        ),
    ],
    "h200": [
        _workload("mnist", 2, GPU),
        _workload("list-reduction", 4, f"{GPU} --rows ours 'torch *' 'jax*'"),
        _workload("sentiment", 3, f"{GPU} --rows ours 'torch level' 'jax*'"),
        _workload("babi15", 5, GPU),
        _workload("qm9", 3, GPU),
        _workload("permuted-layers", 3, GPU),
    ],
}
"""By machine."""


def run(parts: Iterable[Part], out: Path) -> dict[str, int]:
    """Exit codes by name of part."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(CHECKOUT / "src"), str(CHECKOUT)))}
    ended = {}
    for part in parts:
        print(f"\n== {part.name} (about {part.minutes:g} min): {shlex.join(part.command(out)[1:])}", flush=True)
        began = time.perf_counter()
        ended[part.name] = subprocess.run(part.command(out), cwd=CHECKOUT, env=env).returncode
        print(f"== {part.name}: exit code {ended[part.name]}, {(time.perf_counter() - began) / 60:.1f} min", flush=True)
    return ended


def commits(folder: Path, since: float = 0.0) -> dict[str, list[str]]:
    """The files of results by the commit that they name ("none": none), of those that were written since then."""
    out: dict[str, list[str]] = {}
    for path in sorted(path for path in folder.glob("*.json") if path.stat().st_mtime >= since):
        machine = json.loads(path.read_text()).get("machine") or {}
        out.setdefault(str(machine.get("commit", "none")), []).append(path.name)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all parts kept their bounds, and all files that they wrote name one commit."""
    parser = argparse.ArgumentParser(prog="python -m bench.suite", description=__doc__.splitlines()[0])
    parser.add_argument("machine", choices=[*PARTS, "commit"], help="what is measured; commit: print the commit")
    parser.add_argument("--only", nargs="+", metavar="PART", help="some parts (default: all)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of results (default: that of the machine)")
    parser.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    given = parser.parse_args(arguments)
    if given.machine == "commit":
        print(code())
        return 0
    parts = PARTS[given.machine]
    unknown = [name for name in given.only or () if name not in [part.name for part in parts]]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(part.name for part in parts)}")
    parts = [part for part in parts if not given.only or part.name in given.only]
    out: Path = (given.out or FOLDERS[given.machine]).resolve()
    if given.list:
        for part in parts:
            print(f"{part.minutes:4g} min  {shlex.join(['python', *part.command(out)[1:]])}")
        print(f"{sum(part.minutes for part in parts):4g} min  in all")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    ended = run(parts, out)
    found = commits(out, began)
    for name, status in ended.items():
        print(f"{'ok  ' if status == 0 else 'MISS' if status == 1 else 'FAIL'}  {name}")
    print(*(f"commit {name}: {', '.join(files)}" for name, files in found.items()), sep="\n")
    return int(any(ended.values()) or len(found) > 1)


if __name__ == "__main__":
    sys.exit(main())
