"""Training over a bad network: a proxy in each direction between each two parties of a cluster.

Whatever breaks for less than ``silence`` seconds, no worker is lost, each instance is counted once (P15), and the log
keeps the promises. A worker that stays cut off longer is replaced. Dead connections are noticed within a second here,
not five.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ampnet import Cluster, Instance, Stream
from ampnet.errors import RestartWarning, WorkerDied
from ampnet.events.check import assert_kept
from ampnet.events.log import Event, Retire
from ampnet.runtime.cluster.connection import Connection
from ampnet.runtime.cluster.workers import ClusterWorkers
from ampnet.testing.proxy import Proxy
from tests.runtime.cluster.small import ADAM, WHOLE, depth, listening, points

ray = pytest.importorskip("ray")
CONTROLLER = 2


class Network:
    """The proxies between the parties: all of the present generation of workers."""

    def __init__(self) -> None:
        self.proxies: dict[tuple[int, int], Proxy] = {}
        """By (sender, receiver)."""
        self._all: list[Proxy] = []
        self.is_dead = False
        """Whether proxies of the next generations let nothing pass."""
        self._straight = ClusterWorkers._seen_by

    def seen_by(self, workers: ClusterWorkers, party: int) -> dict[int, str]:
        """Returns the proxies' addresses instead of those of the parties."""
        out = {}
        for other, address in self._straight(workers, party).items():
            host, _, port = address.rpartition(":")
            self.proxies[party, other] = proxy = Proxy(int(port), seed=10 * party + other)
            self._all.append(proxy)
            if self.is_dead:
                proxy.cut()
            out[other] = f"{host}:{proxy.port}"
        return out

    def everywhere(self, **settings: float) -> None:
        for proxy in self.proxies.values():
            for name, value in settings.items():
                setattr(proxy, name, value)

    def cut(self, seconds: float | None = None, *pairs: tuple[int, int]) -> None:
        """Let nothing pass between these pairs (default: all), for some seconds, or for ever."""
        cut = [self.proxies[pair] for pair in pairs or self.proxies]
        for proxy in cut:
            proxy.cut()
        if seconds is not None:
            threading.Timer(seconds, lambda: [proxy.heal() for proxy in cut]).start()

    def half_open(self) -> None:
        for proxy in self.proxies.values():
            proxy.half_open()

    def made(self) -> int:
        """Returns the number of connections that were ever made."""
        return sum(proxy.connections for proxy in self._all)

    def close(self) -> None:
        for proxy in self._all:
            proxy.close()


class World:
    """A cluster of two workers with a bad network, and the log of all that it does."""

    def __init__(self, **settings: Any) -> None:
        self.network, self.events = Network(), list[Event]()
        how: dict[str, Any] = {"affinity": WHOLE, "update": ADAM, "max_active_keys": 8, "data": points}
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(ClusterWorkers, "_seen_by", lambda *given: self.network.seen_by(*given))
        self.runtime = Cluster(depth(), workers=2, listeners=[self.events.append], **how | settings)

    def meanwhile(self, at: int, act: Callable[[], object]) -> Iterator[Instance]:
        for i, one in enumerate(self.runtime.instances):
            if i == at:
                act()
            yield one

    def train(self, at: int, act: Callable[[], object]) -> None:
        """Trains an epoch with a fault in the middle: each instance is counted once."""
        before = len(self.events)
        stats = self.runtime.run([Stream(self.meanwhile(at, act), True, "train")])[0]
        assert stats.instances == stats.records == len(self.runtime.instances)
        retired = [n for event in self.events[before:] if isinstance(event, Retire) for n in event.instances]
        assert len(retired) == len(set(retired)) == stats.instances
        assert not self.runtime.held()
        assert_kept(self.events)

    def close(self) -> None:
        self.runtime.close()
        self.network.close()
        self.patch.undo()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> None:
    """Instead of the fixture for forked processes: see `world`."""


@pytest.fixture(scope="class")
def world(local_ray: Connection) -> Iterator[World]:
    ports = listening()
    made = World(silence=6.0)
    try:
        made.train(0, lambda: None)
        yield made
    finally:
        made.close()
    assert not [one for one in ray._private.state.actors().values() if one["State"] != "DEAD"]
    assert listening() <= ports


def slow_and_lossy(network: Network) -> None:
    network.everywhere(delay=0.1, loss=0.01)


def often_reset(network: Network) -> None:
    """In the middle of frames: a connection is made with 1 kB, and an epoch has 20 kB and more."""
    network.everywhere(reset_after=3000)


FAULTS: dict[str, tuple[Callable[[Network], object], bool]] = {
    "1 % lost, 100 ms late": (slow_and_lossy, False),
    "a cut of all": (lambda network: network.cut(1.5), False),
    "a cut between workers": (lambda network: network.cut(1.5, (0, 1), (1, 0)), False),
    "half-open": (Network.half_open, True),
    "reset in the middle of frames": (often_reset, True),
}
"""And whether connections must have been made again."""


class TestShort:
    """One cluster for all of them."""

    @pytest.mark.parametrize("fault", FAULTS)
    def test_training_goes_on(self, world: World, fault: str) -> None:
        act, again = FAULTS[fault]
        before = world.network.made()
        world.train(12, lambda: act(world.network))
        world.network.everywhere(delay=0.0, loss=0.0, reset_after=0)
        assert world.runtime.stats().restarts == 0
        assert not again or world.network.made() > before


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [((0, 1),), ((CONTROLLER, 1), (1, CONTROLLER))], ids=str)
def test_a_worker_that_stays_cut_off_is_lost(local_ray: Connection, pairs: tuple[tuple[int, int], ...]) -> None:
    """Its process is well and Ray reaches it: once, the controller waited for its answer for ever."""
    world = World(silence=2.0, max_restarts=1)
    try:
        world.train(0, lambda: None)
        with pytest.warns(RestartWarning, match=r"'worker1' on machine .* has had no connection to .* It is replaced"):
            world.train(12, lambda: world.network.cut(None, *pairs))
        assert world.runtime.stats().restarts == 1
        with pytest.raises(WorkerDied, match="has had no connection"):
            world.train(12, lambda: world.network.cut(None, *pairs))
    finally:
        world.close()


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
class TestByDefault:
    """With the default settings, as users have them."""

    def test_a_cut_of_ten_seconds_and_half_open_connections(self) -> None:
        world = World()
        try:
            world.train(12, lambda: world.network.cut(10.0))
            world.train(12, world.network.half_open)
            world.train(12, lambda: world.network.cut(10.0, (0, 1), (1, 0)))
            assert world.runtime.stats().restarts == 0
        finally:
            world.close()

    def test_a_network_that_is_dead_from_the_start(self) -> None:
        world = World(silence=2.0, max_restarts=1)
        world.network.is_dead = True
        try:
            with pytest.warns(RestartWarning), pytest.raises(WorkerDied, match="has had no connection"):
                world.train(12, lambda: None)
        finally:
            world.close()
