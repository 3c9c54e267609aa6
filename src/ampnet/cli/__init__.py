"""The command line: ``ampnet train``, ``ampnet evaluate``, ``ampnet predict``, ``ampnet serve``, ``ampnet check``,
``ampnet draw``, ``ampnet explain``, ``ampnet profile``, ``ampnet simulate``, ``ampnet plan``, ``ampnet bench``,
``ampnet gantt``, ``ampnet report``, ``ampnet data``, ``ampnet completion``.

The parsers are built without torch, NumPy, matplotlib and rich: a command imports what it needs when it runs.

Exit codes:

    0     done (and the target reached, if one was given)
    1     an error of the run, or a broken promise; one message on stderr, a traceback only with --debug
    2     the command line is wrong; nothing was started
    3     trained to the end, but the target was not reached
    130   interrupted by Ctrl-C; 143 by SIGTERM, 129 by SIGHUP
"""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
    plan,
    predict,
    profile,
    serve,
    simulate,
    train_options,
)
from ampnet.cli.interrupt import Interrupted, code_of, handling, leave, unwind
from ampnet.cli.options import Parser, UsageError, add_debug
from ampnet.errors import (
    AmpnetError,
    CheckpointWarning,
    EngineWarning,
    NotFiniteWarning,
    OutputWarning,
    RestartWarning,
)

FAILED, WRONG_USE, INTERRUPTED = 1, 2, 130
COMMANDS = (
    train_options,
    evaluate,
    predict,
    serve,
    draw,
    explain,
    data,
    html_report,
    gantt,
    check,
    profile,
    simulate,
    plan,
    bench,
    completion,
)
"""The modules of the commands, in the order of the help."""
NO_MEMORY = ("can't allocate memory", "Storage size calculation overflowed", "CUDA out of memory")
"""How torch says it, in a RuntimeError."""
SHOWN = (CheckpointWarning, EngineWarning, NotFiniteWarning, OutputWarning, RestartWarning)
"""Warnings about a run, for its user."""


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
    """Run a command; returns the exit code. ``--help`` and ``--version`` raise `SystemExit`, as usual.

    Without ``argv`` it is the command of this process: signals are handled as `ampnet.cli.interrupt` says, and text
    that the terminal's encoding lacks is printed with replacements.
    """
    if argv is not None:
        return _main(argv)
    _prepare_output()
    with handling(leave):
        code = _main(None)
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _no_output()
        except OSError as error:
            _no_output()
            return _fail(f"ampnet: stdout: {error.strerror}", FAILED)
        return code


def _prepare_output() -> None:
    """Make stdout and stderr usable: they may be closed, or in an encoding that lacks characters."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the number, which a file of ours would get otherwise
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open to the end of the process
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _main(argv: Sequence[str] | None) -> int:
    debug = False
    try:
        parser = make_parser()
        args, extra = parser.parse_known_args(argv)
        chosen: Parser = getattr(args, "parser", parser)
        if extra:
            chosen.unknown(extra)
        if "run" not in args:
            chosen.error(f"no command given; '{chosen.prog} --help' lists them")
        debug = args.debug
        unwinding = handling(unwind) if argv is None and getattr(args, "unwinds", False) else nullcontext()
        with _warned_in_one_line(), unwinding:
            return int(args.run(args))
    except UsageError as error:
        return _fail(str(error), WRONG_USE)
    except BrokenPipeError:
        _no_output()
        return FAILED
    except (AmpnetError, OSError, MemoryError, RuntimeError) as error:
        if debug or (isinstance(error, RuntimeError) and not any(text in str(error) for text in NO_MEMORY)):
            raise
        what = "not enough memory: " if isinstance(error, MemoryError | RuntimeError) else ""
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and not isinstance(error, AmpnetError):
            what = "stdout, or a file beside those that were named: "
        return _fail(f"ampnet: {what}{error}", FAILED)
    except KeyboardInterrupt as error:
        return _fail("ampnet: interrupted", code_of(error.number) if isinstance(error, Interrupted) else INTERRUPTED)


def _no_output() -> None:
    """The reader of the output is gone (`| head`). Python would raise again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
            if issubclass(category, SHOWN):
                print(f"ampnet: {message}", file=sys.stderr)
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = shown
        yield


def _fail(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code
