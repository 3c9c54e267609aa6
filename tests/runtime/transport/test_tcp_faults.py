"""TCP endpoints over a bad network: whatever breaks, all frames arrive once, whole and in order (promise P16).

Between each two parties, in each direction, is a proxy. Parties notice a fault within half a second here, not five.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

from ampnet.runtime.transport import Frame
from ampnet.runtime.transport.tcp import TcpEndpoint
from ampnet.testing.proxy import Proxy
from tests.runtime.transport.contract import PATIENCE, children, content, contents, make_frame, piece
from tests.runtime.transport.network import QUICK, Network, network

pytest.importorskip("zmq", reason="pyzmq is in the extra 'cluster'")


@contextmanager
def bad_network(parties: int = 2, **how: object) -> Iterator[tuple[Network, list[Proxy]]]:
    """Endpoints with a proxy in each way between them."""
    with ExitStack() as stack:
        proxies: dict[tuple[int, int], Proxy] = {}
        given = {**QUICK, **how}
        made = stack.enter_context(network(parties, lambda p, q, port: proxies[p, q].port, **given))
        for p in range(parties):
            for q in range(parties):
                if p != q:
                    proxies[p, q] = stack.enter_context(Proxy(made.ports[q], seed=10 * p + q))
        yield made, list(proxies.values())


def frames(seed: int, many: int) -> list[Frame]:
    rng = np.random.default_rng(seed)
    return [make_frame(rng, 200 if i % 20 == 0 else 20) for i in range(many)]


class Talk:
    """Two endpoints that send each other frames, and check what arrives."""

    def __init__(self, made: Network, many: int) -> None:
        self.ends = [made.endpoint(0), made.endpoint(1)]
        self.plans = [frames(0, many), frames(1, many)]
        self.sent = [0, 0]
        self.got = [0, 0]

    def step(self, count: int = 1) -> None:
        """Each sends some frames and receives."""
        for party, end in enumerate(self.ends):
            for frame in self.plans[party][self.sent[party] : self.sent[party] + count]:
                end.send(1 - party, frame)
                self.sent[party] += 1
            for sender, frame in end.receive():
                assert sender == 1 - party
                assert content(frame) == content(self.plans[sender][self.got[party]])
                self.got[party] += 1
            end.flush()
            end.wait(1e-3)

    def until(self, enough: Callable[[], bool], count: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE
        while not enough():
            assert time.monotonic() < deadline, f"sent {self.sent}, received {self.got}"
            self.step(count)

    def finish(self) -> None:
        """All arrives, once; and nothing is left to be sent."""
        self.until(lambda: self.got == [len(self.plans[1]), len(self.plans[0])], count=7)
        self.until(lambda: all(end.flush() for end in self.ends))
        for end in self.ends:
            assert end.pending() == 0 and not end.receive() and end.dropped == 0


def again(ends: list[TcpEndpoint]) -> int:
    """The number of times that chunks were sent again."""
    return sum(link.again for end in ends for link in end._links.values())


def test_connections_that_are_reset_again_and_again() -> None:
    with bad_network() as (made, proxies):
        talk = Talk(made, 200)
        for i in range(10):
            talk.until(lambda i=i: min(talk.got) >= 15 * i)  # type: ignore[misc]
            proxies[i % 2].reset()
        talk.finish()
        assert all(proxy.connections >= 5 for proxy in proxies)


def test_reset_in_the_middle_of_a_large_frame() -> None:
    big = torch.arange(1_000_000, dtype=torch.float64)
    with bad_network(chunk=100_000) as (made, proxies):
        a, b = made.endpoint(0), made.endpoint(1)
        proxies[0].reset_after = 1_500_000
        sent = [piece(1, None), piece(2, big), piece(3, None)]
        for frame in sent:
            a.send(1, frame)
        got: list[Frame] = []
        deadline = time.monotonic() + PATIENCE
        while not a.flush() or len(got) < 3:
            assert time.monotonic() < deadline
            got += [frame for _, frame in b.receive()]
            b.wait(1e-3)
        assert contents(got) == contents(sent)
        assert proxies[0].connections >= 3 and again([a]) >= 1


def test_half_open_connections_are_noticed() -> None:
    """Bytes vanish and nobody is told: only the heartbeats that are not answered tell."""
    with bad_network() as (made, proxies):
        talk = Talk(made, 150)
        talk.until(lambda: min(talk.got) >= 30)
        for proxy in proxies:
            proxy.half_open()
        talk.finish()
        assert all(proxy.connections >= 2 for proxy in proxies)


@pytest.mark.parametrize(
    ("seconds", "how"), [(1.5, QUICK), pytest.param(10.0, {}, marks=pytest.mark.slow)], ids=["short", "as by default"]
)
def test_a_cut(seconds: float, how: dict[str, float]) -> None:
    """Nothing passes for a while; both go on sending, and are never blocked."""
    with bad_network(**({"beat": 1.0, "dead": 5.0, "probe": 1.0} | how)) as (made, proxies):
        talk = Talk(made, 150)
        talk.until(lambda: min(talk.got) >= 20)
        for proxy in proxies:
            proxy.cut()
        until = time.monotonic() + seconds
        talk.until(lambda: time.monotonic() > until)
        assert talk.sent == [150, 150] or min(talk.sent) > max(talk.got)
        silent = talk.ends[0].silent(0.0)
        for proxy in proxies:
            proxy.heal()
        assert set(silent) <= {1}
        talk.finish()
        assert not talk.ends[0].silent(seconds)


def test_a_silent_party_is_told() -> None:
    with bad_network() as (made, proxies):
        talk = Talk(made, 10)
        talk.finish()
        assert talk.ends[0].silent() == {}
        for proxy in proxies:
            proxy.cut()
        deadline = time.monotonic() + PATIENCE
        while not talk.ends[0].silent(0.2):
            assert time.monotonic() < deadline
            talk.ends[0].wait(0.05)
        assert talk.ends[0].silent(0.2).keys() == {1}
        for proxy in proxies:
            proxy.heal()
        while talk.ends[0].silent():
            assert time.monotonic() < deadline
            for end in talk.ends:
                end.wait(0.01)


def test_corrupted_bytes_are_never_delivered() -> None:
    """Encryption with authentication finds each changed byte: the connection ends, and what was lost is sent again."""
    with bad_network() as (made, proxies):
        talk = Talk(made, 200)
        talk.until(lambda: min(talk.got) >= 10)
        for proxy in proxies:
            proxy.corrupt = 0.03
        talk.until(lambda: min(proxy.connections for proxy in proxies) >= 4 or min(talk.got) == 200)
        for proxy in proxies:
            proxy.corrupt = 0.0
        talk.finish()
        assert max(proxy.connections for proxy in proxies) >= 2


def test_loss_and_delay() -> None:
    """1 % of segments lost, 100 ms each way: frames are under way while others follow."""
    with bad_network(beat=1.0, dead=20.0, probe=1.0) as (made, proxies):
        for proxy in proxies:
            proxy.delay, proxy.loss = 0.1, 0.01
        talk = Talk(made, 300)
        talk.finish()
        assert again(talk.ends) == 0, "what is only late is not sent twice"


def test_a_slow_connection_passes_a_large_frame() -> None:
    """Heartbeats are answered between the chunks of a frame, so a slow one is not taken for dead.

    The frame takes two seconds, and a connection without a sign of life is given up after little more than one.
    """
    with bad_network(chunk=20_000, beat=0.2, dead=1.2) as (made, proxies):
        a, b = made.endpoint(0), made.endpoint(1)
        proxies[0].rate = 5e5
        big = torch.ones(250_000)
        a.send(1, piece(1, big))
        got: list[Frame] = []
        deadline = time.monotonic() + PATIENCE
        while not a.flush() or not got:
            assert time.monotonic() < deadline
            got += [frame for _, frame in b.receive()]
            b.wait(1e-3)
        assert contents(got) == contents([piece(1, big)])
        assert proxies[0].connections == 1 and again([a]) == 0


def test_processes_over_a_bad_network() -> None:
    """Three processes, all ways between them reset and corrupted at random."""
    many, parties = 120, 3

    def play(p: int) -> None:
        end = made.endpoint(p)
        plans = {q: frames(10 * p + q, many) for q in range(parties) if q != p}
        wanted = {q: frames(10 * q + p, many) for q in plans}
        got: dict[int, list[Frame]] = {q: [] for q in plans}
        deadline = time.monotonic() + PATIENCE
        i = 0
        while 0 in done[:]:  # who ends before the others have heard that all arrived leaves them waiting
            assert time.monotonic() < deadline, {q: len(g) for q, g in got.items()}
            done[p] = i >= many and all(len(g) == many for g in got.values()) and end.flush()
            for q, plan in plans.items():
                if i < many:
                    end.send(q, plan[i])
            i += 1
            for q, frame in end.receive():
                got[q].append(frame)
            end.flush()
            end.wait(0.01)
        for q in got:
            assert contents(got[q]) == contents(wanted[q])
        end.close()

    done = mmap.mmap(-1, parties)
    with bad_network(parties, chunk=8000) as (made, proxies), children(*(lambda p=p: play(p) for p in range(parties))):  # type: ignore[misc]
        for proxy in proxies:
            proxy.corrupt, proxy.reset_after = 0.005, 200_000
    done.close()
