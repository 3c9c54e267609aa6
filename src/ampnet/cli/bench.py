"""``ampnet bench WORKLOAD``: AMPNet and other implementations of a workload, in turns; a table, a file and a picture.

The benchmarks are in the folder ``bench`` of the repository, which is not part of the installed package. This file has
the options, and finds the folder: in the checkout that the package runs from, or in the current folder.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ampnet.cli.options import Parser, positive, whole
from ampnet.errors import AmpnetError
from ampnet.experiments.described import DESCRIBED

WORKLOADS = tuple(name for name in DESCRIBED if name != "adaptive-depth")
OTHERS = {
    "growth": "time per instance by its size, hidden size, instances in flight and workers",
    "parts": "cost of single parts of the runtime, speedup by worker processes and replicas",
    "all": "all of these",
}
NOT_HERE = """\
the benchmarks are not part of the installed package: they are in the folder 'bench' of the repository, with the peers \
that they are measured against. Clone the repository and run 'ampnet bench' in its folder, or 'make bench'."""


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure the speed of a workload against other implementations",
        description="Measure AMPNet and other implementations of the same workload, each in its own process, in turns: "
        "best and median of several rounds. All have the same batches, update size, optimizer and initial weights. "
        "Writes a results file and a picture for each workload.",
        epilog="; ".join(f"{name}: {text}" for name, text in OTHERS.items()),
    )
    choices = (*WORKLOADS, *OTHERS)
    parser.add_argument("what", choices=choices, metavar="WORKLOAD", help=f"one of: {', '.join(choices)}")

    def add(option: str, text: str, else_: str, **how: Any) -> None:
        parser.add_argument(option, help=f"{text} (default: {else_})", **how)

    add("--rows", "measure only implementations that match a pattern, like 'ours*'", "all", nargs="+", metavar="GLOB")
    add("--repeats", "number of rounds", "3; 1 with --to-target", type=whole(1), metavar="N")
    add("--seconds", "seconds of training per turn", "4", type=positive, default=4.0, metavar="S")
    add(
        "--cores", "threads of the other implementations, and replicas of ours", "all cores", type=whole(1), metavar="N"
    )
    add("--base", "implementation that speedups are relative to", "a torch implementation with 1 thread", metavar="ROW")
    add(
        "--to-target",
        "instead, train ours and one other implementation until the target is reached",
        "off",
        action="store_true",
    )
    add("--device", "device; on cuda, ours runs in one process", "cpu", choices=("cpu", "cuda"), default="cpu")
    data = ("auto", "generated", "real")
    add("--data", "generated or real data; auto: real if it is found", "auto", choices=data, default="auto")
    add("--data-dir", "folder to search for data sets first", "none", type=Path, metavar="DIR")
    add("--batches", "largest number of batches", "all of the workload", type=whole(1), metavar="N")
    folder = "folder of further programs to measure"
    add("--external", folder, "../shared/peers beside the checkout, if it is there", type=_folder, metavar="DIR")
    add("--seconds-a-point", "seconds per point of growth", "1", type=positive, default=1.0, metavar="S")
    add("--out", "folder for the results", "bench/results of the checkout", type=Path, metavar="DIR")
    add("--json", "print the results as JSON to stdout, and the table to stderr", "off", action="store_true")
    parser.set_defaults(run=run, parser=parser, unwinds=True)


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path}")
    return path


def run(args: argparse.Namespace) -> int:
    """Find the benchmarks, and run them."""
    return int(find().run(args))


def find() -> ModuleType:
    """Returns the module of the benchmarks."""
    from ampnet.data.places import CHECKOUT

    for root in (CHECKOUT, Path.cwd()):
        if (root / "bench" / "command.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module("bench.command")
    raise AmpnetError(NOT_HERE)
