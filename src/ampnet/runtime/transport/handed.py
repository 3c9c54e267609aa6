"""Handed: a mesh for processes of one machine that are not forked from one another.

    maker      mesh = Mesh.to_hand_out(3); hand = Hand(mesh, token)        a socket without a file, with a random name
               hand.over(2) ........................................ sends the file descriptors to two processes
    others     mesh = received(hand.name, token, ...)                      the same memory and bells

The memory has no name: it is gone with the last process that has it. The kernel passes file descriptors only between
processes of one machine and one network namespace. A process gets them if it runs under the same user and sends the
token, which it was given over another channel.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import time

from ampnet.errors import TransportError
from ampnet.runtime.transport.mesh import CAPACITY, SLAB, Mesh

TOKEN = 32
"""Bytes of a token."""
_CREDENTIALS = struct.Struct("3i")


def make_token() -> bytes:
    """Returns a new token."""
    return secrets.token_bytes(TOKEN)


class Hand:
    """Hands a mesh to other processes. See the head of this file."""

    def __init__(self, mesh: Mesh, token: bytes) -> None:
        self._mesh, self._token = mesh, token
        self.name = f"ampnet-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + self.name)
        self._socket.listen(mesh.parties)

    def over(self, count: int, patience: float) -> None:
        """Hand the mesh to ``count`` processes; raises `TransportError` if they have not come in ``patience``
        seconds."""
        until = time.monotonic() + patience
        left = count
        while left:
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            try:
                visitor, _ = self._socket.accept()
            except TimeoutError as error:
                raise TransportError(f"{left} of {count} processes did not ask for the shared memory") from error
            with visitor:
                left -= self._serve(visitor, min(until, time.monotonic() + 1.0))

    def _serve(self, visitor: socket.socket, until: float) -> bool:
        """Returns whether the visitor had the token, and has the mesh now."""
        _, user, _ = _CREDENTIALS.unpack(visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        try:
            visitor.settimeout(max(0.001, until - time.monotonic()))
            said = visitor.recv(TOKEN, socket.MSG_WAITALL)
            if user != os.getuid() or not hmac.compare_digest(said, self._token):
                return False
            fds = self._mesh.fds
            socket.send_fds(visitor, [len(fds).to_bytes(4, "little")], fds)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the socket; the mesh stays."""
        self._socket.close()


def received(
    name: str, token: bytes, parties: int, patience: float, capacity: int = CAPACITY, slab: int = SLAB
) -> Mesh:
    """Returns the mesh that a `Hand` of this name hands out. Raises `TransportError` if it does not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as to:
        to.settimeout(patience)
        try:
            to.connect("\0" + name)
            to.sendall(token)
            said, fds, _, _ = socket.recv_fds(to, 4, parties + 1)
        except OSError as error:
            raise TransportError(f"no shared memory with the maker of the workers: {error}") from error
    if len(fds) != parties + 1 or said != len(fds).to_bytes(4, "little"):
        for fd in fds:
            os.close(fd)
        raise TransportError(f"{len(fds)} file descriptors of a mesh of {parties} parties, or a wrong token")
    for fd in fds:
        os.set_inheritable(fd, False)
    return Mesh(parties, capacity, slab, fds=fds)
