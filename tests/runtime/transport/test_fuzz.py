"""100,000 fuzzed frames: refused by name or dropped; never a crash, never a state that changes, never much memory.

`mutated` draws a frame's bytes from valid ones: any word changed, a bit flipped, cut, grown, or only noise. Half of
them get the right checksum and size, so that the checks behind these two are met.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch

from ampnet.errors import TransportError
from ampnet.runtime.transport import Note
from ampnet.runtime.transport.link import ACK, AGAIN, ASK, DATA, HEAD, Link
from ampnet.wave.slice import Slice
from tests.fuzz import seed
from tests.runtime.transport.contract import make_frame
from tests.runtime.transport.test_wire import changed, read, record_of

pytestmark = pytest.mark.fuzz
MANY = 100_000
ODD = [0, 1, 2, 3, 63, 64, 65, 255, 1 << 16, 1 << 31, 1 << 40, (1 << 62) - 1, 1 << 62, -1, -2, -64, -(1 << 62)]
ODD += [(1 << 63) - 1, -(1 << 63)]


def mutated(rng: np.random.Generator, valid: bytes, words: int) -> bytearray:
    """Bytes that are nearly these."""
    out = bytearray(valid)
    how = int(rng.integers(8))
    if how < 4 and len(out) >= 8:  # words
        for _ in range(1 + how % 2):
            at = 8 * int(rng.integers(min(words, len(out) // 8)))
            value = ODD[int(rng.integers(len(ODD)))] if how < 2 else int(rng.integers(0, len(out) + 9))
            out[at : at + 8] = value.to_bytes(8, "little", signed=True)
    elif how == 4:
        for _ in range(int(rng.integers(1, 4))):
            out[int(rng.integers(len(out)))] ^= 1 << int(rng.integers(8))
    elif how == 5:
        del out[int(rng.integers(len(out))) :]
    elif how == 6:
        out += bytes(int(rng.integers(1, 200)))
    else:
        out = bytearray(rng.bytes(int(rng.integers(0, 300))))
    return out


def memory() -> int:
    """The most bytes that this process ever had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize("many", [MANY // 2, pytest.param(10 * MANY, marks=pytest.mark.slow)])
def test_records(many: int) -> None:
    rng = np.random.default_rng([17, seed()])
    valid = [bytes(record_of(make_frame(np.random.default_rng(seed), 6))) for seed in range(40)]
    valid += [bytes(record_of(Note(1, {"a": 1}, {"x": np.arange(3), "y": torch.ones(2, 2)})))]
    before, refused = memory(), 0
    for i in range(many):
        record = mutated(rng, valid[i % len(valid)], 20)
        if i % 2 and len(record) >= 88:
            record = changed(record, SIZE=len(record))
        try:
            assert isinstance(read(record), Note | Slice)
        except TransportError:
            refused += 1
    assert refused > many // 2 and memory() - before < 64 << 20


def busy_link() -> Link:
    """A link in the middle of its work: chunks in flight, and half of a frame received."""
    link = Link(b"8 bytes.", 3, window=2000, chunk=100, largest=10_000)
    for i in range(30):
        link.put([bytes([i]) * 150])
    while link.outgoing() is not None:
        link.sent(0.0)
    for number in range(3):
        head = HEAD.pack(b"8 bytes.", 3, DATA, 0, number, 100 * (number % 2), 150, 4)
        assert link.take(memoryview(head + bytes(100 if number % 2 == 0 else 50)), 0.0)
    assert len(link.frames(0.0)) == 1
    return link


def state(link: Link) -> tuple[object, ...]:
    return tuple(len(v) if isinstance(v, dict | bytearray) or hasattr(v, "popleft") else v for v in vars(link).values())


@pytest.mark.parametrize("many", [MANY // 2, pytest.param(10 * MANY, marks=pytest.mark.slow)])
def test_messages(many: int) -> None:
    """What a TCP endpoint hands to the link of an authenticated sender."""
    rng = np.random.default_rng([18, seed()])
    link, dropped, taken, before = busy_link(), 0, 0, memory()
    valid = [HEAD.pack(b"8 bytes.", 3, kind, 0, n, 0, 0, 5) for kind in (ACK, AGAIN, ASK) for n in (5, 6)]
    valid += [HEAD.pack(b"8 bytes.", 3, DATA, 0, n, 0, 60, 5) + bytes(60) for n in (2, 3, 4)]
    valid += [HEAD.pack(b"8 bytes.", 2, ACK, 0, 0, 0, 0, 5), HEAD.pack(b"another.", 3, ACK, 0, 0, 0, 0, 5)]
    for i in range(many):
        message = memoryview(mutated(rng, valid[i % len(valid)], 8))
        was = state(link)
        if not link.take(message, 0.0):
            dropped += 1
            assert state(link) == was
            continue
        taken += 1
        assert 0 <= link.first <= link.cursor <= link.made and link.pending() <= 60
        if taken % 50 == 0:  # it was one that a link could send: begin anew, for it may have moved this one
            link = busy_link()
    assert dropped > many // 2 and memory() - before < 64 << 20


def test_an_endpoint_that_was_fuzzed_goes_on() -> None:
    pytest.importorskip("zmq", reason="pyzmq is in the extra 'cluster'")
    from tests.runtime.transport.contract import numbered, receive_all, waves
    from tests.runtime.transport.network import network

    rng = np.random.default_rng([19, seed()])
    with network(2, chunk=1000) as made:
        a, b = made.endpoint(0), made.endpoint(1)
        take: Callable[[int, memoryview, float], None] = b._take
        for i in range(20):
            a.send(1, numbered(i))
        wrong = HEAD.pack(made.keys[0].token, 1, DATA, 0, 0, 0, 60, 0) + bytes(60)  # of another generation
        for _ in range(5000):
            message = mutated(rng, wrong, 8)
            if bytes(message[:16]) != HEAD.pack(made.keys[0].token, 0, 0, 0, 0, 0, 0, 0)[:16]:
                take(int(rng.integers(-1, 3)), memoryview(message), 0.0)
        assert b.dropped > 4000 and b.pending() == 0 and not b._links[0].ready()
        assert waves(receive_all(b, lambda frames: len(frames) == 20)) == list(range(20))
