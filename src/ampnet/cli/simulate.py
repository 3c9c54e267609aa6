"""``ampnet simulate RUN``: what a training would be like on machines that are not there. The options of the command.

The work is done in `ampnet.cli.simulating`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ampnet.cli.options import Parser, file_to_read, file_to_write, later, pairs, positive, whole
from ampnet.cli.studies import add_source

SCHEDULES = ("backward-first", "fifo", "sweep", "random")
PICTURES = (".png", ".svg")
CHARTS = (".png", ".svg", ".html")


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "simulate",
        usage="%(prog)s RUN [OPTION ...]",
        parents=[common],
        help="what a training would be like on other machines: throughput, bubbles, staleness, memory",
        description="Replay the waves of a model, with measured costs, on a machine described in a small file. Nothing "
        "is computed: placement, schedule and layouts are the runtime's, times are the model's costs.",
        epilog="docs/simulate.md describes the file of a machine, and how far the numbers can be trusted.",
    )

    def add(option: str, text: str, else_: str, **how: Any) -> None:
        parser.add_argument(option, help=f"{text} (default: {else_})", **how)

    add_source(parser, add)
    number: dict[str, Any] = {"type": whole(1), "metavar": "N"}
    add(
        "--machine",
        "TOML file that describes computers and links; several are compared",
        "this machine",
        type=file_to_read,
        nargs="+",
        default=[],
        metavar="FILE",
    )
    add("--workers", "worker processes among which the layers are distributed", "one per replica", **number)
    add("--replicas", "copies of the whole model, which share weights", "1", default=1, **number)
    add("--replicate", "copies of single layers", "none", type=pairs(whole(2)), default={}, metavar="NODE=N,...")
    add("--tile", "split a linear layer into parts", "none", type=pairs(whole(2)), default={}, metavar="NODE=N,...")
    add("--affinity", "JSON file with the worker of each node", "placed by cost", type=file_to_read, metavar="FILE")
    add("--max-active-keys", "largest number of instances in flight", "what keeps all workers busy", **number)
    add("--wave-size", "instances computed together", "chosen by the runtime", **number)
    add(
        "--schedule",
        "which wave computes its next operation",
        "backward-first",
        choices=SCHEDULES,
        default="backward-first",
    )
    add("--seconds", "simulated time; the first fifth is not counted", "10", type=positive, default=10.0, metavar="S")
    add("--seed", "random seed of the simulation", "0", type=whole(0), default=0, metavar="N")
    add("--json", "write all results to FILE", "none", type=file_to_write, metavar="FILE")
    ending = "whose suffix is the format"
    add("--gantt", f"draw the timeline of the first machine to FILE, {ending}", "none", type=_chart, metavar="FILE")
    add("--trace", "write the timeline of the first machine as a trace", "none", type=file_to_write, metavar="FILE")
    add("--picture", f"draw a comparison of the machines to FILE, {ending}", "none", type=_picture, metavar="FILE")
    parser.set_defaults(run=later("ampnet.cli.simulating"), parser=parser)


def _chart(text: str) -> Path:
    return _with_ending(text, CHARTS)


def _picture(text: str) -> Path:
    return _with_ending(text, PICTURES)


def _with_ending(text: str, endings: tuple[str, ...]) -> Path:
    path = file_to_write(text)
    if path.suffix.lower() not in endings:
        raise argparse.ArgumentTypeError(f"the ending of {path} says no format; use one of {', '.join(endings)}")
    return path
