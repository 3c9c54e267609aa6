"""A folder of checkpoints: each of them is there whole or not at all, whenever the writer is killed.

    runs/                                       one run at a time writes here; any number may read
      checkpoint-000122/
      checkpoint-000123/
        tensors.safetensors  data.json          fsynced
        manifest.json                           sizes and hashes of both; written after them, fsynced
      .checkpoint-000124.4711-9f0c.tmp/         being written, or being removed, by process 4711
      .checkpoint-000123.4711-5a31.old/         was 123 while a new 123 took its place; counts where 123 is missing

    write 124    [1] remove what processes that are gone have left        only folders with such names, only our files
                 [2] files, manifest, folder: write and fsync             in .tmp
                 [3] an existing 124 ──> .old
                 [4] one rename: .tmp ──> checkpoint-000124, fsync of runs/
                 [5] remove .old, then whole checkpoints beyond the last K   renamed to .tmp first

Before [4] the last checkpoint is the old one, after it the new one. Folders with other files in them, and checkpoints
that are damaged, are neither removed nor counted among the K.
"""

from __future__ import annotations

import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampnet.checkpoint import manifest as manifests
from ampnet.checkpoint.contents import contents
from ampnet.checkpoint.manifest import DATA, FORMAT, TENSORS, Manifest, entry, read_manifest
from ampnet.checkpoint.output import sync_folder
from ampnet.checkpoint.plain import dumps, loads
from ampnet.checkpoint.tensors import decode, encode
from ampnet.errors import CheckpointError, CheckpointWarning, OutputError

if TYPE_CHECKING:
    from torch import Tensor

FILES = {TENSORS, DATA, manifests.NAME}
VISIBLE = re.compile(r"checkpoint-(\d{6,18})")
HIDDEN = re.compile(r"\.checkpoint-(\d{6,18})\.(\d{1,10})-[0-9a-f]{16}\.(tmp|old)")
CHUNK = 1 << 24
"""The largest number of bytes of one write."""

