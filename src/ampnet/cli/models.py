"""The models that ship with the package, as an argument of a command: ``WORKLOAD``, and ``--cell`` for one of them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ampnet.cli.options import Parser
from ampnet.experiments.described import DESCRIBED

if TYPE_CHECKING:
    from ampnet.graph import Graph

BY_HAND = "by-hand"
"""The RNN of list-reduction, wired node by node."""
MODELS = (*DESCRIBED, BY_HAND)
CELLS = ("relu", "gru", "lstm")


def add_model(parser: Parser) -> None:
    """Add both arguments."""
    about = f"one of: {', '.join(DESCRIBED)}; or {BY_HAND}, the RNN of list-reduction wired node by node"
    parser.add_argument("model", choices=MODELS, metavar="WORKLOAD", help=about)
    cell = f"recurrent cell of list-reduction: {', '.join(CELLS)} (default: {CELLS[0]})"
    parser.add_argument("--cell", choices=CELLS, help=cell)


def built(args: argparse.Namespace) -> Graph:
    """Returns the graph of the given model."""
    if args.cell is not None and args.model != "list-reduction":
        args.parser.error(f"--cell: only list-reduction has cells to choose from, not {args.model}")
    from ampnet.models import registry

    return registry.build(args.model, args.cell)
