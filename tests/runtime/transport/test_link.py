"""A link over any channel that loses messages and keeps the rest in order: what is put in comes out, once, in order."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet.errors import TransportError
from ampnet.runtime.transport.link import ACK, AGAIN, ASK, DATA, HEAD, OFTEN, Link

TOKEN = b"8 bytes."


def make(**how: int) -> Link:
    return Link(TOKEN, 3, **{"window": 1000, "chunk": 100, "largest": 10_000, **how})  # type: ignore[arg-type]


def record(number: int, size: int) -> bytes:
    return ((np.arange(size) * 7 + 31 * number) % 251).astype(np.uint8).tobytes()


def pull(link: Link, now: float) -> list[bytes]:
    """All messages that it has to send now."""
    out = []
    while (message := link.outgoing()) is not None:
        out.append(message)
        link.sent(now)
    while (message := link.due(now)) is not None:
        out.append(message)
    return out


def head(**words: int) -> bytes:
    """The head of a message, with some words of its own."""
    names = ("generation", "kind", "round", "number", "start", "whole", "delivered")
    given = {"generation": 3, "kind": ACK} | words
    return HEAD.pack(TOKEN, *(given.get(name, 0) for name in names))


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.05, 0.4]),
    sizes=st.lists(st.integers(1, 450), min_size=1, max_size=40),
)
def test_nothing_is_lost_doubled_or_moved(seed: int, loss: float, sizes: list[int]) -> None:
    """Both ways, messages lost at random in runs, and old ones that come late from a connection that ended."""
    rng = np.random.default_rng(seed)
    links = [make(), make()]
    wires: list[deque[bytes]] = [deque(), deque()]
    old: list[deque[bytes]] = [deque(), deque()]
    got: list[list[bytes]] = [[], []]
    sent, now, steps = 0, 0.0, 0
    while any(len(g) < len(sizes) for g in got) or any(link.pending() for link in links):
        steps += 1
        assert steps < 20_000
        now += float(rng.choice([0.001, 0.01, 2.0], p=[0.7, 0.25, 0.05]))
        if sent < len(sizes):
            for link in links:
                link.put([record(sent, sizes[sent])])
            sent += 1
        for p, link in enumerate(links):
            wires[1 - p] += pull(link, now)
            if rng.random() < loss:  # a connection breaks
                for _ in range(int(rng.integers(len(wires[p]) + 1))):
                    wires[p].popleft()
                if rng.random() < 0.3:  # what had arrived is read beside what the next connection brings
                    old[p], wires[p] = wires[p], deque()
                links[1 - p].reconnected()
            for queue in (old[p], wires[p]):
                for _ in range(int(rng.integers(6))):
                    if queue:
                        assert link.take(memoryview(queue.popleft()), now)
            got[p] += [bytes(r) for r in link.frames(now)]
            assert len(link._chunks) == link.pending()
    for g in got:
        assert g == [record(i, size) for i, size in enumerate(sizes)]


def test_the_window_limits_what_is_on_its_way() -> None:
    link = make()
    for i in range(50):
        link.put([record(i, 100)])
    assert len(pull(link, 0.0)) == 10 and link.pending() == 50
    assert link.take(memoryview(head(delivered=4)), 0.0) and link.pending() == 46
    assert len(pull(link, 0.0)) == 4
    large = make(window=50)
    large.put([record(0, 250)])
    assert len(pull(large, 0.0)) == 1, "a chunk that is larger than the window goes alone"


def test_what_is_only_late_is_asked_for_and_not_sent_again() -> None:
    link, other = make(), make()
    link.put([record(0, 100)])
    (data,) = pull(link, 0.0)
    for now in (1.0, 3.0, 7.0, 15.0, 23.0):
        assert pull(link, now - 0.01) == []
        (asked,) = pull(link, now)
        assert HEAD.unpack_from(asked)[2] == ASK
    assert other.take(memoryview(data), 24.0) and other.take(memoryview(asked), 24.0)
    (answer,) = pull(other, 24.0)
    assert HEAD.unpack_from(answer)[2] == ACK
    assert link.take(memoryview(answer), 24.0) and link.pending() == 1 and link.again == 0
    other.frames(24.0)
    assert link.take(memoryview(pull(other, 24.1)[0]), 24.1) and link.pending() == 0
    assert pull(link, 1e9) == []


def test_a_gap_is_asked_for_once_in_a_round() -> None:
    link, other = make(), make()
    for i in range(5):
        link.put([record(i, 100)])
    messages = pull(link, 0.0)
    for message in (messages[0], *messages[2:]):
        assert other.take(memoryview(message), 0.0)
    (again,) = pull(other, 0.0)
    assert HEAD.unpack_from(again)[2:5] == (AGAIN, 0, 1)
    assert link.take(memoryview(again), 0.0) and link.take(memoryview(again), 0.0)
    assert len(pull(link, 0.0)) == 4 and link.again == 1


def test_many_small_frames_are_acknowledged_before_it_is_late() -> None:
    link, other = make(window=10**6), make(window=10**6)
    for i in range(OFTEN):
        link.put([record(i, 10)])
    for message in pull(link, 0.0):
        other.take(memoryview(message), 0.0)
    assert pull(other, 0.0) == [] and len(other.frames(0.0)) == OFTEN
    assert len(pull(other, 0.0)) == 1


def test_frames_beyond_the_limit_are_refused_by_name_and_harm_nothing() -> None:
    link = make()
    with pytest.raises(TransportError, match="a frame of 10,001 bytes cannot be sent over TCP: the limit is 10,000"):
        link.put([bytes(10_000), b"1"])
    assert link.pending() == 0 and pull(link, 0.0) == []


@pytest.mark.parametrize(
    "words",
    [
        {"generation": 2},
        {"generation": 4},
        {"kind": 0},
        {"kind": 5},
        {"round": -1},
        {"number": -1},
        {"delivered": -1},
        {"delivered": 6},
        {"start": 1},
        {"whole": 1},
        {"kind": AGAIN, "round": 1},
        {"kind": AGAIN, "number": 6},
        {"kind": AGAIN, "number": 1, "delivered": 2},
        {"kind": DATA},
        {"kind": DATA, "whole": 1},
    ],
    ids=str,
)
def test_a_message_that_no_link_sends_is_dropped(words: dict[str, int]) -> None:
    link = make()
    for i in range(8):
        link.put([record(i, 200)])
    assert len(pull(link, 0.0)) == 10
    link._most = 5
    before = {name: repr(value) for name, value in vars(link).items()}
    assert not link.take(memoryview(head(**words)), 0.0)
    assert not link.take(memoryview(b"other..." + head()[8:]), 0.0)
    assert not link.take(memoryview(head(kind=ACK) + b"x"), 0.0)
    assert not link.take(memoryview(head()[:-1]), 0.0)
    assert {name: repr(value) for name, value in vars(link).items()} == before


def test_chunks_that_do_not_fit_together_are_named() -> None:
    for first, second in (((0, 10), (4, 10)), ((0, 10), (5, 11)), ((3, 10), (5, 10)), ((0, 10), (0, 5))):
        link = make()
        for number, (start, whole) in enumerate((first, second)):
            message = head(kind=DATA, number=number, start=start, whole=whole) + b"12345"
            assert link.take(memoryview(message), 0.0)
        with pytest.raises(TransportError, match="a chunk of 5 bytes at"):
            link.frames(0.0)
