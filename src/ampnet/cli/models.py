"""The models that ship with the package, as an argument of a command: ``MODEL``, and ``--cell`` for one of them."""

from __future__ import annotations

import argparse
from typing import get_args

from ampnet.cli.options import Parser
from ampnet.graph import Graph
from ampnet.models import registry
from ampnet.models.list_reduction import Cell


def add_model(parser: Parser) -> None:
    """Add both arguments."""
    names = tuple(registry.GRAPHS)
    parser.add_argument("model", choices=names, metavar="MODEL", help=f"one of: {', '.join(names)}")
    cells = get_args(Cell)
    parser.add_argument("--cell", choices=cells, help=f"of list-reduction: {', '.join(cells)} (default: {cells[0]})")


def built(args: argparse.Namespace) -> Graph:
    """The graph of the model that was asked for."""
    if args.cell is not None and args.model != "list-reduction":
        args.parser.error(f"--cell: only list-reduction has cells to choose from, not {args.model}")
    return registry.build(args.model, args.cell)
