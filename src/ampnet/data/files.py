"""The files of a data set: found, packed or not; read as far as they go; and what to say of one that is damaged.

A file that ends too early is read to where it ends, so that the error can name the record that is cut.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ampnet.errors import DataError

PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
"""How to open a file with such an ending."""
CHUNK = 1 << 18
NEWLINE = b"\n"


class BadFile(DataError):
    """A file of a data set is damaged, cut short, or not what it must be."""


def find(folder: Path, name: str) -> Path | None:
    """A file by its name, as it is or packed."""
    for ending in ("", *PACKED):
        path = folder / (name + ending)
        if path.is_file():
            return path
    return None


def need(folder: Path, name: str) -> Path:
    """The same, where it must be."""
    path = find(folder, name)
    if path is None:
        raise BadFile(f"{folder / name}: there is no such file, packed or not")
    return path


def unpack(path: Path) -> tuple[bytearray, str | None]:
    """The contents, and what is wrong with them: None, or why nothing follows after what could be read."""
    data = bytearray()
    fault = None
    try:
        with PACKED.get(path.suffix, open)(path, "rb") as file:
            while chunk := file.read1(CHUNK):
                data += chunk
    except EOFError:
        fault = f"the {path.suffix} file ends too early"
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        fault = f"it cannot be unpacked ({error})"
    return data, fault


def lines(path: Path, unit: str = "line") -> list[str]:
    """The lines of a text, without their ends. The text must be whole, UTF-8, and end with a line's end."""
    data, fault = unpack(path)
    if fault is None and data[-1:] not in (NEWLINE, b""):
        fault = "the file ends in the middle of it"
    if fault is not None:
        raise broken(path, f"{unit} {data.count(NEWLINE) + 1}", fault)
    try:
        return data.decode("utf-8").split("\n")[:-1]
    except UnicodeDecodeError as error:
        raise broken(
            path, f"{unit} {data.count(NEWLINE, 0, error.start) + 1}", f"not UTF-8 text (byte {data[error.start]:#x})"
        ) from error


def arrays(path: Path, fields: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays of an npz file, by name. Nothing in it is unpickled."""
    out: dict[str, np.ndarray] = {}
    with path.open("rb") as raw:
        try:
            with np.load(raw, allow_pickle=False) as file:
                if not isinstance(file, np.lib.npyio.NpzFile):
                    raise broken(path, "", "not an npz file")
                for name in fields:
                    if name not in file.files:
                        raise broken(path, "", f"it has no field '{name}'; there are: {', '.join(file.files)}")
                    out[name] = file[name]
        except BadFile:
            raise
        except Exception as error:  # damaged bytes make zipfile and numpy stumble in a dozen ways
            where = f"field '{fields[len(out)]}'" if out else ""
            what = " ".join(str(error).split()) or type(error).__name__
            raise broken(path, where, f"cut short or damaged ({what})") from error
    return out


def refuse_unsafe(path: Path, names: Iterable[str]) -> None:
    """Refuse an archive that has a member whose name leads out of the folder it would be unpacked into.

    Nothing is ever written under a name that an archive gives; such an archive is not what it should be.
    """
    for name in names:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name:
            raise broken(path, f"member {name!r}", "its name leads out of the archive; nothing was unpacked")


def sha256(path: Path) -> str:
    """Of a file as it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents_sha256(path: Path, fields: Sequence[str] = ()) -> str:
    """Of what a file holds, unpacked; of an npz file, of its arrays ``fields``, each after its name, type and shape.

    A file that cannot be unpacked is a `BadFile`.
    """
    if fields:
        digest = hashlib.sha256()
        for name, array in arrays(path, fields).items():
            digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()
    if path.suffix not in PACKED:
        return sha256(path)
    data, fault = unpack(path)
    if fault is not None:
        raise broken(path, f"byte {len(data):,} of its contents", fault)
    return hashlib.sha256(data).hexdigest()


def broken(path: Path, where: str, what: str) -> BadFile:
    """The error of a file: which one, which record, what is wrong."""
    return BadFile(f"{path}{', ' if where else ''}{where}: {what}")
