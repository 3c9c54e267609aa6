"""``ampnet draw WORKLOAD``: the graph of a model, as a picture or as Mermaid text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ampnet.cli.models import add_model, built
from ampnet.cli.options import Parser, file_to_write

ENDINGS = (".svg", ".png", ".pdf", ".mmd")


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "draw",
        parents=[common],
        help="draw the graph of a model",
        description="Draw the graph of nodes that a model is compiled to, as a picture or as Mermaid text.",
    )
    add_model(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=_picture,
        metavar="FILE",
        help=f"write to FILE, whose suffix is the format: {', '.join(ENDINGS)} (default: Mermaid text to stdout)",
    )
    parser.set_defaults(run=run, parser=parser)


def _picture(text: str) -> Path:
    path = file_to_write(text)
    if path.suffix not in ENDINGS:
        raise argparse.ArgumentTypeError(f"the ending of {path} says no format; use one of {', '.join(ENDINGS)}")
    return path


def run(args: argparse.Namespace) -> int:
    """Write the picture, or print the Mermaid text."""
    text = built(args).draw(args.output)
    if args.output is None:
        print(text.rstrip("\n"))
    return 0
