"""``ampnet gantt RUN -o FILE``: draws the timeline of a run from a trace or a log."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ampnet.cli.options import Parser, file_to_read, file_to_write, shown, tell

ENDINGS = (".png", ".svg", ".html")


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "gantt",
        parents=[common],
        help="draw the timeline (Gantt chart) of a run",
        description="Draw the timeline of a run: a row for each worker, a box for each operation and each update.",
    )
    parser.add_argument(
        "run_file",
        type=file_to_read,
        metavar="RUN",
        help="trace or event log, written by 'ampnet train' with --trace or --log",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=_picture,
        required=True,
        metavar="FILE",
        help=f"write to FILE, whose suffix is the format: {', '.join(ENDINGS)}; the HTML page can be zoomed",
    )
    second: dict[str, Any] = {"type": _seconds, "metavar": "S"}
    parser.add_argument(
        "--from", dest="start", help="start of the chart, in seconds of the run (default: the start)", **second
    )
    parser.add_argument(
        "--to", dest="stop", help="end of the chart, in seconds of the run (default: the end)", **second
    )
    parser.add_argument(
        "--instances",
        type=_instances,
        metavar="A:B",
        help="show the time in which instances A to B were in flight (default: about 100 boxes of the steady state)",
    )
    parser.add_argument("--workers", metavar="NAME,...", help="show only these workers (default: all)")
    rows = "what a row of the chart is: a worker, or a node (default: workers)"
    parser.add_argument("--rows", choices=("workers", "nodes"), default="workers", help=rows)
    parser.set_defaults(run=run, parser=parser)


def _picture(text: str) -> Path:
    path = file_to_write(text)
    if path.suffix.lower() not in ENDINGS:
        raise argparse.ArgumentTypeError(f"the ending of {path} says no format; use one of {', '.join(ENDINGS)}")
    return path


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds; write it like 1.25") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no second of a run; give 0 or more")
    return value


def _instances(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        span = int(first), int(last or first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of instances; write it like 40:44") from None
    if not 0 <= span[0] <= span[1]:
        raise argparse.ArgumentTypeError(f"{text} is empty; write the smaller number first, like 40:44")
    return span


def run(args: argparse.Namespace) -> int:
    """Draw the picture, and print its title."""
    if args.instances is not None and (args.start is not None or args.stop is not None):
        args.parser.error("--instances: give either instances or seconds (--from, --to)")
    if args.output.resolve() == args.run_file.resolve():
        args.parser.error("--output: this is the run itself; give another file")
    from ampnet.events.gantt import gantt
    from ampnet.events.run_file import read_run

    record = read_run(args.run_file)
    chart = gantt(
        record,
        args.output,
        start=args.start,
        stop=args.stop,
        instances=args.instances,
        workers=None if args.workers is None else args.workers.split(","),
        rows=args.rows,
        title=str(record.settings.get("workload", "")),
    )
    tell(args.run_file, record.incomplete)
    print(shown(chart.title))
    return 0
