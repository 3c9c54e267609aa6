"""What every transport must keep (promise P16), as tests to be run on each of them.

A transport's tests derive a class from `Contract` and give it `connect`: so many endpoints, whose parties may be used
in one process or in forked ones. `small` connections hold little, so that outboxes and fragments are met often.

    class TestMesh(Contract):
        def connect(self, parties, small=True): ...
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ampnet.errors import TransportError
from ampnet.runtime.transport import Endpoint, Frame, Note
from ampnet.runtime.transport.dtypes import CODED
from ampnet.wave.slice import Slice

PATIENCE = 100.0
"""Seconds after which something that does not come is a failure."""


class Connection(Protocol):
    """What `Contract.connect` gives."""

    def endpoint(self, party: int, *, causal: bool = False) -> Endpoint: ...


# Frames to try it with.

_DTYPES = [coded.dtype for coded in CODED.values()]


def tensor(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Any bits of that dtype."""
    out = torch.empty(shape, dtype=dtype)
    if out.numel():
        some = rng.integers(0, 2 if dtype is torch.bool else 256, out.numel() * out.element_size(), dtype=np.uint8)
        out = torch.from_numpy(some).view(dtype).reshape(shape)
    return out


def bits(value: torch.Tensor | np.ndarray[Any, Any] | None) -> object:
    """What a tensor holds, to be compared: NaNs are equal where their bits are."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        raw = value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return value.dtype, tuple(value.shape), raw
    return value.dtype, value.shape, value.tobytes()


def content(frame: Frame) -> object:
    """A frame's content, to be compared."""
    if isinstance(frame, Note):
        return "note", frame.kind, frame.data, {name: bits(array) for name, array in frame.arrays.items()}
    numbers = frame.era, frame.wave, frame.crossing, frame.round, frame.direction, frame.digest
    return "slice", numbers, frame.left_out, bits(frame.rows)


def contents(frames: Iterable[Frame]) -> list[object]:
    return [content(frame) for frame in frames]


def make_frame(rng: np.random.Generator, most_rows: int = 40) -> Frame:
    """Any frame: a note, or a slice with or without rows."""
    if rng.random() < 0.3:
        arrays: dict[str, Any] = {}
        if rng.random() < 0.5:
            arrays["loss"] = tensor(rng, (int(rng.integers(most_rows)),), torch.float32)
            arrays["parents"] = rng.integers(0, 9, (int(rng.integers(3)), 2))
        return Note(int(rng.integers(9)), {"text": "é" * int(rng.integers(4)), "n": [1, 2.5, None]}, arrays)
    dtype = [torch.float32, torch.float64, torch.bfloat16, torch.bool][int(rng.integers(4))]
    shape = tuple(int(n) for n in rng.integers(0, [most_rows + 1, most_rows, 3], 3)[: int(rng.integers(1, 4))])
    rows = tensor(rng, shape, dtype) if rng.random() < 0.9 else None
    numbers = [int(n) for n in rng.integers(0, 1 << 62, 3)]
    left_out = tuple(int(n) for n in rng.integers(0, 99, int(rng.integers(3))))
    return Slice(numbers[0], numbers[1], 3, int(rng.integers(2)), numbers[2], rows, left_out, int(rng.integers(5)))


def piece(wave: int, rows: torch.Tensor | None, **numbers: Any) -> Slice:
    """A slice of which the wave tells which it is."""
    given: dict[str, Any] = {"crossing": 2, "round": 1, "direction": 0, "digest": 5, **numbers}
    return Slice(wave, rows=rows, **given)


def numbered(wave: int, width: int = 4) -> Slice:
    """A slice whose rows tell which it is, too: they are filled with the number of the wave."""
    return piece(wave, torch.full((1, width), float(wave)))


def waves(frames: list[tuple[int, Frame]]) -> list[int]:
    """The waves of all slices received, in order."""
    return [f.wave for _, f in frames if isinstance(f, Slice)]


def receive_all(receiver: Endpoint, enough: Callable[[list[tuple[int, Frame]]], bool]) -> list[tuple[int, Frame]]:
    """Receive until it is enough."""
    frames: list[tuple[int, Frame]] = []
    deadline = time.monotonic() + PATIENCE
    while not enough(frames):
        assert time.monotonic() < deadline, f"only {len(frames)} frames came"
        receiver.flush()
        frames += receiver.receive()
        if not enough(frames):
            receiver.wait(1.0)
    return frames


