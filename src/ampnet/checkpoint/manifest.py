"""The manifest of a checkpoint: what it consists of. It is written last, so a checkpoint without one was not finished.

    {
     "ampnet": "0.1.0",             the version that wrote it
     "digest": "5e0c...",           of this text without the digest
     "files": {"data.json": {"sha256": "...", "size": 513}, "tensors.safetensors": {...}},
     "format": 1,
     "kind": "ampnet checkpoint",
     "number": 123,
     "time": "2026-11-16T11:42:07+00:00",
     "torch": "2.13.0"
    }

The text has one spelling: sorted keys, one space. Reading writes it again and compares, so that no byte of it can
change unnoticed. A checkpoint in a newer format is refused by the versions, before anything else is looked at.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ampnet._version import __version__
from ampnet.checkpoint.contents import contents
from ampnet.checkpoint.plain import loads
from ampnet.errors import CheckpointError

NAME, TENSORS, DATA = "manifest.json", "tensors.safetensors", "data.json"
"""The files of a checkpoint."""
KIND, FORMAT = "ampnet checkpoint", 1
LARGEST = 1 << 16
"""The largest manifest, in bytes."""
TEXTS = ("ampnet", "kind", "time", "torch")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a checkpoint."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a manifest."""

    number: int
    time: str
    """When it was written, in ISO 8601."""
    torch: str
    """The version of torch that wrote it."""
    files: Mapping[str, FileEntry]
    ampnet: str = __version__

    def render(self) -> bytes:
        """Returns the text of the file."""
        fields: dict[str, Any] = {
            "kind": KIND,
            "format": FORMAT,
            "ampnet": self.ampnet,
            "torch": self.torch,
            "number": self.number,
            "time": self.time,
            "files": {name: {"size": e.size, "sha256": e.sha256} for name, e in self.files.items()},
        }
        return _text(fields | {"digest": hashlib.sha256(_text(fields)).hexdigest()})


def entry(data: bytes) -> FileEntry:
    """Returns the entry of a file with these bytes."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def read_manifest(folder: Path) -> Manifest:
    """Returns the manifest of a checkpoint. Raises `CheckpointError` if there is none, or not of this format."""
    path = folder / NAME
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: {'not a folder' if folder.exists() else 'there is no such folder'}")
    if not path.exists():
        raise CheckpointError(f"{folder}: not a checkpoint, or one that was not finished: it has no {NAME}")
    data = contents(path, largest=LARGEST)
    found = loads(data, path)
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise CheckpointError(f"{path}: not the manifest of an ampnet checkpoint")
    if type(number := found.get("format")) is int and number > FORMAT:
        raise CheckpointError(
            f"{path}: written by ampnet {found.get('ampnet')}, format {number}; this is ampnet {__version__}, which "
            f"reads format {FORMAT}"
        )
    manifest = _checked(found, path)
    if manifest.render() != data:
        raise CheckpointError(f"{path}: damaged: it does not have the digest it was written with")
    return manifest


def _checked(found: Mapping[str, Any], path: Path) -> Manifest:
    """Returns the manifest of fields that have the right types; the digest is not looked at."""
    for name in TEXTS:
        if not isinstance(found.get(name), str):
            raise CheckpointError(f"{path}: damaged: '{name}' is {_shown(found.get(name))} and no text")
    number, files = found.get("number"), found.get("files")
    if type(number) is not int or number < 0:
        raise CheckpointError(f"{path}: damaged: 'number' is {_shown(number)}")
    if not isinstance(files, dict) or set(files) != {TENSORS, DATA}:
        raise CheckpointError(f"{path}: damaged: 'files' does not list {TENSORS} and {DATA}")
    entries = {}
    for name, one in files.items():
        size, sha256 = (one.get("size"), one.get("sha256")) if isinstance(one, dict) else (None, None)
        if type(size) is not int or size < 0 or not isinstance(sha256, str) or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise CheckpointError(f"{path}: damaged: size or sha256 of {name}")
        entries[name] = FileEntry(size, sha256)
    return Manifest(number, found["time"], found["torch"], entries, found["ampnet"])


def _shown(value: Any) -> str:
    return repr(value)[:40]


def _text(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()
