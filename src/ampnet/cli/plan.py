"""``ampnet plan MODEL --machine FILE``: the fastest way to run a model on a machine. The options of the command.

The work is done in `ampnet.cli.planning`.
"""

from __future__ import annotations

from typing import Any

from ampnet.cli.options import Parser, file_to_read, file_to_write, later, positive
from ampnet.cli.placing import size
from ampnet.cli.studies import add_source


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "plan",
        usage="%(prog)s RUN [OPTION ...]",
        parents=[common],
        help="search placement, replicas and wave sizes for a machine, by simulation",
        description="Search the fastest way to run a model on a machine: placement, tiles, copies of single layers, "
        "replicas, wave size and waves in flight, within its memory. Prints the command line to use.",
        epilog="docs/simulate.md describes the file of a machine, and how the search works.",
    )

    def add(option: str, text: str, else_: str, **how: Any) -> None:
        parser.add_argument(option, help=f"{text} (default: {else_})", **how)

    add_source(parser, add)
    add("--machine", "TOML file that describes computers and links", "this machine", type=file_to_read, metavar="FILE")
    add(
        "-o",
        "write the worker of each node to FILE, for --affinity",
        "none",
        type=file_to_write,
        dest="output",
        metavar="FILE",
    )
    add(
        "--max-staleness",
        "largest mean staleness of a layer's gradients, in updates",
        "no limit",
        type=positive,
        metavar="S",
    )
    add("--memory-per-worker", "bytes that a worker may take, like 1.5GB", "no limit", type=size, metavar="SIZE")
    add("--json", "write the plan to FILE", "none", type=file_to_write, metavar="FILE")
    parser.set_defaults(run=later("ampnet.cli.planning"), parser=parser)
