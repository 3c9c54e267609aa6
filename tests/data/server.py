"""A web server of our own, with the faults that servers have."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal[
    "error", "missing", "cut", "no length", "once", "once, no ranges", "endless", "accepted", "other edition"
]
"""What goes wrong:

cut                the connection ends in the middle, every time
once               the same, but only the first time; the server knows ranges
once, no ranges    the same, and the server does not know ranges
other edition      the same, and by then the file is another one (of the same length)
endless            more comes than was announced, and there is no length
accepted           the answer is 202, and no file
"""


class Server(ThreadingHTTPServer):
    """Gives what a test puts into ``files``; ``wrong`` says what goes wrong on the way."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.wrong: dict[str, Fault] = {}
        self.asked: list[str] = []
        """Names, with the first byte where a range was asked for: ``name@100``."""
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        wrong = self.server.wrong.get(name)
        again = any(asked.partition("@")[0] == name for asked in self.server.asked)
        begin = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        self.server.asked.append(f"{name}@{begin}" if begin else name)
        if wrong == "error" or name not in self.server.files:
            self.send_error(500 if wrong else 404)
            return
        data = self.server.files[name]
        edition = '"1"'
        if wrong == "other edition" and again:
            data, edition = data[::-1], '"2"'
        if begin and (wrong == "once, no ranges" or self.headers.get("If-Range") != edition):
            begin = 0
        self.send_response(202 if wrong == "accepted" else 206 if begin else 200)
        self.send_header("ETag", edition)
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
        if wrong not in ("no length", "endless"):
            self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        if wrong == "cut" or (wrong in ("once", "once, no ranges", "other edition") and not again):
            self.wfile.write(data[begin : begin + (len(data) - begin) // 2])
        else:
            self.wfile.write(data[begin:] * (2 if wrong == "endless" else 1))

    def log_message(self, *_: Any) -> None:
        """Silent."""
