"""A mesh handed to processes that were not forked from its maker: same memory, and nothing for strangers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from ampnet.errors import TransportError
from ampnet.runtime.transport import Mesh, Note
from ampnet.runtime.transport.endpoint import Endpoint
from ampnet.runtime.transport.handed import Hand, make_token, received

pytestmark = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="needs Linux")

OTHER = """
import sys
from ampnet.runtime.transport import Note
from ampnet.runtime.transport.handed import received
mesh = received(sys.argv[1], bytes.fromhex(sys.argv[2]), 2, 20.0, capacity=1 << 16, slab=1 << 20)
endpoint = mesh.endpoint(1)
left = 3
while left:
    endpoint.wait(1.0)
    for sender, note in endpoint.receive():
        endpoint.send(sender, Note(note.kind, note.data, {"x": note.arrays["x"] * 2}))
        left -= 1
while not endpoint.flush():
    endpoint.wait(0.01)
endpoint.close()
mesh.close()
"""


def fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def answered(endpoint: Endpoint, count: int) -> list[Note]:
    out: list[Note] = []
    until = time.monotonic() + 60
    while len(out) < count and time.monotonic() < until:
        endpoint.wait(0.1)
        out += [note for _, note in endpoint.receive() if isinstance(note, Note)]
    return out


def test_another_program_gets_the_mesh() -> None:
    before = fds()
    mesh, token = Mesh.to_hand_out(2, capacity=1 << 16, slab=1 << 20), make_token()
    hand = Hand(mesh, token)
    other = subprocess.Popen([sys.executable, "-c", OTHER, hand.name, token.hex()])
    hand.over(1, 60.0)
    hand.close()
    endpoint = mesh.endpoint(0)
    sizes = (1, 1000, 40_000)  # the last one is longer than half of the ring
    for n in sizes:
        endpoint.send(1, Note(1, {"n": n}, {"x": np.arange(n)}))
        endpoint.flush()
    notes = answered(endpoint, 3)
    assert [note.data["n"] for note in notes] == list(sizes)
    assert all(np.array_equal(np.asarray(note.arrays["x"]), 2 * np.arange(note.data["n"])) for note in notes)
    assert other.wait(30) == 0
    endpoint.close()
    mesh.close()
    assert fds() == before


def test_a_wrong_token_gets_nothing() -> None:
    before = fds()
    mesh, token = Mesh.to_hand_out(2), make_token()
    hand = Hand(mesh, token)
    found: list[BaseException | None] = []

    def knock(token: bytes) -> None:
        try:
            received(hand.name, token, 2, 5.0).close()
            found.append(None)
        except TransportError as error:
            found.append(error)

    strangers = [threading.Thread(target=knock, args=(one,)) for one in (make_token(), token[:-1] + b"?")]
    for one in strangers:
        one.start()
    with pytest.raises(TransportError, match="1 of 1 processes did not ask"):
        hand.over(1, 1.0)
    for one in strangers:
        one.join()
    assert all(isinstance(error, TransportError) for error in found)
    friend = threading.Thread(target=knock, args=(token,))
    friend.start()
    hand.over(1, 10.0)
    friend.join()
    assert found[-1] is None
    hand.close()
    mesh.close()
    assert fds() == before


def test_nobody_hands_out() -> None:
    with pytest.raises(TransportError, match="no shared memory with the maker"):
        received("ampnet-nobody", make_token(), 2, 1.0)
