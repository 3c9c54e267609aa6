"""Options of the command line: types that validate values before any work starts.

A bad value ends the command with exit code 2 and one line that names the option and the remedy:

    ampnet train list-reduction: --target: 97 is not a fraction; for 97 % give 0.97
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ampnet.checkpoint.output import check_output
from ampnet.errors import OutputError, nearest

V = TypeVar("V")
LARGEST = 2**31 - 1
"""The largest count that an option takes."""


class UsageError(Exception):
    """The command line is wrong. The message is printed as one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, with the nearest known name. It accepts no abbreviations: they would
    break when options are added."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As usual; ``given`` holds the names of the options of a command that are on the command line."""
        found, extra = super().parse_known_args(args, namespace)
        if args is not None and "given" not in found:
            known, words = self._option_string_actions, (word.partition("=")[0] for word in args)
            found.given = frozenset(known[word].dest for word in words if word in known)
        return found, extra

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message.removeprefix('argument ')}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise an error for a value that is not among the choices, with the nearest choice."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"invalid choice: '{value}'; {nearest(str(value), action.choices)}")

    def unknown(self, extra: Sequence[str]) -> NoReturn:
        """Raise `UsageError` for unknown arguments."""
        given = extra[0].partition("=")[0]
        kind = "option" if given.startswith("-") else "argument"
        near = get_close_matches(given, self._option_string_actions, n=1, cutoff=0.7)
        remedy = f"did you mean {near[0]}?" if near else f"'{self.prog} --help' lists what there is"
        self.error(f"unknown {kind} {given}; {remedy}")


def later(module: str) -> Callable[[argparse.Namespace], int]:
    """Returns the function ``run`` of a module, imported when called: help and completion do not wait for torch."""
    return lambda args: int(importlib.import_module(module).run(args))


def add_debug(parser: Any) -> None:
    """Add ``--debug``, which every command has, to a parser or a group."""
    parser.add_argument("--debug", action="store_true", help="show the full traceback of an error (default: off)")


def shown(text: str) -> str:
    """Returns a text from a file for the terminal: control characters, which could drive it, are escaped."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def tell(path: Path, fault: str) -> None:
    """Print a fault of a file that could be used nevertheless to stderr; an empty one is none."""
    if fault:
        print(f"ampnet: {path}: {shown(fault)}", file=sys.stderr)


def _short(text: str) -> str:
    """Returns a value of the command line as part of a message."""
    return text if len(text) <= 40 else f"{text[:32]}...{text[-4:]}"


def whole(least: int, most: int = LARGEST, where: str = "") -> Callable[[str], int]:
    """Returns a parser of integers from ``least`` to ``most``; ``where`` says what sets that limit."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{_short(text)!r} is not a whole number; give {least} or more") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{_short(text)} is too small; give {least} or more")
        if value > most:
            raise argparse.ArgumentTypeError(f"{_short(text)} is too large; give {most} or less{where}")
        return value

    return read


def port(text: str) -> int:
    """Parses a port."""
    number = whole(0)(text)
    if number > 65_535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, got {text}")
    return number


def processes(text: str) -> int:
    """Parses a number of processes or threads within the machine's limit."""
    from ampnet.runtime.crew import most

    return whole(1, most(), " on this machine")(text)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_short(text)!r} is not a number; write it like 0.97") from None
    if not isfinite(value):
        raise argparse.ArgumentTypeError(f"{_short(text)} is not a finite number")
    return value


def positive(text: str) -> float:
    """Parses a finite number above zero."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is too small; give a number above 0")
    return value


def fraction(text: str) -> float:
    """Parses a number above 0 and at most 1. The error for a percentage shows the fraction."""
    value = _number(text)
    if 1 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not a fraction; for {value:g} % give {value / 100:g}")
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a fraction; give a number above 0 and at most 1, like 0.97")
    return value


def share(text: str) -> float:
    """Parses a number from 0 to below 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share; give a number from 0 up, below 1, like 0.5")
    return value


def pairs(value: Callable[[str], V]) -> Callable[[str], dict[str, V]]:
    """Returns a parser of names with values: ``embedding=1000,cell*=50``."""

    def read(text: str) -> dict[str, V]:
        found: dict[str, V] = {}
        for part in text.split(","):
            name, sign, given = (piece.strip() for piece in part.partition("="))
            if not (name and sign and given):
                raise argparse.ArgumentTypeError(f"{part!r} is no name with a value; write it like embedding=1000")
            if name in found:
                raise argparse.ArgumentTypeError(f"{name} is there twice")
            found[name] = value(given)
        return found

    return read


def file_to_write(text: str) -> Path:
    """Parses the path of a file that can be written, checked before the training starts."""
    path = Path(text)
    try:
        check_output(path)
    except OutputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def file_to_read(text: str) -> Path:
    """Parses the path of an existing file."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder; give a file")
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be read")
    return path
