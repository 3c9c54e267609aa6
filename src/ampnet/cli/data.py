"""``ampnet data``: lists, downloads and verifies the data sets.

    ampnet data list             all data sets, and where each was found
    ampnet data get NAME         download the data of a workload into the cache (or --data-dir), verified first
    ampnet data check [NAME]     verify: checksums, every record, counts

Exit codes: 0 on success; 1 if a file is damaged or could not be downloaded, or if a data set given by name is missing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampnet.cli.options import Parser
from ampnet.errors import DataError
from ampnet.experiments.described import DESCRIBED

if TYPE_CHECKING:
    from ampnet.data.entry import Entry

HELP = "folder to search for data sets first, before $AMPNET_DATA, ../shared/data and the cache (default: none)"
OTHERS = ("glove", "wordvec300", "babi15-en", "babi15-en-10k", "babi15-symbolic")
"""Data sets that are not the data of one workload: word vectors, and the original forms of bAbI."""
NAMES = (*DESCRIBED, *OTHERS)


def folder(text: str) -> Path:
    """Returns an existing folder."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path}")
    return path


def folder_to_fill(text: str) -> Path:
    """Returns an existing folder, or the path of one to create."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path} is not a folder")
    return path


def address(text: str) -> str:
    """Returns a base URL to download files from."""
    if not text.startswith(("http://", "https://", "file://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not an address; write it like https://host/folder")
    return text


def add_parser(commands: Any, common: Parser) -> None:
    """Add the command, with a parser for each subcommand."""
    about = "list, download and verify data sets"
    parser = commands.add_parser("data", help=about, description=f"{about.capitalize()}.")
    parser.set_defaults(parser=parser)
    actions = parser.add_subparsers(title="actions", dest="action", metavar="ACTION")

    def add(name: str, about: str, run: Any, description: str = "") -> Parser:
        action: Parser = actions.add_parser(
            name, parents=[common], help=about, description=description or f"{about.capitalize()}."
        )
        action.set_defaults(parser=action, run=run, unwinds=True)
        return action

    listing = add("list", "list the data sets and where they were found", run_list)
    listing.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)
    getting = add(
        "get",
        "download the data of a workload",
        run_get,
        "Download the data of a workload, or another data set. The files are verified before they are put in place; if "
        "anything fails, nothing is kept.",
    )
    name: dict[str, Any] = {"choices": NAMES, "metavar": "NAME"}
    getting.add_argument("name", help=f"a workload ({', '.join(DESCRIBED)}), or one of {', '.join(OTHERS)}", **name)
    getting.add_argument(
        "--data-dir", type=folder_to_fill, metavar="DIR", help="write to a folder in DIR (default: the cache)"
    )
    getting.add_argument(
        "--base-url", type=address, metavar="URL", help="download from URL (default: the official source)"
    )
    checking = add("check", "verify data sets: checksums, every record, counts", run_check)
    checking.add_argument(
        "name", nargs="?", help="workload or data set, as for 'get' (default: all that are found)", **name
    )
    checking.add_argument("--data-dir", type=folder, metavar="DIR", help=HELP)


def run_list(args: argparse.Namespace) -> int:
    """Print a line for each data set, then the folders that were searched."""
    from ampnet.data.catalog import ENTRIES
    from ampnet.data.check import look
    from ampnet.data.places import places

    width = max(len(entry.called) for entry in ENTRIES.values()) + 2
    for entry in ENTRIES.values():
        state = look(entry, args.data_dir)
        counts = " / ".join(f"{count:,} {split}" for split, count in entry.counts.items())
        print(f"{entry.called:{width}}{entry.about}")
        print(f"{'':{width}}{counts}")
        print(f"{'':{width}}{state.verdict}{'' if state.verdict == 'generated' else f': {state.sentence}'}")
    print("looked for in:")
    for place in places(args.data_dir):
        print(f"  {place.path} ({place.why}){'' if place.path.is_dir() else ': no such folder'}")
    return 0


def run_get(args: argparse.Namespace) -> int:
    """Download a data set, unless it exists and is intact."""
    from ampnet.data.check import check, check_folder
    from ampnet.data.fetch import fetch
    from ampnet.data.places import cache, locate, missing

    entry = _entry(args.name)
    if entry is None or not entry.files:
        print(f"{args.name} is generated: there is nothing to get")
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
        print(f"{args.name} is here and whole: {state.sentence}")
        return 0
    how = fetch(entry, place, base_url=args.base_url, data_dir=args.data_dir, progress=_Progress())
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    print(f"{args.name}: fetched into {target}, verified {how}")
    first = locate(entry, args.data_dir)
    if first is not None and first.resolve() != target.resolve():
        print(f"note: {first} comes first and is not whole; remove its files, or give --data-dir {place}")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Print a line for each data set that is found, or for the given one."""
    from ampnet.data.catalog import ENTRIES
    from ampnet.data.check import check

    entry = None if args.name is None else _entry(args.name)
    if args.name is not None and entry is None:
        print(f"{args.name}  generated   needs no files")
        return 0
    entries = list(ENTRIES.values()) if entry is None else [entry]
    width = max(len(entry.called) for entry in entries) + 2
    damaged = 0
    for entry in entries:
        state = check(entry, args.data_dir)
        wrong = state.verdict in ("damaged", "incomplete")
        if args.name is not None and (wrong or state.verdict == "missing"):
            raise DataError(state.sentence if wrong else f"{entry.called}: not found; {state.sentence}")
        damaged += wrong
        print(f"{entry.called:{width}}{state.verdict:12}{state.sentence}", flush=True)
    if damaged:
        raise DataError(f"{damaged} of {len(ENTRIES)} data sets {'is' if damaged == 1 else 'are'} not whole")
    return 0


def _entry(name: str) -> Entry | None:
    """Returns the data set of a name on the command line; None: a workload that generates its data."""
    from ampnet.data.catalog import ENTRIES

    return next((entry for entry in ENTRIES.values() if entry.called == name), None)


class _Progress:
    """Shows a download: on a terminal one line that is rewritten, elsewhere one line per file."""

    def __init__(self) -> None:
        self.name, self.since, self.shown = "", 0.0, 0.0

    def __call__(self, name: str, have: int, total: int | None) -> None:
        """Called for every block that arrives, and with (data set, 0, None) before the files are converted."""
        now, terminal = time.monotonic(), sys.stderr.isatty()
        new = name != self.name
        if new:
            self.name, self.since = name, now
        if not new and (not terminal or (now - self.shown < 0.1 and have != total)):
            return
        self.shown = now
        text = f"{name}: reading and converting"
        if have and terminal:
            rate = have / max(now - self.since, 0.1)
            whole = f" of {total / 1e6:.1f}" if total else ""
            left = f", {(total - have) / rate:.0f} s left" if total else ""
            text = f"{name}: {have / 1e6:.1f}{whole} MB, {rate / 1e6:.1f} MB/s{left}"
        elif have:
            text = f"fetching {name}" + (f" ({total / 1e6:.1f} MB)" if total else "")
        print(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
