"""``ampnet check LOG``: checks a log that ``ampnet train --log`` wrote for broken promises.

The checker needs only the log, so a run on any machine can be checked on any other.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampnet.cli.options import Parser, file_to_read, shown, tell
from ampnet.errors import DataError, StateError

if TYPE_CHECKING:
    from ampnet.events.log import Event

CHECKED = ("P1", "P5", "P6", "P7", "P8", "P9", "P10")
"""The promises that can be checked from a log."""


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command to the parser of all commands."""
    parser = commands.add_parser(
        "check",
        parents=[common],
        help="check the event log of a run against the runtime's guarantees",
        description="Check the event log of a run against the guarantees of the runtime (docs/promises.md) and print "
        "every violation.",
    )
    parser.add_argument("log", type=file_to_read, metavar="LOG", help="file written by 'ampnet train ... --log LOG'")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print "all promises kept" (0), or every violation (1)."""
    from ampnet.events.check import check

    log = _Log(args.log)
    try:
        violations = check(log)
    except (StateError, ArithmeticError) as error:
        # Well-formed, but with states or numbers that no run can have.
        raise log.fault(log.events, error) from error
    if not log.events:
        raise DataError(f"{args.log}, line 1: no event in it; was it written by 'ampnet train ... --log'?")
    if not log.rests:
        tell(args.log, "the log ends before its run does; messages in flight then are reported")
    if not violations:
        print(f"all promises kept: {' '.join(CHECKED)} over {log.events:,} events")
        return 0
    for violation in violations:
        print(f"{violation.promise:3s}  line {violation.position + 1}: {shown(violation.sentence)}")
    print(f"{len(violations):,} violation{'s' if len(violations) > 1 else ''} over {log.events:,} events")
    return 1


class _Log:
    """The events of a file, counted as they are read: a log may be larger than memory."""

    def __init__(self, path: Path) -> None:
        self.path, self.events = path, 0
        self.rests = False
        """Whether the last event is the end of a run."""

    def __iter__(self) -> Iterator[Event]:
        from ampnet.events.log import Rest, read_log

        for event in read_log(self.path):
            self.events += 1
            self.rests = isinstance(event, Rest)
            yield event

    def fault(self, line: int, error: Exception) -> DataError:
        from ampnet.events.log import not_an_event

        return not_an_event(self.path, line, error)
