"""``ampnet report RUN -o FILE``: one HTML page about a run, from its trace or its log."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ampnet.cli.options import Parser, file_to_read, file_to_write, shown, tell


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "report",
        parents=[common],
        help="write an HTML report of a run",
        description="Write an HTML report of a run from its trace: learning curves, throughput, workers, nodes, "
        "staleness, the graph and the timeline.",
    )
    parser.add_argument(
        "run_file",
        type=file_to_read,
        metavar="RUN",
        help="trace, written by 'ampnet train ... --trace RUN'; or an event log (--log), without the curves within "
        "epochs and the examples per second",
    )
    parser.add_argument(
        "-o", "--output", type=_page, required=True, metavar="FILE", help="file to write, ending in .html"
    )
    parser.set_defaults(run=run, parser=parser)


def _page(text: str) -> Path:
    path = file_to_write(text)
    if path.suffix.lower() not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"{path} is no name for a page; let it end in .html")
    return path


def run(args: argparse.Namespace) -> int:
    """Write the page, and print its first line."""
    if args.output.resolve() == args.run_file.resolve():
        args.parser.error("--output: this is the run itself; give another file")
    from ampnet.events.report import report
    from ampnet.events.report.sections import summary
    from ampnet.events.run_file import read_run

    record = read_run(args.run_file)
    report(record, args.output)
    tell(args.run_file, record.incomplete)
    print(shown(summary(record)))
    return 0
