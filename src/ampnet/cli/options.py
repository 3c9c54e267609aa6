"""Options of the command line: types that validate values before any work starts.

A bad value ends the command with exit code 2 and one line that names the option and the remedy:

    ampnet train list-reduction: --target: 97 is not a fraction; for 97 % give 0.97
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ampnet.errors import nearest

V = TypeVar("V")


class UsageError(Exception):
    """The command line is wrong. The message is printed as one line."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`, with the nearest known name. It accepts no abbreviations: they would
    break when options are added."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

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


def whole(least: int) -> Callable[[str], int]:
    """Returns a parser of integers that are at least ``least``."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number; give {least} or more") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small; give {least} or more")
        return value

    return read


def processes(text: str) -> int:
    """Parses a number of processes or threads within the machine's limit."""
    from ampnet.runtime.crew import most

    value = whole(1)(text)
    if value > most():
        raise argparse.ArgumentTypeError(f"{value} is too large; give {most()} or less on this machine")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; write it like 0.97") from None
    if not isfinite(value):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number")
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
    folder = path.parent
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {folder}; make it first, or give another file")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is a folder; give a file in it")
    if path.exists() and not path.is_file():  # it would be replaced by a rename: also /dev/null
        raise argparse.ArgumentTypeError(f"{path} is no regular file; give another one")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise argparse.ArgumentTypeError(f"{path} cannot be written; give a file in a folder of yours")
    return path


def file_to_read(text: str) -> Path:
    """Parses the path of an existing file."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {path}")
    if not os.access(path, os.R_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be read")
    return path
