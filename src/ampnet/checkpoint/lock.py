"""A lock on a folder: one process at a time writes checkpoints there. It ends with the process, however that ends.

It is a lock of the kernel (``flock``) on the folder itself, so no file is left behind. A forked worker process does not
keep it: it closes its copy. File systems without such locks (some network ones) are used without.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

from ampnet.errors import CheckpointError

_held: set[int] = set()
"""The descriptors of this process's locks."""


def _close_copies() -> None:
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_copies)


class FolderLock:
    """Held from its construction until `release`. Raises `CheckpointError` if another one holds it."""

    def __init__(self, folder: Path) -> None:
        self._owner = os.getpid()
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(self._descriptor)
                raise CheckpointError(
                    f"{folder}: another run writes its checkpoints here; wait for its end, or give another folder"
                ) from None
        _held.add(self._descriptor)

    def release(self) -> None:
        """Let others write."""
        if os.getpid() == self._owner and self._descriptor in _held:
            _held.discard(self._descriptor)
            with suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
