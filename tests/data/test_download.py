"""One file over the wire: resumed where it can be, verified, and limited."""

from __future__ import annotations

import errno
import hashlib
import http.client
import shutil
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest

from ampnet.data import download as downloading
from ampnet.data.download import download
from ampnet.data.entry import Remote
from ampnet.data.files import BadFile
from ampnet.errors import DataError
from tests.data.server import Fault, Server

DATA = bytes(range(256)) * 2000
GOOD = Remote("file", sha256=hashlib.sha256(DATA).hexdigest(), size=len(DATA))
HALF = len(DATA) // 2


@pytest.fixture
def target(server: Server, tmp_path: Path) -> Path:
    server.files["file"] = DATA
    return tmp_path / "fetched" / "file"


def fetch(server: Server, target: Path, remote: Remote = GOOD) -> list[int]:
    """Returns the bytes that were there each time that something came."""
    told: list[int] = []
    download(f"{server.url}/file", target, remote, lambda name, have, total: told.append(have))
    return told


def test_whole(server: Server, target: Path) -> None:
    told = fetch(server, target)
    assert target.read_bytes() == DATA and told[-1] == len(DATA) and told == sorted(told)


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        ("once", ["file", f"file@{HALF}"]),
        ("once, no ranges", ["file", f"file@{HALF}"]),
        ("no length", ["file"]),
    ],
)
def test_a_lost_connection_is_taken_up_again(wrong: Fault, asked: list[str], server: Server, target: Path) -> None:
    server.wrong["file"] = wrong
    told = fetch(server, target)
    assert target.read_bytes() == DATA and server.asked == asked
    assert (told == sorted(told)) == (wrong != "once, no ranges"), "what came before was kept, or came again"


def test_two_editions_are_not_mixed(server: Server, target: Path) -> None:
    """The file changed between two tries: it comes from its start, and its checksum is another."""
    server.wrong["file"] = "other edition"
    with pytest.raises(BadFile, match=f"its sha256 is {hashlib.sha256(DATA[::-1]).hexdigest()}, must be {GOOD.sha256}"):
        fetch(server, target)
    assert target.read_bytes() == DATA[::-1]


def test_it_is_given_up_in_the_end(server: Server, target: Path) -> None:
    server.wrong["file"] = "cut"
    with pytest.raises(BadFile, match=rf"/file: it ended after [\d,]+ of {len(DATA):,} bytes"):
        fetch(server, target)
    assert len(server.asked) == downloading.TRIES


@pytest.mark.parametrize(
    ("wrong", "remote", "says"),
    [
        ("accepted", GOOD, "the server answered 202 Accepted instead of the file"),
        ("endless", Remote("file", size=len(DATA)), rf"it goes on after {len(DATA):,} bytes"),
        ("endless", Remote("file"), "it goes on after 600,000 bytes"),
        (None, Remote("file", size=5), f"it has {len(DATA):,} bytes, must be 5"),
        (None, Remote("file", sha256="0" * 64), f"its sha256 is {GOOD.sha256}, must be {'0' * 64}"),
    ],
)
def test_what_is_refused(
    wrong: Fault | None, remote: Remote, says: str, server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "LIMIT", 600_000)
    if wrong:
        server.wrong["file"] = wrong
    with pytest.raises(BadFile, match=f"{server.url}/file: {says}"):
        fetch(server, target, remote)
    assert len(server.asked) == 1, "another try would bring the same"


def test_a_disk_without_room(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is fetched. No other address would help: it is not a `BadFile`."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(DataError, match=r"file has 0\.5 MB, and the disk has room for 0\.1 MB.*--data-dir") as caught:
        fetch(server, target)
    assert not isinstance(caught.value, BadFile) and not target.exists()


def test_no_network(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(BadFile, match=r"Temporary failure.*is this machine connected to the internet\?"):
        download("http://example.invalid/file", target, GOOD, lambda *_: None)


def test_a_server_that_is_silent(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts, and says nothing."""
    monkeypatch.setattr(downloading, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(BadFile, match="fetched .*timed out"):
        download(f"http://127.0.0.1:{silent.getsockname()[1]}/file", target, GOOD, lambda *_: None)


@pytest.mark.parametrize("error", [ssl.SSLEOFError("EOF occurred"), OSError(errno.ENETUNREACH, "unreachable")])
def test_an_error_of_the_network_is_not_one_of_the_disk(
    error: OSError, server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once "cannot write to FOLDER: EOF occurred" was said, and there was no second try."""
    read, failed = http.client.HTTPResponse.read, list[int]()

    def fails_once(answer: http.client.HTTPResponse, amount: int | None = None) -> bytes:
        if target.exists() and not failed:
            failed.append(1)
            raise error
        return read(answer, amount)

    monkeypatch.setattr(http.client.HTTPResponse, "read", fails_once)
    with pytest.raises(BadFile, match=f"cannot be fetched .*{error.args[-1]}"):  # nothing had come before it
        fetch(server, target)
    assert failed
    fetch(server, target)
    assert target.read_bytes() == DATA
