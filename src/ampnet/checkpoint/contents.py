"""The bytes of a file that may be anything: truncated, a device, somebody else's, larger than the memory.

Every fault is a `CheckpointError` that names the file. A size is checked before memory is allocated for it, and a FIFO
is refused and not waited for.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ampnet.errors import CheckpointError


def contents(path: Path, *, size: int | None = None, largest: int | None = None) -> bytes:
    """Returns the bytes of a regular file. ``size``: exactly so many; ``largest``: no more than that."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise CheckpointError(f"{path}: not a regular file")
            if size is not None and found.st_size != size:
                how = "cut short" if found.st_size < size else "damaged"
                raise CheckpointError(f"{path}: {found.st_size:,} bytes instead of {size:,}; {how}")
            if largest is not None and found.st_size > largest:
                raise CheckpointError(f"{path}: {found.st_size:,} bytes, more than the {largest:,} it may have")
            data = file.read(found.st_size)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    except MemoryError:
        raise CheckpointError(f"{path}: larger than the memory") from None
    if len(data) != found.st_size:
        raise CheckpointError(f"{path}: cut short while it was read")
    return data
