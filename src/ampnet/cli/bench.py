"""``ampnet bench WORKLOAD``: ours and the peers of a workload, alternating in one run; a table, a file and a picture.

What is measured and how is in the folder ``bench`` of the repository, which is not part of the installed package. This
file has the options, and finds the folder: in the checkout that the package runs from, or where one stands.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ampnet.cli.options import Parser, positive, whole
from ampnet.data.places import CHECKOUT
from ampnet.errors import AmpnetError

WORKLOADS = ("mnist", "list-reduction", "sentiment", "babi15", "qm9", "permuted-layers")
OTHERS = {
    "growth": "how the time of an instance grows with its size, with hidden size, instances in flight and workers",
    "parts": "what single parts of the runtime cost; what worker processes and replicas give",
    "all": "all of it",
}
NOT_HERE = """\
the benchmarks are not part of the installed package: they are in the folder 'bench' of the repository, with the peers \
that they are measured against. Clone the repository and run 'ampnet bench' in its folder, or 'make bench'."""


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure a workload beside its peers in one run",
        description="Ours and the peers of the same workload, each in a process of its own, in turns: best and median "
        "of several rounds. Every contender has the same batches, update size, optimizer and starting weights. Writes "
        "a file of results and a picture of each workload.",
        epilog="; ".join(f"{name}: {text}" for name, text in OTHERS.items()),
    )
    choices = (*WORKLOADS, *OTHERS)
    parser.add_argument("what", choices=choices, metavar="WORKLOAD", help=f"one of: {', '.join(choices)}")

    def add(option: str, text: str, else_: str, **how: Any) -> None:
        parser.add_argument(option, help=f"{text} (default: {else_})", **how)

    add("--rows", "only rows that match a pattern, like 'ours*'", "all", nargs="+", metavar="GLOB")
    add("--repeats", "rounds", "3; 1 to the target", type=whole(1), metavar="N")
    add("--seconds", "of training in each turn", "4", type=positive, default=4.0, metavar="S")
    add("--cores", "threads of the peers, and replicas of ours", "as many as there are", type=whole(1), metavar="N")
    add("--base", "the row that others are divided by", "a torch peer with 1 thread", metavar="ROW")
    add("--to-target", "train ours and one peer until the target, instead", "off", action="store_true")
    add("--device", "on a GPU, ours is in one process", "cpu", choices=("cpu", "cuda"), default="cpu")
    data = ("auto", "generated", "real")
    add("--data", "which data; auto: the real where it is found", "auto", choices=data, default="auto")
    add("--data-dir", "where data sets are looked for first", "none", type=Path, metavar="DIR")
    add("--batches", "batches of data at most", "as many as the workload has", type=whole(1), metavar="N")
    folder = "folder of hand-written programs to take along"
    add("--external", folder, "../shared/peers beside the checkout, if it is there", type=_folder, metavar="DIR")
    add("--seconds-a-point", "of growth", "1", type=positive, default=1.0, metavar="S")
    add("--out", "folder of results", "bench/results of the checkout", type=Path, metavar="DIR")
    add("--json", "print the results as JSON, and the table to stderr", "off", action="store_true")
    parser.set_defaults(run=run, parser=parser)


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path}")
    return path


def run(args: argparse.Namespace) -> int:
    """Find the benchmarks, and let them run."""
    return int(find().run(args))


def find() -> ModuleType:
    """The module that does the work."""
    for root in (CHECKOUT, Path.cwd()):
        if (root / "bench" / "command.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return importlib.import_module("bench.command")
    raise AmpnetError(NOT_HERE)
