"""TCP endpoints keep the contract of transports; only the parties of a run get in; keys are seen nowhere."""

from __future__ import annotations

import logging
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from ampnet.errors import TransportError
from ampnet.runtime.transport import Frame, Note
from ampnet.runtime.transport.keys import Keys, make_keys
from ampnet.runtime.transport.link import ACK, HEAD
from ampnet.runtime.transport.tcp import TcpEndpoint
from ampnet.wave.slice import Slice
from tests.runtime.transport.contract import PATIENCE, Contract, children, finish, numbered, piece, receive_all, waves
from tests.runtime.transport.network import QUICK, Network, network

zmq = pytest.importorskip("zmq", reason="pyzmq is in the extra 'cluster'")


class TestTcp(Contract):
    """Small connections: windows and chunks of a few kilobytes, so that frames wait and are cut."""

    @contextmanager
    def connect(self, parties: int, small: bool = True) -> Iterator[Network]:
        how = {"window": 80 << 10, "chunk": 3000} if small else {}
        with network(parties, **how) as made:
            yield made


def until(enough: Callable[[], bool], *ends: TcpEndpoint) -> None:
    """Let these endpoints work until it is enough."""
    deadline = time.monotonic() + PATIENCE
    while not enough():
        assert time.monotonic() < deadline
        for end in ends:
            end.flush()
            end.wait(1e-3)


# Who gets in.


def stranger(context: zmq.Context, address: str, **keys: bytes) -> zmq.Socket:
    """A client that is no party of the run. It sends what a party would."""
    made = context.socket(zmq.PUSH)
    for name, key in keys.items():
        made.set(getattr(zmq, name), key)
    made.connect(address)
    return made


@pytest.mark.parametrize("kind", ["own keys", "no key of the server", "no encryption", "another run"])
def test_nobody_else_gets_in(kind: str) -> None:
    with network(2) as made:
        a, b = made.endpoint(0), made.endpoint(1)
        public, secret = zmq.curve_keypair()
        server = make_keys(1)[0].public[0] if kind == "no key of the server" else made.keys[1].public[1]
        if kind == "another run":
            public, secret = make_keys(2)[0].public[0], make_keys(2)[0].secret
        keys = {"CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret, "CURVE_SERVERKEY": server}
        with zmq.Context() as context:
            client = stranger(context, b.address, **({} if kind == "no encryption" else keys))
            news = client.get_monitor_socket()
            forged = HEAD.pack(made.keys[0].token, 0, ACK, 0, 0, 0, 0, 0)
            client.send(forged)
            handshakes = 0
            deadline = time.monotonic() + PATIENCE
            while handshakes == 0:  # refused by the one side or the other
                assert time.monotonic() < deadline
                b.wait(1e-3)
                while news.poll(0):
                    event = int.from_bytes(news.recv_multipart()[0][:2], "little")
                    assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
                    failed = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
                    handshakes += bool(event & (failed | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_DISCONNECTED))
            client.disable_monitor()
            news.close(0)
            client.close(0)
        a.send(1, numbered(1))  # and the others are not disturbed
        assert waves(receive_all(b, lambda frames: len(frames) == 1)) == [1]
        assert b.dropped == 0


def test_the_sender_is_the_owner_of_the_key() -> None:
    """A party cannot speak for another: nothing in a message says whose it is."""
    with network(3) as made:
        ends = [made.endpoint(party) for party in range(3)]
        ends[1].send(0, Note(1))
        ends[2].send(0, Note(2))
        got = receive_all(ends[0], lambda frames: len(frames) == 2)
        assert {(sender, frame.kind) for sender, frame in got if isinstance(frame, Note)} == {(1, 1), (2, 2)}


def test_frames_of_another_generation_are_dropped() -> None:
    """A worker of before, whose keys were not changed."""
    with network(2) as made:
        old = made.keys[0]
        made.keys[0] = Keys(0, old.secret, old.public, old.token, old.generation + 1)
        a, b = made.endpoint(0), made.endpoint(1)
        a.send(1, numbered(1))
        until(lambda: b.dropped > 0, a, b)
        assert b.receive() == [] and a.pending() == 1


def test_keys_are_seen_nowhere(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    with network(2) as made, TcpEndpoint(make_keys(2)[0]) as other:
        a, b = made.endpoint(0), made.endpoint(1)
        a.send(1, numbered(1))
        receive_all(b, lambda frames: len(frames) == 1)
        texts = [repr(made.keys), str(made.keys[0]), f"{made.keys[0]}", repr(a), str(a), repr(a._links[1])]
        for wrong in (
            lambda: a.send(7, numbered(1)),
            lambda: a.connect({7: b.address}),
            lambda: other.connect({1: "tcp://nonsense"}),
            lambda: TcpEndpoint(made.keys[1], port=made.ports[0]),
            lambda: TcpEndpoint(made.keys[1], "0.0.0.0"),
        ):
            with pytest.raises(TransportError) as error:
                wrong()
            texts.append(repr(error.value) + str(error.value.__cause__))
        out, err = capfd.readouterr()
        seen = "".join([*texts, caplog.text, out, err])
        for keys in made.keys:
            for key in (keys.secret, keys.public[keys.party], keys.token):
                assert repr(key)[2:-1] not in seen and key.hex() not in seen
    assert made.keys[0].secret != made.keys[1].secret and len({keys.token for keys in made.keys}) == 1
    assert pickle.loads(pickle.dumps(made.keys[0])) == made.keys[0], "the maker can hand them out"


# Without pyzmq.


def test_without_pyzmq_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(TransportError, match="pip install 'ampnet.cluster.'"):
        make_keys(2)


# Addresses.


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "127.0.0.1"])
def test_any_kind_of_address(host: str) -> None:
    keys = make_keys(2)
    with TcpEndpoint(keys[0], host) as a, TcpEndpoint(keys[1], host) as b:
        assert ("[::1]:" in a.address) or ("127.0.0.1:" in a.address)
        a.send(1, numbered(1))  # before it is connected
        assert a.pending() == 1 and not a.flush()
        a.connect({0: a.address, 1: b.address})
        b.connect({0: a.address})
        assert waves(receive_all(b, lambda frames: len(frames) == 1)) == [1]
        until(a.flush, b)