_writing: set[str] = set()
"""Names of the hidden folders that this process has in use. (A process that was killed may have had the same id.)"""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was read: whole, and equal to what was written."""

    path: Path
    number: int
    tensors: dict[str, Tensor]
    """On the CPU, each with memory of its own."""
    data: dict[str, Any]
    versions: Mapping[str, str | int]
    """What wrote it: ``ampnet``, ``torch``, ``format``."""
    time: str
    """When it was written, in ISO 8601."""


class Checkpoints:
    """The checkpoints in a folder. ``keep``: how many stay when a further one is written."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        if keep < 1:
            raise ValueError(f"keep={keep}: at least the last checkpoint is kept; give 1 or more")
        self.folder, self.keep = Path(folder), keep

    def prepare(self) -> None:
        """Make the folder if it is missing. Raises `OutputError` if no checkpoint can be written there."""
        try:
            if not self.folder.is_dir():
                self.folder.mkdir(parents=True)
                sync_folder(self.folder.parent)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise OutputError(f"{self.folder} cannot be written; give a folder of yours for checkpoints")
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(
                f"{self.folder}: no folder for checkpoints can be made: {error.strerror or error}", error.errno
            ) from error

    def write(self, number: int, tensors: Mapping[str, Tensor], data: Mapping[str, Any]) -> Path:
        """Write a checkpoint and remove the oldest beyond ``keep``; returns its path.

        When it returns, the checkpoint survives a power failure. One with this number is replaced. It raises
        `CheckpointError` for tensors or data that cannot be written and `OutputError` for a full disk and the like;
        the checkpoints before it are as they were.
        """
        import torch

        target = self.folder / name_of(number)
        files = {TENSORS: encode(tensors), DATA: dumps(data)}
        entries = {name: entry(content) for name, content in files.items()}
        time = datetime.now(UTC).isoformat(timespec="seconds")
        files[manifests.NAME] = Manifest(number, time, str(torch.__version__), entries).render()
        self.prepare()
        try:
            self._sweep()  # [1]
            self._put(target, files)
        except OutputError:
            raise
        except OSError as error:
            where = error.filename or target
            raise OutputError(
                f"{target}: the checkpoint cannot be written: {error.strerror or error} ({where}); those before it are "
                f"as they were",
                error.errno,
            ) from error
        self._prune(target)
        return target

    def latest(self) -> Loaded | None:
        """Returns the last good checkpoint, or None. Each later one that is not good is a `CheckpointWarning`."""
        for loaded, error in self._tried():
            if error is not None:
                warnings.warn(CheckpointWarning(f"a checkpoint is skipped: {error}"), stacklevel=2)
            if loaded is not None:
                return loaded
        return None

    def read(self, path: Path) -> Loaded:
        """Returns a checkpoint. Raises `CheckpointError` with file, reason and the last good one in this folder."""
        try:
            return _loaded(Path(path))
        except CheckpointError as error:
            good = next((loaded.path for loaded, _ in self._tried() if loaded is not None), None)
            remedy = f"the last good checkpoint is {good}" if good else f"there is no good checkpoint in {self.folder}"
            raise CheckpointError(f"{error}; {remedy}") from error

    def numbers(self) -> list[int]:
        """Returns the numbers of the checkpoints in the folder, good or not, in order."""
        return sorted({number for number, _ in self._found()})

    def _tried(self) -> Iterator[tuple[Loaded | None, CheckpointError | None]]:
        """Yields each checkpoint from the last one down, or why it is none.

        If a writer removes one before it is read, there are later ones: then it begins again.
        """
        again = True
        while again:
            again = False
            for _, path in sorted(self._found(), reverse=True, key=lambda at: (at[0], at[1].name)):  # "." < "c"
                try:
                    yield _loaded(path), None
                except CheckpointError as error:
                    if not os.path.lexists(path):
                        again = True
                        break
                    yield None, error

    def _found(self) -> list[tuple[int, Path]]:
        """Returns number and path of all that look like checkpoints by their names, those set aside included."""
        found = []
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(self.folder):
                match = VISIBLE.fullmatch(name) or HIDDEN.fullmatch(name)
                if match is not None and not name.endswith(".tmp"):
                    number = int(match[1])
                    if name.startswith((name_of(number), f".{name_of(number)}.")):
                        found.append((number, self.folder / name))
        return found

    def _put(self, target: Path, files: Mapping[str, bytes]) -> None:
        aside, old = _hidden(target, "tmp"), _hidden(target, "old")
        _writing.update((aside.name, old.name))
        try:
            aside.mkdir()
            for name, content in files.items():  # [2]; the manifest is the last of them
                _write(aside / name, content)
            sync_folder(aside)
            if os.path.lexists(target):
                if not _only_ours(target):
                    raise OutputError(f"{target} is in the way, and holds other files than those of a checkpoint")
                os.rename(target, old)  # [3]
            os.rename(aside, target)  # [4]
            sync_folder(self.folder)
            _remove(old)
        except BaseException:
            with suppress(OSError):  # the first error is raised; what is left here is removed by the next writer
                if old.exists() and not os.path.lexists(target):
                    os.rename(old, target)
                _remove(aside)
                _remove(old)
            raise
        finally:
            _writing.difference_update((aside.name, old.name))

    def _prune(self, written: Path) -> None:
        """Remove the oldest whole checkpoints beyond ``keep``; never the one just written."""
        visible = sorted((number, path) for number, path in self._found() if not path.name.startswith("."))
        whole = [path for _, path in visible if _looks_whole(path)]
        try:
            for path in whole[: -self.keep]:
                if path != written and _only_ours(path):
                    aside = _hidden(path, "tmp")
                    os.rename(path, aside)
                    _remove(aside)
        except OSError as error:
            text = f"{error.filename}: an old checkpoint cannot be removed: {error.strerror}"
            warnings.warn(CheckpointWarning(text), stacklevel=3)

    def _sweep(self) -> None:
        """Remove what writers that are gone have left; bring back what one of them had set aside."""
        for name in os.listdir(self.folder):
            match = HIDDEN.fullmatch(name)
            if match is None or name in _writing or (int(match[2]) != os.getpid() and _alive(int(match[2]))):
                continue
            path, target = self.folder / name, self.folder / name_of(int(match[1]))
            if match[3] == "old" and not os.path.lexists(target):
                os.rename(path, target)
            else:
                _remove(path)


def name_of(number: int) -> str:
    """Returns the name of a checkpoint's folder."""
    if not 0 <= number < 10**18:
        raise ValueError(f"the number of a checkpoint is 0 or more and below 10**18, and not {number}")
    return f"checkpoint-{number:06d}"


def _loaded(path: Path) -> Loaded:
    manifest = read_manifest(path)
    match = VISIBLE.fullmatch(path.name)
    if match is not None and int(match[1]) != manifest.number:
        raise CheckpointError(f"{path}: its manifest is that of checkpoint {manifest.number}; it was renamed or copied")
    found = {}
    for name, expected in manifest.files.items():
        found[name] = contents(path / name, size=expected.size)
        if entry(found[name]) != expected:
            raise CheckpointError(f"{path / name}: damaged: its bytes do not have the hash in {manifests.NAME}")
    tensors, _ = decode(found[TENSORS], path / TENSORS)
    data = loads(found[DATA], path / DATA)
    if not isinstance(data, dict):
        raise CheckpointError(f"{path / DATA}: no JSON object")
    versions: dict[str, str | int] = {"ampnet": manifest.ampnet, "torch": manifest.torch, "format": FORMAT}
    return Loaded(path, manifest.number, tensors, data, versions, manifest.time)


def _looks_whole(path: Path) -> bool:
    """Whether the manifest is good and the files have their sizes. The hashes are left to the reader."""
    try:
        files = read_manifest(path).files
        return all((path / name).stat().st_size == expected.size for name, expected in files.items())
    except (CheckpointError, OSError):
        return False


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view[:CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _hidden(target: Path, ending: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}-{secrets.token_hex(8)}.{ending}")


def _only_ours(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and set(os.listdir(path)) <= FILES


def _remove(path: Path) -> None:
    """Remove a folder with the files of a checkpoint; one that holds others stays."""
    if _only_ours(path):
        for name in FILES:
            (path / name).unlink(missing_ok=True)
        path.rmdir()


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
