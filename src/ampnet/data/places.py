"""The folders that are searched for data sets. A data set is read from the first place that has a file of it.

    1  the given folder                   --data-dir, or load(..., data_dir=...)
    2  $AMPNET_DATA
    3  ../shared/data                     beside the current folder, then beside the checkout of this repository
    4  $XDG_CACHE_HOME/ampnet             or ~/.cache/ampnet; `ampnet data get` writes here

Every data set has its own folder in a place (`mnist/`, `sst/`, ...). Files of one data set are never taken from two
places: a folder with only some of them is an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampnet.data.dataset import Dataset
from ampnet.data.entry import Entry
from ampnet.data.files import BadFile, find
from ampnet.errors import DataError

SHARED = Path("../shared/data")
CHECKOUT = Path(__file__).parents[3]
"""The checkout of this repository, if the package runs from one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder of data sets, and why it is searched."""

    path: Path
    why: str


def cache() -> Path:
    """Returns the folder that `ampnet data get` writes to."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ampnet"


def places(data_dir: str | Path | None = None) -> list[Place]:
    """Returns all places, in the order of the search; each only once."""
    out = []
    if data_dir is not None:
        out.append(Place(Path(data_dir), "--data-dir"))
    if given := os.environ.get("AMPNET_DATA"):
        out.append(Place(Path(given), "$AMPNET_DATA"))
    out.append(Place(SHARED, "beside the current folder"))
    if (CHECKOUT / "pyproject.toml").is_file():
        out.append(Place(CHECKOUT.parent / SHARED.relative_to(".."), "beside the checkout"))
    out.append(Place(cache(), "cache"))
    once: dict[Path, Place] = {}
    for place in out:
        once.setdefault(place.path.resolve(), place)
    return list(once.values())


def missing(entry: Entry, folder: Path) -> list[str]:
    """Returns the files that a folder lacks."""
    return [file.path for file in entry.files if find(folder, file.path) is None]


def locate(entry: Entry, data_dir: str | Path | None = None) -> Path | None:
    """Returns the folder of a data set in the first place that has a file of it; None if there is none."""
    for place in places(data_dir):
        folder = place.path / entry.folder
        if len(missing(entry, folder)) < len(entry.files):
            return folder
    return None


def read(entry: Entry, data_dir: str | Path | None = None, **options: Any) -> Dataset[Any]:
    """Find and read a data set."""
    if not entry.files:
        return entry.read(None, **options)
    folder = locate(entry, data_dir)
    if folder is None:
        looked = ", ".join(str(place.path / entry.folder) for place in places(data_dir))
        raise DataError(f"{entry.name}: not found in {looked}; {entry.remedy}")
    try:
        return read_folder(entry, folder, **options)
    except BadFile as error:
        raise DataError(entry.complaint(error)) from error


def read_folder(entry: Entry, folder: Path, **options: Any) -> Dataset[Any]:
    """Read a data set from its folder, and count its records: a truncated text may look complete.

    Raises `BadFile` for a missing or damaged file.
    """
    if lacking := missing(entry, folder):
        raise BadFile(f"{folder} lacks {', '.join(lacking)}")
    try:
        data = entry.read(folder, **options)
    except OSError as error:
        raise BadFile(str(error)) from error
    for split, wanted in entry.counts.items():
        if len(data.splits[split]) != wanted:
            raise BadFile(
                f"{folder}, split '{split}': it has {len(data.splits[split]):,} records, there must be {wanted:,}; a "
                f"file was cut, or is another edition"
            )
    return data
