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
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet.errors import TransportError
from ampnet.message import Messages, offsets_of
from ampnet.runtime.transport import Batch, Endpoint, Frame, Note
from ampnet.runtime.transport.dtypes import CODED
from ampnet.state import States

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
    return frame.target, frame.direction, *one_by_one(frame.messages)


def one_by_one(messages: Messages) -> list[object]:
    """The content of each message, so that batches can be compared however they were split and put together."""
    payload, shape = messages.payload, None if messages.payload is None else tuple(messages.payload.shape[1:])
    out: list[object] = []
    starts = np.arange(len(messages) + 1) if messages.offsets is None else messages.offsets
    for i in range(len(messages)):
        rows = None if payload is None else bits(payload[int(starts[i]) : int(starts[i + 1])])
        out.append((tuple(messages.states.row(i).items()), messages.train, shape, rows))
    return out


def stream(frames: list[Frame]) -> list[object]:
    """What was sent or received, message by message: by target, direction and kind of message between two notes.

    This is what a transport keeps: batches may be put together, but the messages of one kind stay in order, and no
    message changes places with a note.
    """
    out: list[object] = []
    between: dict[object, list[object]] = {}

    def close() -> None:
        if between:
            out.append(sorted(((repr(key), value) for key, value in between.items() if value), key=lambda kv: kv[0]))
            between.clear()
            if not out[-1]:
                out.pop()

    for frame in frames:
        if isinstance(frame, Note):
            close()
            out.append(content(frame))
        else:
            m = frame.messages
            shape = None if m.payload is None else (m.payload.dtype, tuple(m.payload.shape[1:]))
            kind = (frame.target, frame.direction, m.train, m.states.fields, shape)
            between.setdefault(kind, []).extend(one_by_one(m))
    close()
    return out


