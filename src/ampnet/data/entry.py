"""An entry of the catalogue: the description of a data set.

    Entry ── files      the required files, with the checksum of each
          ── counts     the required numbers of records
          ── read       reads a `Dataset` from its folder
          ── source     where `ampnet data get` downloads it, and how it is converted to the files

A checksum is that of a file's unpacked contents: `train.txt`, `train.txt.gz` and `train.txt.xz` count as the same file,
so a repacked copy is as good as the original. The contents of an npz file are its arrays.

A download has its own checksum (`Remote.sha256`), that of the archive on its server. If it is unknown, the files made
from the download must have the checksums of the catalogue (``exact``), or they are read and counted, and their
checksums recorded for later (trust on first use).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampnet.data.dataset import Dataset

Convert = Callable[[Path, Path, Path | None], None]
"""Makes a data set's files: (folder of the download, folder to write to, the ``--data-dir``)."""


@dataclass(frozen=True)
class File:
    """A file of a data set."""

    path: str
    """The path within the data set's folder, without the suffix of a packed file."""
    sha256: str
    """The checksum of its unpacked contents."""
    fields: tuple[str, ...] = ()
    """For an npz file: the arrays in the checksum; it may have others."""


@dataclass(frozen=True)
class Remote:
    """A file to download."""

    name: str
    path: str = ""
    """The part of its address after the base; empty: its name."""
    sha256: str = ""
    """The checksum of the file on the server; empty: unknown."""
    size: int = 0
    """Its size in bytes; 0: unknown."""


@dataclass(frozen=True)
class Source:
    """The origin of a data set."""

    remotes: tuple[Remote, ...]
    """The files to download."""
    bases: tuple[str, ...] = ()
    """Base addresses, tried in turn. None: it cannot be downloaded without --base-url."""
    convert: Convert | None = None
    """Converts the download to the files; None: the download is the files."""
    exact: bool = True
    """Whether the files must have the known checksums. Otherwise they are read and counted, and their checksums are
    recorded in ``NAME.sha256``."""
    needs: tuple[str, ...] = ()
    """Other data sets that are needed to make the files."""


@dataclass(frozen=True)
class Entry:
    """The catalogue's description of a data set."""

    name: str
    about: str
    """A description in one line."""
    read: Callable[..., Dataset[Any]]
    """Reads it, from its folder (None if it is generated) and options."""
    folder: str = ""
    """Its folder within a place. Empty: it is generated, and has no files."""
    files: tuple[File, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """Records of each split."""
    source: Source | None = None
    by_hand: str = ""
    """Instructions if `get` cannot download it."""
    licence: str = ""
    variants: tuple[Mapping[str, Any], ...] = ({},)
    """Options of ``read`` that together read every file."""
    workload: str = ""
    """The workload that it belongs to, if that has another name. The command line uses the workload's name."""

    @property
    def called(self) -> str:
        """Its name on the command line."""
        return self.workload or self.name

    @property
    def remedy(self) -> str:
        """How to get it, for the end of an error message."""
        can_get = self.source is not None and self.source.bases
        return f"'ampnet data get {self.called}' {'fetches it' if can_get else 'says how to make it'}"

    def complaint(self, fault: object) -> str:
        """Returns an error message with the fault and the remedy."""
        return f"{self.name}: {fault}; {self.remedy}"
