"""Files that the user names: the old contents or the new ones, whole, and nothing else is touched.

    check_output(path)                     before any work: can this file be written? raises `OutputError`
    with replacing(path) as file: ...      write it
    out = Replacement(path); out.file; out.commit() or out.discard()      the same for writers that live longer

    path ──symlinks──> target                              a device, FIFO, socket or folder is refused
             [1] target's folder / .NAME.PID-RANDOM.part   created with O_EXCL: nobody else's file is opened
             [2] write, flush, fsync
             [3] rename to target, fsync of the folder     an existing file keeps its permissions
             [4] on any error, Ctrl-C included: [1] is removed

A full disk is an `OutputError` that names the file and not the temporary one. A process that is killed leaves [1]; it
is hidden, and no other run takes it for its own. A forked child can neither commit nor discard its parent's file.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, overload

from ampnet.errors import OutputError

KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a FIFO (named pipe)",
    stat.S_IFSOCK: "a socket",
}
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE}
"""Errors of a write to a file, as opposed to errors of other work done meanwhile."""


def check_output(path: Path) -> Path:
    """Returns the file that would be replaced, symlinks followed. Raises `OutputError` if it cannot be written."""
    target = Path(os.path.realpath(path))
    found = None
    try:
        with suppress(FileNotFoundError):
            found = os.stat(path).st_mode
        if not target.parent.is_dir():
            folder = target.parent if path.is_symlink() else path.parent
            raise OutputError(f"there is no folder {folder}; make it first, or give another file than {path}")
    except OutputError:
        raise
    except OSError as error:
        raise _named(path, error) from error
    if found is not None:
        if stat.S_ISDIR(found):
            raise OutputError(f"{path} is a folder; give a file in it")
        if not stat.S_ISREG(found):
            kind = KINDS.get(stat.S_IFMT(found), "a special file")
            raise OutputError(f"{path} is {kind} and no regular file; give another one")
        if os.path.ismount(target):
            raise OutputError(f"{path} is a mount point and cannot be replaced; give another one")
    if not os.access(target.parent, os.W_OK | os.X_OK) or (found is not None and not os.access(target, os.W_OK)):
        raise OutputError(f"{path} cannot be written; give a file in a folder of yours")
    return target


_OPEN: set[Replacement] = set()
"""Those of this process that are neither committed nor discarded."""


def discard_all() -> None:
    """Discard every replacement that is under way: for a process that ends without unwinding its stack."""
    for one in list(_OPEN):
        one.discard()


class Replacement:
    """New contents of a file, written under another name. Exactly one of `commit` and `discard` takes effect."""

    def __init__(self, path: Path, mode: Literal["w", "wb"] = "w") -> None:
        self.path, self._target, self._owner, self._open = path, check_output(path), os.getpid(), True
        aside = f".{self._target.name[:40]}.{self._owner}-{secrets.token_hex(8)}.part"
        self._aside = self._target.with_name(aside)
        try:
            descriptor = os.open(self._aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # [1]
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(self._target.stat().st_mode) & 0o777)
            encoding = None if "b" in mode else "utf-8"
            self.file: IO[Any] = os.fdopen(descriptor, mode, encoding=encoding)
            _OPEN.add(self)
        except OSError as error:
            self._aside.unlink(missing_ok=True)
            raise _named(path, error) from error
        except BaseException:
            self._aside.unlink(missing_ok=True)
            raise

    def commit(self) -> None:
        """Make the new contents those of the file. On an error nothing is left of them."""
        if not self._mine():
            return
        try:
            self.file.flush()
            os.fsync(self.file.fileno())  # [2]
            self.file.close()
            os.replace(self._aside, self._target)  # [3]
            self._open = False
            _OPEN.discard(self)
            sync_folder(self._target.parent)
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise _named(self.path, error) from error
            raise

    def discard(self) -> None:
        """Forget the new contents; the file is as it was."""
        if not self._mine():
            return
        self._open = False
        _OPEN.discard(self)
        try:
            with suppress(OSError):  # what is buffered may not have room
                self.file.close()
        finally:
            self._aside.unlink(missing_ok=True)  # [4]

    def _mine(self) -> bool:
        return self._open and os.getpid() == self._owner


@overload
def replacing(path: Path, mode: Literal["w"] = "w") -> AbstractContextManager[IO[str]]: ...
@overload
def replacing(path: Path, mode: Literal["wb"]) -> AbstractContextManager[IO[bytes]]: ...
@contextmanager
def replacing(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Yields a file; at the end of the block its contents replace those of ``path``. Text is UTF-8.

    If the block raises anything, ``path`` is as it was and nothing is left behind.
    """
    out = Replacement(path, mode)
    try:
        yield out.file
    except OSError as error:
        out.discard()
        if error.filename is None and error.errno in DISK:
            raise _named(path, error) from error
        raise
    except BaseException:
        out.discard()
        raise
    out.commit()


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _named(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path} cannot be written: {error.strerror or error}", error.errno)