def make_frame(rng: np.random.Generator, most_rows: int = 40) -> Frame:
    """Any frame: a note, or a batch with or without payload, offsets, rows."""
    if rng.random() < 0.2:
        arrays: dict[str, Any] = {}
        if rng.random() < 0.5:
            arrays["loss"] = tensor(rng, (int(rng.integers(5)),), torch.float32)
            arrays["parents"] = rng.integers(0, 9, (int(rng.integers(3)), 2))
        return Note(int(rng.integers(9)), {"text": "é" * int(rng.integers(4)), "n": [1, 2.5, None]}, arrays)
    count = int(rng.integers(0, 5))
    fields = [("instance",), ("instance", "t"), ("instance", "node", "step")][int(rng.integers(3))]
    states = States(fields, rng.integers(-9, 1 << 40, (len(fields), count)))
    offsets = offsets_of(rng.integers(0, most_rows // 4 + 1, count)) if rng.random() < 0.4 else None
    rows = count if offsets is None else int(offsets[-1])
    payload = None
    if rng.random() < 0.85:
        width = (int(rng.integers(1, most_rows)),) if rng.random() < 0.8 else (2, 3)
        dtype = [torch.float32, torch.float64, torch.bfloat16, torch.bool][int(rng.integers(4))]
        payload = tensor(rng, (rows, *width), dtype)
    messages = Messages(payload, states, offsets, train=bool(rng.random() < 0.7))
    return Batch(int(rng.integers(3)), int(rng.integers(2)), messages)


def batch(*instances: int, width: int = 4, target: int = 1, train: bool = True, **fields: int) -> Batch:
    """Messages whose payload tells which they are: filled with the number of the instance."""
    payload = torch.tensor(instances, dtype=torch.float32).unsqueeze(1).repeat(1, width)
    return Batch(target, 0, Messages(payload, States.of(instance=list(instances), **fields), train=train))


def instances(frames: list[tuple[int, Frame]]) -> list[int]:
    """The instances of all messages received, in order."""
    return [i for _, f in frames if isinstance(f, Batch) for i in f.messages.states.instance.tolist()]


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
                states = States.of(instance=np.arange(shape[0]))
                sent = Batch(2, 1, Messages(tensor(rng, shape, dtype), states, train=False))
                a.send(1, sent)
                note = Note(3, {"a": 1}, {"x": tensor(rng, shape, dtype)})
                a.send(1, note)
                got = receive_all(b, lambda frames: len(frames) == 2)
                assert [content(frame) for _, frame in got] == [content(sent), content(note)]
                assert all(sender == 0 for sender, _ in got)

    def test_an_empty_batch_and_one_without_payload_arrive(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            empty = batch(1, 2).messages.slice(0, 0)
            nothing = Messages(None, States.of(instance=[4, 5]))
            ragged = Messages(None, States.of(instance=[4, 5]), offsets_of(np.array([0, 3])), train=False)
            bare = Messages(torch.ones(2, 3), States((), np.zeros((0, 2), dtype=np.int64)))
            for target, messages in enumerate((empty, nothing, ragged, bare)):
                a.send(1, Batch(target, 1, messages))
            frames = [f for _, f in receive_all(b, lambda frames: len(frames) == 4) if isinstance(f, Batch)]
            assert [f.target for f in frames] == [0, 1, 2, 3]
            assert len(frames[0].messages) == 0 and tuple(frames[0].messages.payload.shape) == (0, 4)  # type: ignore[union-attr]
            assert frames[1].messages.payload is None and frames[1].messages.states == nothing.states
            assert frames[2].messages.offsets.tolist() == [0, 0, 3] and not frames[2].messages.train  # type: ignore[union-attr]
            assert len(frames[3].messages) == 2 and frames[3].messages.states.fields == ()

    def test_rows_that_do_not_lie_together_arrive_as_they_look(self) -> None:
        wide = torch.randn(6, 10)
        columns = States.of(instance=np.arange(6), t=np.arange(6)).slice(1, 5)
        views = [wide[1:5, 2:7], wide.t()[2:6], wide[1:5].unsqueeze(2).expand(4, 10, 3), wide[:4, ::3]]
        views += [view.to(torch.bfloat16) for view in views[:1]] + [wide.to(torch.bfloat16)[1:5, 1:3]]
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for view in views:
                a.send(1, Batch(0, 0, Messages(view, columns)))
                ((_, got),) = receive_all(b, lambda frames: len(frames) == 1)
                assert isinstance(got, Batch) and got.messages.payload is not None
                assert torch.equal(got.messages.payload, view) and got.messages.states == columns
                assert got.messages.payload.is_contiguous()

    def test_tensors_that_numpy_does_not_take_as_they_are(self) -> None:
        z = torch.randn(3, 2, dtype=torch.complex64)
        tensors = [torch.randn(3, 2, requires_grad=True), z.conj(), z.conj().imag]
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for sent in tensors:
                a.send(1, Batch(0, 0, Messages(sent, States.of(instance=[1, 2, 3]))))
                ((_, got),) = receive_all(b, lambda frames: len(frames) == 1)
                assert isinstance(got, Batch) and torch.equal(got.messages.payload, sent.detach())  # type: ignore[arg-type]

    def test_many_sets_of_fields(self) -> None:
        with self.connect(2, small=False) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            sent = [batch(i, **{f"f{i % 60}": i}, é=3) for i in range(120)]
            for frame in sent:
                a.send(1, frame)
            got = receive_all(b, lambda frames: len(instances(frames)) == 120)
            assert stream([f for _, f in got]) == stream(list(sent))

    def test_what_cannot_be_sent_is_refused_by_name_and_harms_nothing(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            odd = torch.empty(1, 2, dtype=torch.bits8)
            states = States.of(instance=1, odd=2)
            for frame, match in (
                (Batch(0, 0, Messages(odd, states)), "bits8"),
                (Batch(-1, 0, batch(1).messages), "target -1"),
                (Batch(1, 2, batch(1).messages), "direction 2"),
                (Batch(1 << 63, 0, batch(1).messages), "numbers"),
                (Note(1, {"a": object()}), "object"),
                (Note(1, {}, {"a": np.array(["x"])}), "'a' of <U1"),
            ):
                with pytest.raises(TransportError, match=match):
                    a.send(1, frame)
            for to in (0, 2, -1):
                with pytest.raises(TransportError, match=f"party {to}"):
                    a.send(to, batch(1))
            a.send(1, Batch(0, 0, Messages(torch.ones(1, 2), states)))
            ((_, got),) = receive_all(b, lambda frames: len(frames) == 1)
            assert isinstance(got, Batch) and got.messages.states == states

    @settings(max_examples=40)
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
                    if isinstance(frame, Batch):  # targets apart by sender: so batches of two are never put together
                        frame.target += 10 * p
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
                assert stream(got[way]) == stream(sent[way]), way

    def test_any_frames_across_processes(self) -> None:
        """Three processes send one another hundreds of frames, small ones and ones larger than what lies between."""
        parties, many = 3, 150

        def frames(p: int, q: int) -> list[Frame]:
            rng = np.random.default_rng(100 * p + q)
            out = []
            for i in range(many):
                frame = make_frame(rng, 200 if i % 10 == 0 else 20)
                if isinstance(frame, Batch):
                    frame.target += 10 * p
                out.append(frame)
            return [*out, Note(99)]

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
                assert stream(got[q]) == stream(frames(q, p)), f"from {q} to {p}"

        with self.connect(parties) as c, children(*(lambda p=p: play(p) for p in range(parties))):  # type: ignore[misc]
            pass

    # Room.

    def test_what_does_not_fit_waits_and_drains_in_order(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            for i in range(300):
                a.send(1, batch(i, width=100, t=i))
                if i % 50 == 49:
                    a.send(1, Note(i))
            assert a.pending() > 0 and not a.flush()
            got: list[tuple[int, Frame]] = []
            while True:
                got += b.receive()
                if a.flush() and not b.wait(0.0):
                    break
            assert a.pending() == 0
            assert instances(got) == list(range(300))
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

    def test_records_larger_than_what_lies_between(self) -> None:
        big = torch.arange(300_000, dtype=torch.float64).reshape(30, -1)

        def sender() -> None:
            end = c.endpoint(0)
            end.send(1, Note(1))
            end.send(1, Batch(0, 0, Messages(big, States.of(instance=np.arange(30)))))
            end.send(1, Batch(1, 0, Messages(big[:, ::2], States.of(instance=np.arange(30)))))
            end.send(1, Note(2, {"text": "x" * 200_000}, {"big": big.numpy()}))
            end.send(1, batch(7))
            while not end.flush():
                end.wait(1.0)

        with self.connect(2) as c, children(sender):
            got = [f for _, f in receive_all(c.endpoint(1), lambda frames: len(frames) == 5)]
            assert isinstance(got[0], Note) and isinstance(got[1], Batch) and isinstance(got[2], Batch)
            assert torch.equal(got[1].messages.payload, big) and torch.equal(got[2].messages.payload, big[:, ::2])  # type: ignore[arg-type]
            assert isinstance(got[3], Note) and len(got[3].data["text"]) == 200_000
            assert np.array_equal(got[3].arrays["big"], big.numpy())
            assert instances([(0, got[4])]) == [7]

    def test_two_parties_that_flood_each_other_do_not_deadlock(self) -> None:
        many = 1500

        def flood(p: int) -> None:
            end, got = c.endpoint(p), 0
            for i in range(many):
                end.send(1 - p, batch(i, width=200))
                if i % 3 == 0:
                    for n in instances(end.receive()):
                        assert n == got
                        got += 1
            deadline = time.monotonic() + PATIENCE
            while got < many or end.pending():
                assert time.monotonic() < deadline
                for n in instances(end.receive()):
                    assert n == got
                    got += 1
                if not end.flush() or got < many:
                    end.wait(0.5)

        with self.connect(2) as c, children(lambda: flood(0), lambda: flood(1)):
            pass

    # Copies.

    def test_what_was_received_is_the_receivers_own(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            payload, offsets = torch.ones(4, 3), np.array([0, 1, 4])
            sent = Messages(payload, States.of(instance=[5, 6]), offsets)
            note = np.arange(3)
            a.send(1, Batch(0, 0, sent))
            a.send(1, Note(0, {}, {"x": note}))
            (_, first), (_, second) = receive_all(b, lambda frames: len(frames) == 2)
            assert isinstance(first, Batch) and isinstance(second, Note)
            kept = one_by_one(first.messages)
            payload.zero_()
            offsets[1] = 2
            note[:] = 9
            for i in range(500):  # and what comes later does not write over it
                a.send(1, batch(i, width=50))
                b.receive()
                a.flush()
            assert one_by_one(first.messages) == kept
            assert second.arrays["x"].tolist() == [0, 1, 2]
            assert sent.payload is payload and first.messages.payload is not payload
            first.messages.payload.fill_(7.0)  # type: ignore[union-attr]
            assert (payload == 0).all()

    # Putting together.

    def test_batches_of_one_kind_become_one_batch_in_order(self) -> None:
        with self.connect(3) as c:
            a, b, d = (c.endpoint(p) for p in range(3))
            a.send(2, batch(1, 2))
            a.send(2, batch(3, target=5))
            a.send(2, batch(4))
            b.send(2, batch(5))
            b.send(2, batch(6, train=False))
            b.send(2, batch(7, t=1))
            b.send(2, batch(8, width=6))
            b.send(2, Batch(1, 1, batch(9).messages))
            b.send(2, Batch(1, 0, Messages(None, States.of(instance=10))))
            b.send(2, Batch(1, 0, batch(11).messages.with_payload(torch.ones(1, 4, dtype=torch.float64))))
            got = receive_all(d, lambda frames: len(instances(frames)) == 11)
            assert [instances([f]) for f in got] == [[1, 2, 4, 5], [3], [6], [7], [8], [9], [10], [11]]
            first = got[0][1]
            assert isinstance(first, Batch) and first.messages.payload is not None
            assert first.messages.payload[:, 0].tolist() == [1, 2, 4, 5] and first.messages.offsets is None

    def test_messages_of_one_row_and_of_several_meet(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            a.send(1, batch(1, 2))
            rows = torch.arange(12, dtype=torch.float32).reshape(3, 4)
            a.send(1, Batch(1, 0, Messages(rows, States.of(instance=[3, 4]), np.array([0, 3, 3]))))
            ((_, got),) = receive_all(b, lambda frames: len(instances(frames)) == 4)
            assert isinstance(got, Batch) and got.messages.offsets is not None and got.messages.payload is not None
            assert got.messages.offsets.tolist() == [0, 1, 2, 5, 5]
            assert torch.equal(got.messages.payload[2:], rows)

    def test_no_batch_changes_places_with_a_note_of_its_sender(self) -> None:
        with self.connect(3) as c:
            a, b, d = (c.endpoint(p) for p in range(3))
            for end, first in ((a, 0), (b, 10)):
                end.send(2, batch(first))
                end.send(2, Note(first))
                end.send(2, batch(first + 1))
                end.send(2, batch(first + 2))
            got = receive_all(d, lambda frames: len(instances(frames)) == 6)
            seen: list[object] = []
            for _, frame in got:
                seen += [frame.kind + 0.5] if isinstance(frame, Note) else frame.messages.states.instance.tolist()
            for first in (0, 10):
                mine = [x for x in seen if first <= x < first + 10]  # type: ignore[operator]
                assert mine == [first, first + 0.5, first + 1, first + 2]

    def test_batches_that_are_not_to_be_put_together_stay_as_they_were(self) -> None:
        """Where the receiver counts batches, or wants to know which was the last of those sent together."""
        with self.connect(3) as c:
            a, b, d = (c.endpoint(p) for p in range(3))
            a.send(2, batch(1, 2))
            a.send(2, Batch(1, 0, batch(3).messages, last=True))
            a.send(2, Note(7))
            a.send(2, batch(4))
            b.send(2, Batch(1, 0, batch(5).messages, last=True))
            got = d.receive(merge=False)
            assert [instances([f]) for f in got] == [[1, 2], [3], [], [4], [5]]
            assert [f.last for _, f in got if isinstance(f, Batch)] == [False, True, False, True]
            assert [s for s, _ in got] == [0, 0, 0, 0, 1]

    def test_a_batch_keeps_that_it_is_the_last(self) -> None:
        """With and without payload and offsets, in pieces, and out of the outbox."""
        ragged = Messages(torch.ones(3, 4), States.of(instance=[4, 5]), np.array([0, 3, 3]))
        kinds = [batch(1).messages, Messages(None, States.of(instance=[2])), ragged, batch(1, width=30_000).messages]
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            sent = [Batch(i % 3, i % 2, kinds[i % 4], last=i % 3 == 0) for i in range(40)]
            for frame in sent:
                a.send(1, frame)
            got: list[Frame] = []
            deadline = time.monotonic() + PATIENCE
            while len(got) < len(sent):
                assert time.monotonic() < deadline
                got += [f for _, f in b.receive(merge=False)]
                a.flush()
            assert [content(f) for f in got] == [content(f) for f in sent]
            assert [isinstance(f, Batch) and f.last for f in got] == [f.last for f in sent]

    def test_senders_looked_at_last_come_first(self) -> None:
        with self.connect(3) as c:
            a, b, d = (c.endpoint(p) for p in range(3))
            a.send(2, batch(1))
            b.send(2, Note(1))
            b.send(2, batch(2))
            got = d.receive(last=(1,))
            assert [(s, type(f)) for s, f in got] == [(1, Note), (1, Batch), (0, Batch)]

    def test_what_the_controller_said_first_is_seen_first(self) -> None:
        """A tells C and then B; B tells C. C, asleep or not, sees A's word before B's, also where the way is full.

        Without ``causal`` A's word to C may wait in A's outbox while the one to B goes.
        """
        many = 400

        def a() -> None:
            end = c.endpoint(0, causal=True)
            for i in range(many):
                end.send(2, Note(i, {"text": "x" * (3000 if i % 5 == 0 else 10)}))
                end.send(1, Note(i))
                end.receive()
            while not end.flush():
                end.wait(1.0)

        def b() -> None:
            end, seen = c.endpoint(1), 0
            while seen < many:
                for _, note in end.receive():
                    assert isinstance(note, Note) and note.kind == seen
                    end.send(2, note)
                    seen += 1
                if seen < many:
                    end.wait(1.0)
            while not end.flush():
                end.wait(1.0)

        with self.connect(3) as c, children(a, b):
            end, told, seen = c.endpoint(2), 0, 0
            deadline = time.monotonic() + PATIENCE
            while seen < many:
                assert time.monotonic() < deadline
                for sender, note in end.receive(last=(0,)):
                    assert isinstance(note, Note)
                    if sender == 0:
                        assert note.kind == told
                        told += 1
                    else:
                        assert note.kind == seen < told
                        seen += 1
                if seen < many:
                    end.wait(1.0)

    # Sleeping.

    def test_waiting_ends_after_its_time(self) -> None:
        with self.connect(2) as c:
            began = time.monotonic()
            assert not c.endpoint(0).wait(0.02)
            assert not c.endpoint(0).wait(0.0)
            assert time.monotonic() - began > 0.015

    def test_waiting_ends_for_another_file(self) -> None:
        read, write = os.pipe()
        try:
            with self.connect(2) as c:
                end = c.endpoint(0)
                assert not end.wait(0.0, also=(read,))
                os.write(write, b"x")
                assert end.wait(PATIENCE, also=(read,))
                assert end.wait(0.0, also=(read,))
                assert not end.wait(0.0)
        finally:
            os.close(read)
            os.close(write)

    def test_nothing_is_waited_for_where_something_is_there(self) -> None:
        with self.connect(2) as c:
            a, b = c.endpoint(0), c.endpoint(1)
            a.send(1, batch(1))
            assert b.wait(PATIENCE) and instances(b.receive()) == [1]  # does not run into the test's own limit
            assert not b.wait(0.0)

    def test_no_wake_up_is_lost_in_a_long_ping_pong(self) -> None:
        """Each waits for the other for as long as it takes: one lost wake-up, and the test runs into its deadline."""
        many = 2000

        def pong() -> None:
            end = c.endpoint(1)
            for i in range(many):
                while not (got := end.receive()):
                    assert end.wait(PATIENCE), f"pong {i} was not woken"
                assert instances(got) == [i]
                end.send(0, got[0][1])

        with self.connect(2) as c, children(pong):
            end = c.endpoint(0)
            times = []
            for i in range(many):
                began = time.perf_counter()
                end.send(1, batch(i))
                while not (got := end.receive()):
                    assert end.wait(PATIENCE), f"ping {i} was not woken"
                assert instances(got) == [i]
                times.append(time.perf_counter() - began)
            assert np.median(times) < 0.1, "there and back takes so long: sleepers are not woken"

    def test_waiting_ends_when_the_outbox_moves_on(self) -> None:
        def reader() -> None:
            receive_all(c.endpoint(1), lambda frames: len(instances(frames)) == 400)

        with self.connect(2) as c:
            end = c.endpoint(0)
            for i in range(400):
                end.send(1, batch(i, width=200))
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
                    end.send(0, batch(i, width=300))
                    end.wait(1.0) if end.pending() > 50 else None

            end, child = c.endpoint(0), Child(flood)
            try:
                got = instances(receive_all(end, lambda frames: len(instances(frames)) > 200))
            finally:
                child.kill()
            while end.wait(0.0):
                got += instances(end.receive())
            assert got == list(range(len(got)))
            end.send(1, batch(1))
            assert not end.wait(0.0)
