"""The command line: ``ampnet train``, ``ampnet evaluate``, ``ampnet predict``, ``ampnet check``, ``ampnet draw``,
``ampnet explain``, ``ampnet profile``, ``ampnet bench``, ``ampnet gantt``, ``ampnet report``, ``ampnet data``,
``ampnet completion``.

The parsers are built without torch, NumPy, matplotlib and rich: a command imports what it needs when it runs.

Exit codes:

    0     done (and the target reached, if one was given)
    1     an error of the run, or a broken promise; one message on stderr, a traceback only with --debug
    2     the command line is wrong; nothing was started
    3     trained to the end, but the target was not reached
    130   interrupted by Ctrl-C
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from ampnet._version import __version__
from ampnet.cli import (
    bench,
    check,
    completion,
    data,
    draw,
    evaluate,
    explain,
    gantt,
    html_report,
    predict,
    profile,
    train_options,
)
from ampnet.cli.options import Parser, UsageError, add_debug
from ampnet.errors import AmpnetError, EngineWarning, NotFiniteWarning

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
COMMANDS = (
    train_options,
    evaluate,
    predict,
    draw,
    explain,
    data,
    html_report,
    gantt,
    check,
    profile,
    bench,
    completion,
)
"""The modules of the commands, in the order of the help."""


def make_parser() -> Parser:
    """Returns the parser of all commands. Each command sets ``run`` to its function and ``parser`` to its parser."""
    parser = Parser(
        prog="ampnet",
        description="Train neural networks whose computation depends on the input: sequences, trees, graphs.",
        epilog="'ampnet COMMAND --help' lists the options of a command.",
    )
    parser.add_argument(
        "--version", action="version", version=f"ampnet {__version__}", help="show the version and exit"
    )
    common = Parser(add_help=False)
    add_debug(common)
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code. ``--help`` and ``--version`` raise `SystemExit`, as usual."""
    parser = make_parser()
    debug = False
    try:
        args, extra = parser.parse_known_args(argv)
        chosen: Parser = getattr(args, "parser", parser)
        if extra:
            chosen.unknown(extra)
        if "run" not in args:
            chosen.error(f"no command given; '{chosen.prog} --help' lists them")
        debug = args.debug
        with _warned_in_one_line():
            return int(args.run(args))
    except UsageError as error:
        return _fail(str(error), WRONG_USE)
    except BrokenPipeError:
        # The reader of the output is gone (`| head`). Python would raise again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (AmpnetError, OSError) as error:
        if debug:
            raise
        return _fail(f"ampnet: {error}", FAILED)
    except KeyboardInterrupt:
        return _fail("ampnet: interrupted", INTERRUPTED)


@contextmanager
def _warned_in_one_line() -> Iterator[None]:
    """Show warnings about a run as one line on stderr, without a source location."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def shown(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, EngineWarning | NotFiniteWarning):
                print(f"ampnet: {message}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = shown
        yield


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code
