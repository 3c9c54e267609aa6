"""``ampnet explain WORKLOAD``: every value of a compiled model, its scope and key, and the line that made it."""

from __future__ import annotations

import argparse
import shutil
import sys
from typing import Any

from ampnet.cli.models import add_model, built
from ampnet.cli.options import Parser, whole


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "explain",
        parents=[common],
        help="list every value of a model, with scope, key and source line",
        description="List every value of a compiled model: the node that computes it, the shape of a row, its scope "
        "and key, and the source line it comes from.",
    )
    add_model(parser)
    parser.add_argument(
        "--width",
        type=whole(0),
        metavar="N",
        help="truncate lines to N characters; 0: do not truncate (default: the terminal's width, 160 elsewhere)",
    )
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print the table."""
    from ampnet.lang import Compiled

    graph = built(args)
    if not isinstance(graph, Compiled):
        parser: Parser = args.parser
        parser.error(
            f"{args.model} is wired node by node, so there are no lines of a model to explain it by; "
            f"see 'ampnet draw {args.model}'"
        )
    print(graph.explain(_width(args.width)))
    return 0


def _width(given: int | None) -> int | None:
    """Returns the width of the table; None: unlimited."""
    if given is None:
        return max(shutil.get_terminal_size().columns, 120) if sys.stdout.isatty() else 160
    return given or None
