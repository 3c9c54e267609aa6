"""The mesh keeps the contract of transports; and what is its own: no names, nothing left behind, rings that fill."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
import torch

from ampnet.errors import TransportError
from ampnet.runtime.transport import Mesh, wire
from ampnet.runtime.transport import mesh as mesh_module
from ampnet.wave.slice import Slice
from tests.runtime.transport.contract import (
    PATIENCE,
    Child,
    Contract,
    children,
    contents,
    numbered,
    piece,
    receive_all,
    waves,
)


@contextmanager
def meshed(parties: int, small: bool) -> Iterator[Mesh]:
    """Rings and slabs of 16 kB: most of what the contract sends fills them, and some is larger."""
    with pytest.MonkeyPatch.context() as patch, Mesh(parties, 16 << 10 if small else 8 << 20, 16 << 10) as mesh:
        patch.setattr(wire, "LARGE", 512)
        yield mesh


class TestMesh(Contract):
    def connect(self, parties: int, small: bool = True) -> AbstractContextManager[Mesh]:
        return meshed(parties, small)


class TestMeshThatSpins(Contract):
    """The same where every party looks out for a while before it sleeps."""

    @contextmanager
    def connect(self, parties: int, small: bool = True) -> Iterator[Mesh]:
        with meshed(parties, small) as mesh:
            plain = mesh.endpoint
            mesh.endpoint = lambda party, spin=None: plain(party, spin=1e-4)  # type: ignore[method-assign]
            yield mesh

    # The rest of the contract has nothing to do with waiting.
    test_every_dtype_arrives_as_it_was_sent = None  # type: ignore[assignment]
    test_any_frames_in_any_order_of_calls = None  # type: ignore[assignment]


def files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def mappings() -> int:
    """Shared anonymous mappings of this process."""
    with open("/proc/self/maps") as lines:
        return sum("/dev/zero (deleted)" in line for line in lines)


def test_closing_gives_everything_back() -> None:
    gc.collect()
    before = files(), shared_memory(), mappings()
    mesh = Mesh(4, 1 << 16)
    assert mappings() > before[2]
    ends = [mesh.endpoint(p) for p in range(4)]
    ends[0].send(1, numbered(1))
    ends[0].send(2, numbered(2))
    kept = ends[1].receive()
    for end in ends:
        end.close()
    mesh.close()
    mesh.close()
    assert (files(), shared_memory(), mappings()) == before
    assert contents(f for _, f in kept) == contents([numbered(1)])


def test_rows_in_a_slab_outlive_the_mesh() -> None:
    gc.collect()
    before = files(), mappings()
    mesh = Mesh(2, 1 << 16)
    a, b = mesh.endpoint(0), mesh.endpoint(1)
    a.send(1, piece(1, torch.ones(20_000)))
    ((_, got),) = b.receive()
    assert isinstance(got, Slice) and got.rows is not None and b.held() == 1
    mesh.close()
    assert (got.rows == 1).all() and mappings() == before[1] + 1
    got.rows = None
    assert (files(), mappings()) == before


def test_killed_parties_leave_nothing_behind() -> None:
    gc.collect()
    before = files(), shared_memory(), mappings()
    with Mesh(3, 1 << 16) as mesh:

        def work(party: int) -> None:
            end = mesh.endpoint(party)
            while True:
                end.send(0, numbered(party, width=100))
                end.wait(1.0)

        killed = [Child(lambda party=party: work(party)) for party in (1, 2)]  # type: ignore[misc]
        try:
            receive_all(mesh.endpoint(0), lambda frames: {1, 2} <= set(waves(frames)))
        finally:
            for child in killed:
                child.kill()
    assert (files(), shared_memory(), mappings()) == before


def test_a_mesh_that_cannot_be_made_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = files(), mappings()
    made = 0

    def ring(memory: memoryview) -> None:
        nonlocal made
        made += 1
        if made == 3:
            raise OSError("no memory")

    monkeypatch.setattr(mesh_module.Ring, "__init__", lambda self, memory: ring(memory))
    monkeypatch.setattr(mesh_module.Ring, "close", lambda self: None)
    with pytest.raises(OSError, match="no memory"):
        Mesh(3, 1 << 16)
    assert (files(), mappings()) == before


def test_an_error_that_is_kept_does_not_keep_the_mesh_from_closing() -> None:
    """A traceback holds on to a view of the ring; the memory then goes with the traceback."""
    before = mappings()
    with Mesh(2, 1 << 16) as mesh:
        a, b = mesh.endpoint(0), mesh.endpoint(1)
        a._ways[1].ring_out.try_write([b"no frame" * 20])
        with pytest.raises(TransportError, match="party 1 cannot read what party 0 sent: a record of unknown") as error:
            b.receive()
    del a, b, mesh, error
    gc.collect()
    assert mappings() == before


def test_a_party_that_sleeps_is_woken_at_once() -> None:
    def sleeper() -> None:
        end = mesh.endpoint(1, spin=0.0)
        for i in range(30):
            while not (got := end.receive()):
                assert end.wait(PATIENCE)
            assert waves(got) == [i]
            end.send(0, got[0][1])

    with Mesh(2, 1 << 16) as mesh, children(sleeper):
        end = mesh.endpoint(0, spin=0.0)
        times = []
        for i in range(30):
            deadline = time.monotonic() + PATIENCE
            while not mesh._flags[16]:  # until it sleeps
                assert time.monotonic() < deadline
                os.sched_yield()
            began = time.perf_counter()
            end.send(1, numbered(i))
            while not end.receive():
                assert end.wait(PATIENCE)
            times.append(time.perf_counter() - began)
        assert sorted(times)[15] < 0.1  # microseconds, on a machine with nothing else to do


def test_only_a_sleeper_is_woken() -> None:
    with Mesh(2, 1 << 16) as mesh:
        a, b = mesh.endpoint(0), mesh.endpoint(1)
        a.send(1, numbered(1))
        with pytest.raises(BlockingIOError):
            os.eventfd_read(mesh._bells[1])
        mesh._flags[16] = 1
        a.send(1, numbered(2))
        assert os.eventfd_read(mesh._bells[1]) == 1
        assert waves(b.receive()) == [1, 2]


def test_who_may_take_part() -> None:
    with Mesh(2, 1 << 12) as mesh:
        for party in (-1, 2):
            with pytest.raises(TransportError, match=f"no party {party}; there are 2"):
                mesh.endpoint(party)
    with pytest.raises(TransportError, match="1024 or more; not 64"):
        Mesh(2, 1)


def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(TransportError, match="memory order of x86; this is a machine of aarch64"):
        Mesh(2)
