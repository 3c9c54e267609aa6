"""A file that grows during a run. When the disk is full, what had room is kept, and the run goes on.

    write  write  write  write ╳                   no room: cut after the last whole line; later writes do nothing
    [line][line][line][line][li                    one `OutputWarning` names the file
    [line][line][line]  <─ finish(tail) makes room for a tail of the lines that must be there, and cuts others

Until `finish` the file has a temporary name (`ampnet.checkpoint.output`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ampnet.checkpoint.output import Replacement
from ampnet.errors import OutputWarning

CHUNK = 1 << 16


class StreamFile:
    """A text file of lines, written piece by piece. ``fault`` is None, or the error that ended it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._out = Replacement(self.path, "wb")
        self._descriptor = self._out.file.fileno()
        self._size = self._waiting_size = 0
        self._waiting: list[str] = []
        self.fault: str | None = None
        self.closed = False

    def write(self, text: str) -> None:
        """Append a text that ends with the end of a line. Raises nothing: an error is kept in ``fault``."""
        if self.fault is None and not self.closed:
            self._waiting.append(text)
            self._waiting_size += len(text)
            if self._waiting_size >= CHUNK:
                self._flush()

    def _flush(self) -> None:
        text = "".join(self._waiting)
        self._waiting.clear()
        self._waiting_size = 0
        if text and self.fault is None:
            self._append(text)

    def _append(self, text: str) -> None:
        try:
            self._put(text.encode())
        except OSError as error:
            self.fault = error.strerror or str(error)
            self._cut(self._size)
            warnings.warn(f"{self.path}: {self.fault}; the rest of the run is not in it", OutputWarning, stacklevel=2)

    def _put(self, data: bytes) -> None:
        """Write all of it. Afterwards the size is that of the whole lines."""
        end, left = self._size, memoryview(data)
        try:
            while left:
                count = os.write(self._descriptor, left)
                end, left = end + count, left[count:]
        finally:
            written = len(data) - len(left)
            self._size = end if not left else self._size + data.rfind(b"\n", 0, written) + 1

    def _cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)
        self._size = size

    def finish(self, tail: Callable[[], str] = lambda: "") -> None:
        """Append the tail and give the file its name. If there is no room, lines before the tail are cut.

        ``tail`` is called again after an error: it may mention it.
        """
        if self.closed:
            return
        self.closed = True
        self._flush()
        if self.fault is None:
            self._append(tail())
        if self.fault is not None and (data := tail().encode()):
            self._cut(self._line_before(self._size - len(data) - CHUNK))
            with suppress(OSError):
                self._put(data)
        self._out.commit()

    def _line_before(self, size: int) -> int:
        """Returns the end of the last line that ends at or before this size; at least the first line is kept."""
        while size > 0:
            start = max(0, size - CHUNK)
            found = os.pread(self._descriptor, size - start, start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            size = start
        return os.pread(self._descriptor, CHUNK, 0).find(b"\n") + 1

    def discard(self) -> None:
        """Remove the file; one that was there before is as it was."""
        self.closed = True
        self._out.discard()
