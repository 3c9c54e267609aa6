"""Fetching a data set: nothing is in its place before it is whole, and nothing half-written stays.

    place/.mnist.part-4711/fetched0/    what came over the wire, its length checked
                          /files0/      what it was turned into
    verify the files: checksums, or, where the source has no known ones, every record
    rename them into place/mnist/

A second copy of the program does not disturb the first: each has a folder of its own. The folder goes away whatever
happens; that of a process that was killed goes away with the next fetch.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from ampnet.data.check import compare, note
from ampnet.data.dataset import load
from ampnet.data.entry import Entry
from ampnet.data.files import PACKED, BadFile
from ampnet.data.places import read_folder
from ampnet.errors import DataError

TIMEOUT = 30.0
"""Seconds without a byte after which a server is given up."""
CHUNK = 1 << 16
Progress = Callable[[str, int, int | None], None]
"""Told of every piece that arrives: (address, bytes so far, bytes in all, if the server said so)."""


def fetch(
    entry: Entry,
    place: Path,
    *,
    base_url: str | None = None,
    data_dir: Path | None = None,
    progress: Progress = lambda address, have, total: None,
) -> str:
    """Fetch a data set into its folder under ``place``; returns how it was verified.

    ``base_url`` takes the place of the addresses that the catalogue knows: names are put after it. ``data_dir`` is
    where other data sets are looked for, if this one is made with the help of them.
    """
    source = entry.source
    if source is None:
        raise DataError(f"{entry.name} is generated: there is nothing to get")
    bases = source.bases if base_url is None else (base_url if base_url.endswith("/") else f"{base_url}/",)
    if not bases:
        raise DataError(
            f"{entry.name} cannot be fetched: its source must be converted first. Put the file into "
            f"{place / entry.folder}, or give --base-url, an address where somebody has it.\n{entry.by_hand}"
        )
    for name in source.needs:
        load(name, data_dir)  # before hundreds of megabytes come for nothing
    with _part(entry, place) as part:
        faults = []
        for number, base in enumerate(bases):
            fetched, files = part / f"fetched{number}", part / f"files{number}"
            try:
                for name in source.names:
                    download(base + name, fetched / name, progress)
                files.mkdir()
                (source.convert or _keep)(fetched, files, data_dir)
                how = _verify(entry, files, source.exact)
            except BadFile as error:
                fault = str(error).replace(f"{fetched}/", base).replace(f"{files}/", "").replace(f"{files}", "it")
                faults.append(fault if base in fault else f"{base}: {fault}")
            else:
                _move(files, place / entry.folder)
                return how
    raise DataError(
        f"{entry.name}: {'; '.join(faults)}. Nothing was kept: try again, give another address with --base-url, or put "
        f"the files into {place / entry.folder}: {', '.join(file.path for file in entry.files)}"
    )


def _keep(fetched: Path, files: Path, data_dir: Path | None) -> None:
    files.rmdir()
    fetched.rename(files)


def _verify(entry: Entry, files: Path, exact: bool) -> str:
    """Read everything; returns how it is known to be right."""
    for options in entry.variants:
        read_folder(entry, files, **options)
    try:
        compare(entry, files)
    except BadFile:
        if exact:
            raise
        note(entry, files)
        return "by reading every record (the source has no sha256 that is known)"
    return "by sha256"


def download(address: str, target: Path, progress: Progress) -> None:
    """Fetch one file. Anything but the whole of it is a `BadFile`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    have = 0
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, target.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) if length is not None and length.isdecimal() else None
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(address, have, total)
    except urllib.error.HTTPError as error:
        error.close()
        raise BadFile(f"{address}: the server answered {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        got = f" after {have:,} bytes" if have else ""
        raise BadFile(f"{address}: cannot be fetched{got} ({reason})") from error
    if total is not None and have != total:
        raise BadFile(f"{address}: it ended after {have:,} of {total:,} bytes")


@contextlib.contextmanager
def _part(entry: Entry, place: Path) -> Iterator[Path]:
    """A folder to work in, on the disk of the place, that goes away whatever happens."""
    new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    for left in place.glob(f".{entry.name}.part-*"):
        if not _alive(left.name.rpartition("-")[2]):
            shutil.rmtree(left, ignore_errors=True)
    part = place / f".{entry.name}.part-{os.getpid()}"
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if new:
            with contextlib.suppress(OSError):  # it is not empty: all went well
                place.rmdir()


def _alive(pid: str) -> bool:
    """Whether a process of that number works on this machine. Ours has only just begun."""
    if pid == str(os.getpid()):
        return False
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        return True
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    return True


def _move(files: Path, folder: Path) -> None:
    """Rename every file into its place. A file of the same name, packed in another way, would hide it: it goes."""
    for path in sorted(p for p in files.rglob("*") if p.is_file()):
        target = folder / path.relative_to(files)
        target.parent.mkdir(parents=True, exist_ok=True)
        bare = target.with_suffix("") if target.suffix in PACKED else target
        os.replace(path, target)
        for other in (bare, *(Path(f"{bare}{ending}") for ending in PACKED)):
            if other != target:
                other.unlink(missing_ok=True)
