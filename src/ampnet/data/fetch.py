"""Downloads a data set: files are moved into place only when all are verified, and no partial files remain.

    place/.mnist.part-4711/fetched0/    the download: length and sha256 compared, if they are known
                          /files0/      the converted files
    verify the files: every record is read and counted, and checksums are compared
    rename them into place/mnist/

Each process has its own temporary folder, so several do not interfere. The folder is always removed; that of a killed
process is removed at the next download.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ampnet.data.check import compare, note
from ampnet.data.dataset import load
from ampnet.data.download import Progress, download
from ampnet.data.entry import Entry
from ampnet.data.files import PACKED, BadFile
from ampnet.data.places import read_folder
from ampnet.errors import DataError


def fetch(
    entry: Entry,
    place: Path,
    *,
    base_url: str | None = None,
    data_dir: Path | None = None,
    progress: Progress = lambda address, have, total: None,
) -> str:
    """Download a data set to its folder under ``place``; returns how it was verified.

    ``base_url`` replaces the addresses of the catalogue: file names are appended to it. ``data_dir`` is searched for
    other data sets that are needed to make this one.
    """
    source = entry.source
    if source is None:
        raise DataError(f"{entry.name} is generated: there is nothing to get")
    given = None if base_url is None else base_url if base_url.endswith("/") else f"{base_url}/"
    bases = source.bases if given is None else (given,)
    if not bases:
        raise DataError(
            f"{entry.name} cannot be fetched: its source must be converted first. Put the file into "
            f"{place / entry.folder}, or give --base-url, an address that has it.\n{entry.by_hand}"
        )
    for name in source.needs:
        load(name, data_dir)  # fail before hundreds of megabytes are downloaded
    with _room(entry, place), _part(entry, place) as part:
        faults = []
        for number, base in enumerate(bases):
            fetched, files = part / f"fetched{number}", part / f"files{number}"
            try:
                for remote in source.remotes:
                    path = remote.name if given else remote.path or remote.name
                    download(base + path, fetched / remote.name, remote, progress)
                progress(entry.name, 0, None)
                files.mkdir()
                (source.convert or _keep)(fetched, files, data_dir)
                how = _verify(entry, files)
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


def _verify(entry: Entry, files: Path) -> str:
    """Read everything; returns how it was verified."""
    assert entry.source is not None
    for options in entry.variants:
        read_folder(entry, files, **options)
    try:
        compare(entry, files)
    except BadFile:
        if entry.source.exact:
            raise
        note(entry, files)
        if all(remote.sha256 for remote in entry.source.remotes):
            return "by the sha256 of what was fetched, and by reading every record"
        return "by reading every record (the source has no sha256 that is known)"
    return "by sha256"


@contextlib.contextmanager
def _room(entry: Entry, place: Path) -> Iterator[None]:
    """A context that converts errors of the disk to `DataError`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        what = "the disk is full" if full else str(error)
        raise DataError(
            f"{entry.name}: cannot write to {place}: {what}. Nothing was kept; give another folder with --data-dir"
        ) from error


@contextlib.contextmanager
def _part(entry: Entry, place: Path) -> Iterator[Path]:
    """Yields a temporary folder on the same disk, which is always removed."""
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
            with contextlib.suppress(OSError):  # not empty after a success
                place.rmdir()


def _alive(pid: str) -> bool:
    """Whether a process of that pid runs on this machine; False for this process, which has just begun."""
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
    """Move every file into place. A file of the same name, packed differently, would hide it and is removed."""
    for path in sorted(p for p in files.rglob("*") if p.is_file()):
        target = folder / path.relative_to(files)
        target.parent.mkdir(parents=True, exist_ok=True)
        bare = target.with_suffix("") if target.suffix in PACKED else target
        os.replace(path, target)
        for other in (bare, *(Path(f"{bare}{ending}") for ending in PACKED)):
            if other != target:
                other.unlink(missing_ok=True)
