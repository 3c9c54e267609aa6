"""Downloads one file, with resumption and verification.

    try 1   GET                          ######______________    the connection is lost
    try 2   GET, Range: bytes=6000-            ########______    lost again
    try 3   GET, Range: bytes=14000-                   ######    whole: length and sha256 are compared

A try that received data is followed by another, `TRIES` in all. If the server does not support ranges, or its file has
changed (``If-Range``), it sends the file from its start, and it is written from its start.
"""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from ampnet.data.entry import Remote
from ampnet.data.files import BadFile, sha256
from ampnet.errors import DataError

TIMEOUT = 30.0
"""Seconds without data after which a try has failed."""
TRIES = 5
PAUSE = 1.0
"""Seconds before another try."""
LIMIT = 4 << 30
"""The maximal size of a file whose size is unknown, in bytes."""
CHUNK = 1 << 16
Progress = Callable[[str, int, int | None], None]
"""Called with a file's name, bytes so far and bytes in all, if known; with (data set, 0, None) before converting it."""


_NETWORK = (ConnectionError, TimeoutError, ssl.SSLError)
"""Connection errors that are not `URLError`. Other kinds of OSError may come from the disk."""


class _Lost(Exception):
    """The connection was lost; the next try may resume."""


def download(address: str, target: Path, remote: Remote, progress: Progress) -> None:
    """Download one file. Raises `BadFile` if it is incomplete or wrong, and `DataError` if the disk has no room."""
    target.parent.mkdir(parents=True, exist_ok=True)
    state = _State(address, target, remote, progress)
    for number in range(TRIES):
        before = state.have
        try:
            state.fetch()
            break
        except _Lost as error:
            if number == TRIES - 1 or state.have <= before:
                raise BadFile(f"{address}: {error}") from error.__cause__
        time.sleep(PAUSE)
    if remote.sha256 and (have := sha256(target)) != remote.sha256:
        raise BadFile(f"{address}: its sha256 is {have}, must be {remote.sha256}")


class _State:
    """A download in progress: the bytes so far, and the server's version of the file."""

    def __init__(self, address: str, target: Path, remote: Remote, progress: Progress) -> None:
        self.address, self.target, self.remote, self.progress = address, target, remote, progress
        self.have = 0
        self.edition: str | None = None

    def fetch(self) -> None:
        """One try. Returns if the file is complete; raises `_Lost` if another try may resume."""
        headers = {"User-Agent": "ampnet"}
        if self.have and self.edition:
            headers |= {"Range": f"bytes={self.have}-", "If-Range": self.edition}
        try:
            request = urllib.request.Request(self.address, headers=headers)
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                total = self._receive(answer)
        except urllib.error.HTTPError as error:
            error.close()
            raise BadFile(f"{self.address}: the server answered {error.code} {error.reason}") from error
        except (urllib.error.URLError, http.client.HTTPException, *_NETWORK, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            got = f" after {self.have:,} bytes" if self.have else ""
            hint = "; is this machine connected to the internet?" if isinstance(reason, socket.gaierror) else ""
            raise _Lost(f"cannot be fetched{got} ({reason}{hint})") from error
        if total is not None and self.have != total:
            raise _Lost(f"it ended after {self.have:,} of {total:,} bytes")

    def _receive(self, answer: http.client.HTTPResponse) -> int | None:
        """Write the received data; returns the size of the file, if known."""
        resumed = answer.status == 206 and (answer.headers.get("Content-Range") or "").startswith(f"bytes {self.have}-")
        if answer.status not in (None, 200) and not resumed:  # None: not http
            raise BadFile(f"{self.address}: the server answered {answer.status} {answer.reason} instead of the file")
        if not resumed:
            self.have = 0
        self.edition = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if (self.edition or "").startswith("W/"):
            self.edition = None
        length = answer.headers.get("Content-Length")
        total = self.have + int(length) if length is not None and length.isdecimal() else self.remote.size or None
        wanted = self.remote.size
        if wanted and total != wanted:
            raise BadFile(f"{self.address}: it has {total:,} bytes, must be {wanted:,}")
        free = shutil.disk_usage(self.target.parent).free
        if total and free < total - self.have:
            raise DataError(
                f"{self.address} has {total / 1e6:,.1f} MB, and the disk has room for {free / 1e6:,.1f} MB: make room, "
                f"or give a folder on another disk with --data-dir"
            )
        with self.target.open("ab" if resumed else "wb") as file:
            while chunk := _read(answer):
                file.write(chunk)
                self.have += len(chunk)
                if self.have > (total or LIMIT):
                    raise BadFile(f"{self.address}: it goes on after {total or LIMIT:,} bytes")
                self.progress(self.remote.name, self.have, total)
        return total


def _read(answer: http.client.HTTPResponse) -> bytes:
    """Returns the next bytes. Any error here is a connection error."""
    try:
        return answer.read(CHUNK)
    except OSError as error:
        raise urllib.error.URLError(error) from error
