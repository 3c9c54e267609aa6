"""An entry of the catalogue: what there is to know of a data set before it is read.

    Entry ── files      what must be there, with the checksum of each
          ── counts     what must be in there
          ── read       the way from its folder to a `Dataset`
          ── source     where `ampnet data get` fetches it, and how it becomes the files

A checksum is that of a file's contents, unpacked: `train.txt`, `train.txt.gz` and `train.txt.xz` are the same file to
us, so a copy that was packed again is as good as the original. The contents of an npz file are its arrays.

What is fetched has a checksum of its own (`Remote.sha256`), that of the archive as its server has it. Where none is
known, the files that are made from it must have the checksums of the catalogue (``exact``), or they are read and
counted, and their checksums noted for later (trust on first use).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampnet.data.dataset import Dataset

Convert = Callable[[Path, Path, Path | None], None]
"""Makes a data set's files: (folder of what was fetched, folder to write to, the ``--data-dir``)."""


@dataclass(frozen=True)
class File:
    """A file of a data set."""

    path: str
    """Within the data set's folder, without the ending of its packing."""
    sha256: str
    """Of its contents, unpacked."""
    fields: tuple[str, ...] = ()
    """Of an npz file: the arrays that are its contents; others may be there."""


@dataclass(frozen=True)
class Remote:
    """A file to fetch."""

    name: str
    path: str = ""
    """What follows the base in its address; empty: its name."""
    sha256: str = ""
    """Of the file as it is on the server; empty: not known."""
    size: int = 0
    """Bytes; 0: not known."""


@dataclass(frozen=True)
class Source:
    """Where a data set comes from."""

    remotes: tuple[Remote, ...]
    """What to fetch."""
    bases: tuple[str, ...] = ()
    """What to put before each path for its address; tried in turn. None: it cannot be fetched without --base-url."""
    convert: Convert | None = None
    """None: what is fetched are the files."""
    exact: bool = True
    """Whether the files must have the known checksums. Otherwise they are read and counted, and what was fetched is
    noted in ``NAME.sha256``."""
    needs: tuple[str, ...] = ()
    """Other data sets, without which the files cannot be made."""


@dataclass(frozen=True)
class Entry:
    """A data set, as the catalogue knows it."""

    name: str
    about: str
    """In one line."""
    read: Callable[..., Dataset[Any]]
    """Of its folder (None if it is generated) and options."""
    folder: str = ""
    """Within a place. Empty: it is generated, and has no files."""
    files: tuple[File, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records of each split."""
    source: Source | None = None
    by_hand: str = ""
    """What to do where `get` cannot help."""
    licence: str = ""
    variants: tuple[Mapping[str, Any], ...] = ({},)
    """Options of ``read`` that together read every file."""
    workload: str = ""
    """The workload that it belongs to, if that has another name. The command line takes the workload's name."""

    @property
    def called(self) -> str:
        """Its name on the command line."""
        return self.workload or self.name

    @property
    def remedy(self) -> str:
        """How to come by it, for the end of an error."""
        can_get = self.source is not None and self.source.bases
        return f"'ampnet data get {self.called}' {'fetches it' if can_get else 'says how to make it'}"

    def complaint(self, fault: object) -> str:
        """What is wrong, for the eyes of who has to mend it."""
        return f"{self.name}: {fault}; {self.remedy}"