def test_addresses_that_cannot_be_used_are_named() -> None:
    keys = make_keys(2)
    for host in ("0.0.0.0", "::"):
        with pytest.raises(TransportError, match=f"'{host}' is no address that others can connect to"):
            TcpEndpoint(keys[0], host)
    with pytest.raises(TransportError, match="cannot listen at 192.0.2.1"):
        TcpEndpoint(keys[0], "192.0.2.1")
    with TcpEndpoint(keys[0]) as a:
        with pytest.raises(TransportError, match="party 1 cannot be reached at 'tcp://nonsense'"):
            a.connect({1: "tcp://nonsense"})
        with pytest.raises(TransportError, match="no party 2 in the keys of this run; there are .1."):
            a.connect({2: a.address})


# Large frames.


def test_a_frame_beyond_the_limit_is_refused_by_name() -> None:
    with network(2, largest=100_000) as made:
        a, b = made.endpoint(0), made.endpoint(1)
        with pytest.raises(
            TransportError, match="a frame of 400,128 bytes cannot be sent over TCP: the limit is 100,0"
        ):
            a.send(1, piece(1, torch.ones(100_000)))
        assert a.pending() == 0 and not a.writing
        a.send(1, numbered(2))
        assert waves(receive_all(b, lambda frames: len(frames) == 1)) == [2]


@pytest.mark.parametrize("megabytes", [20, pytest.param(400, marks=pytest.mark.slow)])
def test_a_large_frame_keeps_nobody_waiting(megabytes: int) -> None:
    """While one party sends weights, the frames of another arrive."""

    def heavy() -> None:
        end = made.endpoint(1)
        end.send(0, piece(1, torch.arange(megabytes << 18, dtype=torch.float32)))
        finish(end)

    def light() -> None:
        end = made.endpoint(2)
        for i in range(20):
            end.send(0, numbered(i))
            while not end.receive():
                assert end.wait(PATIENCE)
        finish(end)

    with network(3) as made, children(heavy, light):
        end = made.endpoint(0)
        got: list[tuple[int, Frame]] = []
        deadline = time.monotonic() + PATIENCE
        while len(got) < 21:
            assert time.monotonic() < deadline
            for sender, frame in end.receive():
                if sender == 2:
                    end.send(2, Note(1))
                got.append((sender, frame))
            end.wait(0.1)
        finish(end)
        assert [f.wave for s, f in got if s == 2 and isinstance(f, Slice)] == list(range(20))
        (large,) = [f for s, f in got if s == 1]
        assert isinstance(large, Slice) and large.rows is not None
        assert torch.equal(large.rows, torch.arange(megabytes << 18, dtype=torch.float32))


# Interrupts.


class _Interrupt(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_while_waiting_harm_nothing() -> None:
    """Ctrl-C may come between any two lines of `wait` and `flush`, on both sides, many times.

    One that comes while pyzmq frees a message is only printed: Python ignores what is raised there. The machine decides
    how many messages it takes until `enough` interrupts came: once 400 were sent, and one machine interrupted 43.
    """

    def interrupt(number: int, frame: object) -> None:
        raise _Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    chance, many, enough, came = random.Random(0), 400, 50, 0
    try:
        with network(2, chunk=500, **QUICK) as made:
            ends = [made.endpoint(0), made.endpoint(1)]
            got: list[list[int]] = [[], []]
            sent = 0
            deadline = time.monotonic() + PATIENCE
            while (
                (more := sent < many or came <= enough)
                or any(len(g) < sent for g in got)
                or any(e.pending() for e in ends)
            ):
                assert time.monotonic() < deadline, (sent, came, [len(g) for g in got])
                for party, end in enumerate(ends):
                    if more:
                        end.send(1 - party, numbered(sent, width=200))
                    try:
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-3))
                        end.wait(0.002)
                        end.flush()
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    except _Interrupt:
                        came += 1
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                    got[party] += waves(end.receive())
                sent += more
            assert got == [list(range(sent))] * 2
            assert sent >= many and came > enough
    finally:
        signal.signal(signal.SIGALRM, before)


# The end.


def test_closing_gives_everything_back() -> None:
    before = len(os.listdir("/proc/self/fd"))
    keys = make_keys(2)
    a, b = TcpEndpoint(keys[0]), TcpEndpoint(keys[1])
    a.connect({1: b.address})
    b.connect({0: a.address})
    a.send(1, numbered(1))
    receive_all(b, lambda frames: len(frames) == 1)
    a.close()
    a.close()
    b.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_was_received_is_acknowledged_at_the_end() -> None:
    """Else a party that waits for its last frame to be taken would wait for one that has ended."""
    with network(2) as made:
        a, b = made.endpoint(0), made.endpoint(1)
        until(lambda: not (a.silent() or b.silent()), a, b)
        a.send(1, numbered(1))
        receive_all(b, lambda frames: len(frames) == 1)
        b.close()
        until(a.flush, a)
