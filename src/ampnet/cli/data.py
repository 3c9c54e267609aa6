"""``ampnet data``: the data sets, where they are, and whether they are whole.

    ampnet data list             what there is, and where each was found
    ampnet data get NAME         fetch it into the cache (or --data-dir), verified before it is in its place
    ampnet data check [NAME]     read everything: checksums, records, counts

Exit codes: 0 if all is well; 1 if something is damaged or could not be fetched, or if a data set that was asked for by
name is not there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ampnet.cli.options import Parser
from ampnet.errors import DataError

HELP = "look here first; then $AMPNET_DATA, ../shared/data and the cache (default: none)"


def folder(text: str) -> Path:
    """A folder that is there."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path}")
    return path


def folder_to_fill(text: str) -> Path:
    """A folder, or the name of one to make."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is not a folder")
    return path


def known(text: str) -> str:
    """The name of a data set."""
    from ampnet.data.catalog import entry_of

    try:
        return entry_of(text).name
    except DataError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def address(text: str) -> str:
    """Where files can be fetched from."""
    if not text.startswith(("http://", "https://", "file://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; write it like https://host/folder")
    return text


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command, and under it one parser for each thing to do."""
    about = "list, get and check data sets"
    parser = commands.add_parser("data", help=about, description="The data sets: list, get and check them.")
    parser.set_defaults(parser=parser)
    actions = parser.add_subparsers(title="what to do", dest="action", metavar="ACTION")

    def add(name: str, about: str, run: Any, description: str = "") -> Parser:
        action: Parser = actions.add_parser(
            name, parents=[common], help=about, description=description or f"{about.capitalize()}."
        )
        action.set_defaults(parser=action, run=run)
        return action

    listing = add("list", "show what there is, and where it was found", run_list)
    listing.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)
    getting = add(
        "get",
        "fetch a data set",
        run_get,
        "Fetch a data set. It is verified before it is put in its place; if anything fails, nothing is kept.",
    )
    getting.add_argument("name", type=known, metavar="NAME", help="as 'ampnet data list' shows it")
    getting.add_argument(
        "--data-dir", type=folder_to_fill, metavar="DIR", help="put it into DIR/NAME (default: the cache)"
    )
    getting.add_argument(
        "--base-url", type=address, metavar="URL", help="fetch the files from URL (default: the official source)"
    )
    checking = add("check", "read everything: checksums, records, counts", run_check)
    checking.add_argument(
        "name", type=known, nargs="?", metavar="NAME", help="one data set (default: all that are found)"
    )
    checking.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)


def run_list(args: argparse.Namespace) -> int:
    """Print a line for each data set, then where they were looked for."""
    from ampnet.data.catalog import ENTRIES
    from ampnet.data.check import look
    from ampnet.data.places import places

    width = max(map(len, ENTRIES)) + 2
    for entry in ENTRIES.values():
        state = look(entry, args.data_dir)
        counts = " / ".join(f"{count:,} {split}" for split, count in entry.counts.items())
        print(f"{entry.name:{width}}{entry.about}")
        print(f"{'':{width}}{counts}")
        print(f"{'':{width}}{state.verdict}{'' if state.verdict == 'generated' else f': {state.sentence}'}")
    print("looked for in:")
    for place in places(args.data_dir):
        print(f"  {place.path} ({place.why}){'' if place.path.is_dir() else ': no such folder'}")
    return 0


def run_get(args: argparse.Namespace) -> int:
    """Fetch a data set, unless it is there and whole."""
    from ampnet.data.catalog import entry_of
    from ampnet.data.check import check, check_folder
    from ampnet.data.fetch import fetch
    from ampnet.data.places import cache, locate, missing

    entry = entry_of(args.name)
    if not entry.files:
        print(f"{entry.name} is generated: there is nothing to get")
        return 0
    place: Path = args.data_dir or cache()
    target = place / entry.folder
    if args.data_dir is None:
        state = check(entry)
    elif not missing(entry, target):
        state = check_folder(entry, target)
    else:
        state = None
    if state is not None and state.verdict == "whole":
        print(f"{entry.name} is here and whole: {state.sentence}")
        return 0
    how = fetch(entry, place, base_url=args.base_url, data_dir=args.data_dir, progress=_progress)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{entry.name}: fetched into {target}, verified {how}")
    first = locate(entry, args.data_dir)
    if first is not None and first.resolve() != target.resolve():
        print(f"note: {first} comes first and is not whole; remove its files, or give --data-dir {place}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Print a line for each data set that is found, or for the one that was asked for."""
    from ampnet.data.catalog import ENTRIES, entry_of
    from ampnet.data.check import check

    entries = ENTRIES.values() if args.name is None else [entry_of(args.name)]
    width = max(len(entry.name) for entry in entries) + 2
    damaged = 0
    for entry in entries:
        state = check(entry, args.data_dir)
        wrong = state.verdict in ("damaged", "incomplete")
        if args.name is not None and (wrong or state.verdict == "missing"):
            raise DataError(state.sentence if wrong else f"{entry.name}: not found; {state.sentence}")
        damaged += wrong
        print(f"{entry.name:{width}}{state.verdict:12}{state.sentence}", flush=True)
    if damaged:
        raise DataError(f"{damaged} of {len(ENTRIES)} data sets {'is' if damaged == 1 else 'are'} not whole")
    return 0


def _progress(address: str, have: int, total: int | None) -> None:
    """One line that is written over; only for eyes."""
    if sys.stderr.isatty():
        of = f" of {total / 1e6:.1f}" if total else ""
        print(f"\r\033[K{address.rpartition('/')[2]}: {have / 1e6:.1f}{of} MB", end="", file=sys.stderr, flush=True)
