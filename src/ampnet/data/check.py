"""Check: verifies that a data set is whole: all files exist, checksums match, every record can be read.

    generated     it needs no files
    missing       no place has a file of it
    incomplete    a place has some of its files
    here          a place has all of its files (nothing was read)
    whole         checksums are right, every record was read, and there are as many as there must be
    damaged       one of these fails; the sentence names the file and, if known, the record

A checksum is compared with that of the catalogue, or with the one recorded when `ampnet data get` downloaded the file
and had read every record of it (``NAME.sha256`` beside the files, in the format of ``sha256sum``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ampnet.data.entry import Entry
from ampnet.data.files import BadFile, broken, contents_sha256, find, sha256
from ampnet.data.places import locate, missing, read_folder

Verdict = Literal["generated", "missing", "incomplete", "here", "whole", "damaged"]


@dataclass(frozen=True, slots=True)
class State:
    """The state of a data set on this machine."""

    verdict: Verdict
    folder: Path | None
    sentence: str
    """What was found, or the fault and its remedy."""


def look(entry: Entry, data_dir: str | Path | None = None) -> State:
    """Returns whether its files exist. Reads nothing."""
    if not entry.files:
        return State("generated", None, "needs no files")
    folder = locate(entry, data_dir)
    if folder is None:
        return State("missing", None, entry.remedy)
    if lacking := missing(entry, folder):
        return State("incomplete", folder, entry.complaint(f"{folder} lacks {', '.join(lacking)}"))
    return State("here", folder, str(folder))


def check(entry: Entry, data_dir: str | Path | None = None) -> State:
    """Returns whether it is whole. Reads everything."""
    state = look(entry, data_dir)
    return state if state.verdict != "here" or state.folder is None else check_folder(entry, state.folder)


def check_folder(entry: Entry, folder: Path) -> State:
    """Check a folder that has all files."""
    try:
        for options in entry.variants:  # first: this error names the record
            read_folder(entry, folder, **options)
        compare(entry, folder)
    except BadFile as error:
        return State("damaged", folder, entry.complaint(error))
    counts = ", ".join(f"{count:,} {split}" for split, count in entry.counts.items())
    files = f"{len(entry.files)} files" if len(entry.files) > 1 else "1 file"
    return State("whole", folder, f"{folder} ({files}: {counts})")


def compare(entry: Entry, folder: Path) -> None:
    """Compare the checksums of all files; raises `BadFile` for a wrong one."""
    listed = noted(entry, folder)
    for name, wanted in listed.items():
        if not (folder / name).is_file():
            raise broken(folder / name, "", f"listed in {entry.name}.sha256, but not there")
        if (have := sha256(folder / name)) != wanted:
            raise broken(folder / name, "", f"its sha256 is {have}; when it was fetched, it was {wanted}")
    for file in entry.files:
        path = find(folder, file.path)
        if path is None or str(path.relative_to(folder)) in listed:
            continue
        have = contents_sha256(path, file.fields)
        if have != file.sha256:
            raise broken(path, "", f"the sha256 of its contents is {have}, must be {file.sha256}")


def noted(entry: Entry, folder: Path) -> dict[str, str]:
    """Returns the checksums recorded at the download, by file."""
    path = folder / f"{entry.name}.sha256"
    if not path.is_file():
        return {}
    out = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        value, _, name = line.partition("  ")
        if len(value) != 64 or not name:
            raise broken(path, f"line {number}", "not a checksum, two spaces and the name of a file")
        out[name] = value
    return out


def note(entry: Entry, folder: Path) -> None:
    """Record the checksums of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    text = "".join(f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files)
    (folder / f"{entry.name}.sha256").write_text(text, encoding="utf-8")
