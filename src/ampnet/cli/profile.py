"""``ampnet profile WORKLOAD``: the time of every node and every process, on generated data. The options of the command.

The work is done in `ampnet.cli.profiling`.
"""

from __future__ import annotations

from typing import Any

from ampnet.cli.models import add_model
from ampnet.cli.options import Parser, file_to_write, later, positive, processes, whole

BUCKETS = ("mnist", "list-reduction", "by-hand")
"""Models whose instances may hold many examples."""
SCHEDULES = ("backward-first", "fifo", "sweep", "random")
OPTIMIZERS = ("adam", "sgd", "none")
SORTS = ("time", "bookkeeping", "kernels", "merging", "waiting", "copied", "calls", "graph")


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "profile",
        usage="%(prog)s WORKLOAD [OPTION ...]",
        parents=[common],
        help="measure where the time of a model goes: kernels, bookkeeping, waiting",
        description="Train a model that ships with the package on generated data for a few seconds, and print the time "
        "of every node. Kernels is the time inside torch operators; copies made by NumPy are not counted.",
    )
    add_model(parser)

    def add(option: str, text: str, else_: str, **how: Any) -> None:
        parser.add_argument(option, help=f"{text} (default: {else_})", **how)

    number: dict[str, Any] = {"type": whole(1), "metavar": "N"}
    best = "the fastest known for the model"
    add("--seconds", "duration of the measurement", "4", type=positive, default=4.0, metavar="S")
    add("--sort", "column that the table is sorted by", "time", choices=SORTS, default="time")
    add("--top", "number of rows of the table", "all", **number)
    add("--json", "write all figures to FILE", "none", type=file_to_write, metavar="FILE")
    add("--max-active-keys", "largest number of instances in flight", best, **number)
    add("--wave-size", "instances computed together, as one wave", "all in flight", **number)
    order = "which wave computes its next operation; all but backward-first interleave the waves in flight"
    add("--schedule", order, "backward-first; with --messages sweep", choices=SCHEDULES)
    many: dict[str, Any] = {"type": processes, "metavar": "N"}
    add("--workers", "worker processes; 1: everything in this process", "one per replica", **many)
    add("--replicas", "copies of the model, with shared weights", "1", default=1, **many)
    add("--bucket", f"examples per instance ({', '.join(BUCKETS)}); 1: single ones", "100", **number)
    add("--optimizer", "torch optimizer; none: weights are frozen", "adam", choices=OPTIMIZERS, default="adam")
    parser.add_argument(
        "--messages", action="store_true", help="pass single messages between nodes instead of computing waves"
    )
    add("--max-batch", "messages that a node computes together, at most; implies --messages", "no limit", **number)
    rows = "number of rows from which a node does not wait for a larger batch; none: no such number; implies --messages"
    add("--enough-rows", rows, best, type=_rows, metavar="N|none")
    parser.set_defaults(run=later("ampnet.cli.profiling"), parser=parser)


def _rows(text: str) -> int:
    """0 stands for "none"."""
    return 0 if text == "none" else whole(1)(text)
