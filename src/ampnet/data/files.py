"""The files of a data set: finds them, packed or not, reads them, and reports damage.

A truncated file is read to its end, so that the error can name the truncated record.
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
"""Functions that open a file with each suffix."""
CHUNK = 1 << 18
LARGEST = 1 << 30
"""The maximal number of bytes of an unpacked file: a small archive can unpack to more than fits into memory."""
NEWLINE = b"\n"
LONG = 500
"""The maximal length of a fault in a message."""


class BadFile(DataError):
    """A file of a data set is damaged, truncated, or the wrong file."""


def find(folder: Path, name: str) -> Path | None:
    """Returns the path of a file, plain or packed; None if it does not exist."""
    for ending in ("", *PACKED):
        path = folder / (name + ending)
        if path.is_file():
            return path
    return None


def need(folder: Path, name: str) -> Path:
    """Returns the path of a file, plain or packed; raises `BadFile` if it does not exist."""
    path = find(folder, name)
    if path is None:
        raise BadFile(f"{folder / name}: there is no such file, packed or not")
    return path


def unpack(path: Path) -> tuple[bytearray, str | None]:
    """Returns the contents that could be read, and the fault that ended them, or None."""
    data = bytearray()
    fault = None
    try:
        with PACKED.get(path.suffix, open)(path, "rb") as file:
            while chunk := file.read1(CHUNK):
                data += chunk
                if len(data) > LARGEST:
                    return data, f"it unpacks to more than {LARGEST:,} bytes"
    except EOFError:
        fault = f"the {path.suffix} file ends too early"
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        fault = f"it cannot be unpacked ({error})"
    return data, fault


def lines(path: Path, unit: str = "line") -> list[str]:
    """Returns the lines of a text, without newlines. The text must be complete, UTF-8, and end with a newline."""
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
    """Returns arrays of an npz file, by name. Nothing in it is unpickled."""
    out: dict[str, np.ndarray] = {}
    with path.open("rb") as raw:
        try:
            with np.load(raw, allow_pickle=False) as file:
                if not isinstance(file, np.lib.npyio.NpzFile):
                    raise broken(path, "", "not an npz file")
                if file.zip is not None and sum(one.file_size for one in file.zip.infolist()) > LARGEST:
                    raise broken(path, "", f"it unpacks to more than {LARGEST:,} bytes")
                for name in fields:
                    if name not in file.files:
                        raise broken(path, "", f"it has no field '{name}'; there are: {', '.join(file.files)}")
                    out[name] = file[name]
        except BadFile:
            raise
        except Exception as error:  # damaged bytes raise many kinds of errors in zipfile and numpy
            where = f"field '{fields[len(out)]}'" if out else ""
            what = " ".join(str(error).split()) or type(error).__name__
            raise broken(path, where, f"cut short or damaged ({what})") from error
    return out


def refuse_unsafe(path: Path, names: Iterable[str]) -> None:
    """Raise `BadFile` for an archive with a member whose name leads out of the target folder.

    Nothing is ever written under a name from an archive; but such an archive is not the expected one.
    """
    for name in names:
        if name.startswith("/") or ".." in name.split("/") or "\\" in name:
            raise broken(path, f"member {name!r}", "its name leads out of the archive; nothing was unpacked")


def sha256(path: Path) -> str:
    """Returns the checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def contents_sha256(path: Path, fields: Sequence[str] = ()) -> str:
    """Returns the checksum of a file's unpacked contents; for an npz file, of the arrays ``fields``, each with its
    name, type and shape.

    Raises `BadFile` for a file that cannot be unpacked.
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
    """Returns the error of a file, with its path, the record and the fault. Text of the file in it is escaped."""
    said = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in what)
    said = said if len(said) <= LONG else f"{said[:LONG]}..."
    return BadFile(f"{path}{', ' if where else ''}{where}: {said}")