def finish(endpoint: Endpoint) -> None:
    """As a process does before it ends: what it sent has left, and what it received is acknowledged."""
    deadline = time.monotonic() + PATIENCE
    while not endpoint.flush():
        assert time.monotonic() < deadline, f"{endpoint.pending()} frames do not leave"
        endpoint.wait(1.0)
    endpoint.close()


# Processes.


class Child:
    """A forked process. It runs a function and ends; `join` says how it ended."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                work()
                status = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(status)
        self._status: int | None = None

    def join(self) -> int:
        """Wait for its end: 0 where all went well."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.join()


@contextmanager
def children(*works: Callable[[], object]) -> Iterator[list[Child]]:
    """Forked processes, reaped whatever happens; all must end well."""
    made = [Child(work) for work in works]
    try:
        yield made
        assert [child.join() for child in made] == [0] * len(made)
    finally:
        for child in made:
            child.kill()


class Contract:
    """The tests. A transport's test class gives `connect`."""

    def connect(self, parties: int, small: bool = True) -> AbstractContextManager[Connection]:
        raise NotImplementedError

    # In order, once, whole.

    @pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
    @pytest.mark.parametrize("dtype", _DTYPES, ids=str)
    def test_every_dtype_arrives_as_it_was_sent(self, dtype: torch.dtype) -> None:
        rng = np.random.default_rng(1)
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for shape in ((3,), (3, 5), (3, 2, 2), (3, 0), (0, 4), (3, 7)):
                note = Note(3, {"a": 1}, {"x": tensor(rng, shape, dtype)})
                a.send(1, note)
                some = [piece(i, tensor(rng, s, dtype)) for i, s in enumerate((shape, (), (50, 10)))]
                for each in some:
                    a.send(1, each)
                got = receive_all(b, lambda frames: len(frames) == 4)
                assert contents(f for _, f in got) == contents([note, *some])
                assert all(sender == 0 for sender, _ in got)

    def test_all_that_a_slice_says_arrives(self) -> None:
        rows = torch.randn(4, 3)
        sent = [
            piece(0, None, direction=1),
            piece(1, None, direction=1, left_out=(3, 1 << 40, -1)),
            piece(2, rows, era=7, crossing=0, round=9, digest=(1 << 63) - 1, left_out=(0,)),
            piece(3, torch.empty(0, 5)),
            piece(4, torch.empty(0, 0, 5, dtype=torch.int32), left_out=tuple(range(40))),
            piece((1 << 63) - 1, rows, era=1 << 50, round=-1),
        ]
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for each in sent:
                a.send(1, each)
            got = receive_all(b, lambda frames: len(frames) == len(sent))
            assert contents(f for _, f in got) == contents(sent)

    def test_rows_that_do_not_lie_together_arrive_as_they_look(self) -> None:
        wide = torch.randn(6, 10)
        views = [wide[1:5, 2:7], wide.t()[2:6], wide[1:5].unsqueeze(2).expand(4, 10, 3), wide[:4, ::3]]
        views += [view.to(torch.bfloat16) for view in views[:1]] + [wide.to(torch.bfloat16)[1:5, 1:3]]
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for view in views:
                a.send(1, piece(1, view))
                ((_, got),) = receive_all(b, lambda frames: len(frames) == 1)
                assert isinstance(got, Slice) and got.rows is not None
                assert torch.equal(got.rows, view) and got.rows.is_contiguous()

    def test_tensors_that_numpy_does_not_take_as_they_are(self) -> None:
        z = torch.randn(3, 2, dtype=torch.complex64)
        tensors = [torch.randn(3, 2, requires_grad=True), z.conj(), z.conj().imag]
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for sent in tensors:
                a.send(1, piece(1, sent))
                ((_, got),) = receive_all(b, lambda frames: len(frames) == 1)
                assert isinstance(got, Slice) and torch.equal(got.rows, sent.detach())  # type: ignore[arg-type]

    def test_what_cannot_be_sent_is_refused_by_name_and_harms_nothing(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            odd = torch.empty(1, 2, dtype=torch.bits8)
            for frame, match in (
                (piece(1, odd), "bits8"),
                (piece(1, None, crossing=-1), "crossing -1"),
                (piece(1, None, direction=2), "direction 2"),
                (piece(1, None, digest=-1), "digest -1"),
                (piece(1 << 63, torch.ones(200)), "numbers"),
                (piece(1, None, left_out=(1 << 63,)), "numbers"),
                (Note(1, {"a": object()}), "object"),
                (Note(1, {}, {"a": np.array(["x"])}), "'a' of <U1"),
            ):
                with pytest.raises(TransportError, match=match):
                    a.send(1, frame)
            for to in (0, 2, -1):
                with pytest.raises(TransportError, match=f"party {to}"):
                    a.send(to, numbered(1))
            a.send(1, numbered(3))
            ((_, got),) = receive_all(b, lambda frames: len(frames) == 1)
            assert content(got) == content(numbered(3))

    # One method for every transport: in a process that tests several of them it has several owners.
    @settings(max_examples=40, suppress_health_check=[HealthCheck.differing_executors])
    @given(
        seed=st.integers(0, 2**32), rows=st.sampled_from([4, 30, 200]), script=st.lists(st.integers(0, 8), max_size=60)
    )
    def test_any_frames_in_any_order_of_calls(self, seed: int, rows: int, script: list[int]) -> None:
        """Three parties in one process, calls as they come: what was sent arrives, once and in order."""
        rng = np.random.default_rng(seed)
        with self.connect(3) as c:
            ends = [c.endpoint(p) for p in range(3)]
            sent: dict[tuple[int, int], list[Frame]] = {(p, q): [] for p in range(3) for q in range(3) if p != q}
            got: dict[tuple[int, int], list[Frame]] = {way: [] for way in sent}

            def take(q: int) -> None:
                for p, frame in ends[q].receive():
                    got[p, q].append(frame)

            for step in script:
                p = step % 3
                if step < 5:
                    q = (p + 1 + int(rng.integers(2))) % 3
                    frame = make_frame(rng, rows)
                    sent[p, q].append(frame)
                    ends[p].send(q, frame)
                elif step < 7:
                    take(p)
                else:
                    ends[p].flush()
            deadline = time.monotonic() + PATIENCE
            while any(end.pending() for end in ends):
                assert time.monotonic() < deadline
                for q in range(3):
                    ends[q].flush()
                    take(q)
            for q in range(3):
                while ends[q].wait(0.0):
                    take(q)
            for way in sent:
                assert contents(got[way]) == contents(sent[way]), way

    def test_any_frames_across_processes(self) -> None:
        """Three processes send one another hundreds of frames, small ones and ones larger than what lies between."""
        parties, many = 3, 150

        def frames(p: int, q: int) -> list[Frame]:
            rng = np.random.default_rng(100 * p + q)
            return [*(make_frame(rng, 200 if i % 10 == 0 else 20) for i in range(many)), Note(99)]

        def play(p: int) -> None:
            end = c.endpoint(p)
            others = [q for q in range(parties) if q != p]
            plan = [(q, frame) for q in others for frame in frames(p, q)]
            plan = [plan[(many + 1) * (i % 2) + i // 2] for i in range(len(plan))]  # now the one, now the other
            got: dict[int, list[Frame]] = {q: [] for q in others}
            deadline = time.monotonic() + PATIENCE
            while plan or end.pending() or any(not g or getattr(g[-1], "kind", 0) != 99 for g in got.values()):
                assert time.monotonic() < deadline
                for q, frame in plan[:7]:
                    end.send(q, frame)
                del plan[:7]
                for q, frame in end.receive():
                    got[q].append(frame)
                end.flush()
                if not plan:
                    end.wait(0.1)
            for q in others:
                assert contents(got[q]) == contents(frames(q, p)), f"from {q} to {p}"
            finish(end)

        with self.connect(parties) as c, children(*(lambda p=p: play(p) for p in range(parties))):  # type: ignore[misc]
            pass

    # Room.

    def test_what_does_not_fit_waits_and_drains_in_order(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for i in range(300):
                a.send(1, numbered(i, width=100))
                if i % 50 == 49:
                    a.send(1, Note(i))
            assert a.pending() > 0 and not a.flush()
            got: list[tuple[int, Frame]] = []
            while True:
                got += b.receive()
                if a.flush() and not b.wait(0.0):
                    break
            assert a.pending() == 0
            assert waves(got) == list(range(300))
            assert [f.kind for _, f in got if isinstance(f, Note)] == list(range(49, 300, 50))

    def test_notes_in_the_outbox_are_copies(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            array, tensor = np.zeros(1000, dtype=np.int64), torch.zeros(1000)
            for i in range(40):
                array[:], tensor[:] = i, float(i)
                a.send(1, Note(i, {}, {"array": array, "tensor": tensor}))
            assert a.pending() > 0
            array[:] = -1
            tensor[:] = -1
            got = []
            while len(got) < 40:
                got += [f for _, f in b.receive()]
                a.flush()
            for i, note in enumerate(got):
                assert isinstance(note, Note) and note.kind == i
                assert (note.arrays["array"] == i).all() and (note.arrays["tensor"] == i).all()

    @pytest.mark.parametrize("shape", [(10,), (100, 10), (2000, 10)], ids=str)
    @pytest.mark.parametrize("strided", [False, True])
    def test_rows_may_be_overwritten_once_they_are_sent(self, shape: tuple[int, ...], strided: bool) -> None:
        """An arena's memory is used again for the next wave, whether its slices have left the outbox or not."""
        many = 100
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            rows = torch.empty(*shape, 2).select(-1, 0) if strided else torch.empty(shape)
            for i in range(many):
                rows.fill_(float(i))
                a.send(1, piece(i, rows))
            assert a.pending() > 0
            rows.fill_(-1.0)
            got: list[Frame] = []
            deadline = time.monotonic() + PATIENCE
            while len(got) < many:
                assert time.monotonic() < deadline
                got += [f for _, f in b.receive()]
                a.flush()
            for i, frame in enumerate(got):
                assert isinstance(frame, Slice) and frame.wave == i and frame.rows is not None
                assert frame.rows.shape == shape and (frame.rows == i).all()

    def test_records_larger_than_what_lies_between(self) -> None:
        big = torch.arange(300_000, dtype=torch.float64).reshape(30, -1)

        def sender() -> None:
            end = c.endpoint(0)
            end.send(1, Note(1))
            end.send(1, Note(2, {"text": "x" * 200_000}, {"big": big.numpy()}))
            end.send(1, numbered(7))
            end.send(1, piece(3, big))
            end.send(1, piece(4, big[:, ::2]))
            end.send(1, piece(5, None))
            finish(end)

        with self.connect(2) as c, children(sender):
            end = c.endpoint(1)
            got = [f for _, f in receive_all(end, lambda frames: len(frames) == 6)]
            finish(end)
            note = Note(2, {"text": "x" * 200_000}, {"big": big.numpy()})
            assert contents(got) == contents(
                [Note(1), note, numbered(7), piece(3, big), piece(4, big[:, ::2]), piece(5, None)]
            )

    def test_two_parties_that_flood_each_other_do_not_deadlock(self) -> None:
        many = 1500

        def flood(p: int) -> None:
            end, got = c.endpoint(p), 0
            for i in range(many):
                end.send(1 - p, numbered(i, width=200))
                if i % 3 == 0:
                    for n in waves(end.receive()):
                        assert n == got
                        got += 1
            deadline = time.monotonic() + PATIENCE
            while got < many or end.pending():
                assert time.monotonic() < deadline
                for n in waves(end.receive()):
                    assert n == got
                    got += 1
                if not end.flush() or got < many:
                    end.wait(0.5)
            finish(end)

        with self.connect(2) as c, children(lambda: flood(0), lambda: flood(1)):
            pass

    # Copies.

    def test_what_was_received_is_the_receivers_own(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            note = np.arange(3)
            a.send(1, Note(0, {}, {"x": note}))
            rows = [torch.ones(5), torch.ones(40, 10), torch.ones(900, 10)]
            for i in range(3):
                a.send(1, piece(i, rows[i]))
            frames = receive_all(b, lambda frames: a.flush() and len(frames) == 4)
            (_, first), *rest = frames
            assert isinstance(first, Note)
            kept = contents(f for _, f in frames)
            note[:] = 9
            for each in rows:
                each.zero_()
            for i in range(500):  # and what comes later does not write over it
                a.send(1, numbered(i, width=50))
                a.send(1, piece(i, torch.zeros(i % 7 * 30, 10)))
                b.receive()
                a.flush()
            assert contents(f for _, f in frames) == kept
            for _, frame in rest:
                assert isinstance(frame, Slice) and frame.rows is not None
                frame.rows.fill_(7.0)
            assert all((each == 0).all() for each in rows)
            assert first.arrays["x"].tolist() == [0, 1, 2]

    # Order.

    def test_frames_of_all_kinds_keep_their_order(self) -> None:
        """Also where some wait in the outbox, go in fragments, or have their rows somewhere else."""
        with self.connect(3) as c:
            a, b, d = (c.endpoint(p) for p in range(3))
            sent: dict[int, list[Frame]] = {0: [], 1: []}
            for i in range(60):
                for p, end in enumerate((a, b)):
                    rows = torch.ones([3, 700, 100, 9000][(i + p) % 4])
                    frames = [numbered(i), Note(i), piece(i, rows), piece(i, None), Note(-i), numbered(i), numbered(i)]
                    for frame in frames[i % 3 :: 1 + i % 2]:
                        end.send(2, frame)
                        sent[p].append(frame)
            assert a.pending() and b.pending()
            got: dict[int, list[Frame]] = {0: [], 1: []}
            deadline = time.monotonic() + PATIENCE
            while any(len(got[p]) < len(sent[p]) for p in got):
                assert time.monotonic() < deadline
                for p, frame in d.receive():
                    got[p].append(frame)
                a.flush()
                b.flush()
            for p in got:
                assert contents(got[p]) == contents(sent[p])

    # Sleeping.

    def test_waiting_ends_after_its_time(self) -> None:
        with self.connect(2) as c:
            began = time.monotonic()
            assert not c.endpoint(0).wait(0.02)
            assert not c.endpoint(0).wait(0.0)
            assert time.monotonic() - began > 0.015

    def test_nothing_is_waited_for_where_something_is_there(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            a.send(1, numbered(1))
            assert b.wait(PATIENCE) and waves(b.receive()) == [1]  # does not run into the test's own limit
            assert not b.wait(0.0)

    def test_no_wake_up_is_lost_in_a_long_ping_pong(self) -> None:
        """Each waits for the other for as long as it takes: one lost wake-up, and the test runs into its deadline."""
        many = 2000

        def pong() -> None:
            end = c.endpoint(1)
            for i in range(many):
                while not (got := end.receive()):
                    assert end.wait(PATIENCE), f"pong {i} was not woken"
                assert waves(got) == [i]
                end.send(0, got[0][1])
            finish(end)

        with self.connect(2) as c, children(pong):
            end = c.endpoint(0)
            times = []
            for i in range(many):
                began = time.perf_counter()
                end.send(1, numbered(i))
                while not (got := end.receive()):
                    assert end.wait(PATIENCE), f"ping {i} was not woken"
                assert waves(got) == [i]
                times.append(time.perf_counter() - began)
            finish(end)
            assert np.median(times) < 0.1, "there and back takes so long: sleepers are not woken"

    def test_waiting_ends_when_the_outbox_moves_on(self) -> None:
        def reader() -> None:
            end = c.endpoint(1)
            receive_all(end, lambda frames: len(waves(frames)) == 400)
            finish(end)

        with self.connect(2) as c:
            end = c.endpoint(0)
            for i in range(400):
                end.send(1, numbered(i, width=200))
            before = end.pending()
            assert before > 0
            with children(reader):
                assert end.wait(PATIENCE) and end.pending() < before
                while not end.flush():
                    assert end.wait(PATIENCE)

    # The end.

    def test_a_killed_party_leaves_whole_frames_and_nothing_else(self) -> None:
        """Killed in the middle of a flood: what is there can be read, in order, and then nothing comes any more."""
        with self.connect(2) as c:

            def flood() -> None:
                end = c.endpoint(1)
                for i in range(10**9):
                    end.send(0, numbered(i, width=300))
                    end.wait(1.0) if end.pending() > 50 else None

            end, child = c.endpoint(0), Child(flood)
            try:
                got = waves(receive_all(end, lambda frames: len(waves(frames)) > 200))
            finally:
                child.kill()
            while end.wait(0.0):
                got += waves(end.receive())
            assert got == list(range(len(got)))
            end.send(1, numbered(1))
            assert not end.wait(0.0)
