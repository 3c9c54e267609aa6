"""The ring: records in order, in little room, never torn; and what is wrong in it is said, not followed."""

from __future__ import annotations

import os
import time
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet.errors import TransportError
from ampnet.runtime.transport import Mesh
from ampnet.runtime.transport import ring as ring_module
from ampnet.runtime.transport.ring import DATA, LINE, Ring
from tests.runtime.transport.contract import PATIENCE, children


def make(capacity: int = 1024) -> Ring:
    return Ring(memoryview(bytearray(Ring.size(capacity))))


def record(number: int, size: int) -> bytes:
    """Bytes that tell which record they are of."""
    return ((np.arange(size) * 7 + 31 * number) % 251).astype(np.uint8).tobytes()


def test_records_come_in_order_and_whole() -> None:
    ring = make()
    assert ring.read() is None and not ring.ready()
    assert ring.try_write([b"ab", b"", b"cd"]) and ring.try_write([]) and ring.try_write([np.arange(3)])
    assert ring.ready()
    first, second, third = ring.read(), ring.read(), ring.read()
    assert first is not None and second is not None and third is not None
    assert bytes(first) == b"abcd" and bytes(second) == b"" and np.frombuffer(third, np.int64).tolist() == [0, 1, 2]
    assert ring.read() is None and not ring.ready()


def test_space_comes_back_with_release_and_not_before() -> None:
    ring = make()
    while ring.try_write([bytes(100)]):
        pass
    count = 0
    while ring.read() is not None:
        count += 1
    assert count == 1024 // 192 and not ring.try_write([bytes(100)])
    ring.release()
    assert ring.try_write([bytes(100)])


def test_a_record_begins_at_a_multiple_of_64() -> None:
    memory = memoryview(np.zeros(Ring.size(4096) + LINE, dtype=np.uint8))
    start = -np.frombuffer(memory, np.uint8).__array_interface__["data"][0] % LINE
    ring = Ring(memory[start : start + Ring.size(4096)])
    for size in (1, 63, 64, 65, 200):
        assert ring.try_write([bytes(size)])
        view = ring.read()
        assert view is not None
        assert np.frombuffer(view, np.uint8).__array_interface__["data"][0] % LINE == 0


def test_arrays_of_any_strides_are_written_row_after_row() -> None:
    ring, array = make(4096), np.arange(60, dtype=np.float32).reshape(6, 10)
    for part in (array[:, 2:5], array.T, array[::2], array[:0], np.float64(3.0).reshape(())):
        assert ring.try_write([b"12345678", part])
        view = ring.read()
        assert view is not None and bytes(view[8:]) == np.ascontiguousarray(part).tobytes()
        ring.release()


def test_memoryviews_can_be_written() -> None:
    ring = make()
    assert ring.try_write([memoryview(np.arange(4)), memoryview(b"xy")])
    view = ring.read()
    assert view is not None and bytes(view) == np.arange(4).tobytes() + b"xy"


def test_a_writer_that_is_interrupted_has_written_nothing() -> None:
    ring = make()
    with pytest.raises(TypeError):
        ring.try_write([b"half of it", memoryview(np.arange(6))[::2]])  # its bytes do not lie together
    assert not ring.ready() and ring.try_write([b"next"])
    assert bytes(ring.read() or b"") == b"next" and ring.read() is None


def test_fragments_go_on_where_they_stopped() -> None:
    ring, whole = make(), record(1, 5000)
    parts = [whole[:7], np.frombuffer(whole[7:4007], np.uint8).reshape(40, 100), whole[4007:]]
    assert ring.largest < 5000
    calls = 0
    while not ring.try_write(parts):
        calls += 1
        assert ring.read() is None  # all fragments so far
        ring.release()
    got = ring.read()
    assert got is not None and bytes(got) == whole and calls > 3
    ring.release()
    assert ring.try_write([b"next"]) and bytes(ring.read() or b"") == b"next"


def test_an_empty_ring_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, "FRESH", 1024)
    ring = make(1 << 16)
    for number in range(2000):
        assert ring.try_write([record(number, 200)])
        got = ring.read()
        assert got is not None and bytes(got) == record(number, 200)
        ring.release()
    assert not np.frombuffer(ring._data, np.uint8)[2048:].any(), "memory was touched that was not needed"


def test_an_empty_ring_takes_a_record_of_any_size_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a ring began anew for a record that then did not fit: what is skipped takes room too. It waited for ever."""
    monkeypatch.setattr(ring_module, "FRESH", 64)
    for before in range(0, 1024, 64):
        for size in range(0, make().largest + 1, 32):
            ring = make()
            for _ in range(before // LINE):
                assert ring.try_write([b""])
                assert ring.read() is not None
                ring.release()
            assert ring.try_write([record(0, size)]), (before, size)
            got = ring.read()
            assert got is not None and bytes(got) == record(0, size)


@settings(max_examples=150)
@given(
    script=st.lists(st.tuples(st.sampled_from("wwwrrx"), st.integers(0, 3000)), max_size=120),
    fresh=st.sampled_from([64, 640, 1 << 20]),
    capacity=st.sampled_from([1024, 1088, 4096]),
)
def test_any_order_of_calls(script: list[tuple[str, int]], fresh: int, capacity: int) -> None:
    kept, ring_module.FRESH = ring_module.FRESH, fresh
    try:
        ring, written, waiting, looked = make(capacity), deque[bytes](), deque[bytes](), []
        number = 0
        for what, size in script:
            if what == "w":
                waiting.append(record(number, size if size % 3 else size // 20))
                number += 1
            while waiting and ring.try_write([waiting[0][:5], waiting[0][5:]]):
                written.append(waiting.popleft())
            if what == "r":
                view = ring.read()
                if view is None:
                    assert not written
                else:
                    looked.append((view, written.popleft()))
            if what == "x":
                assert all(bytes(view) == sent for view, sent in looked)  # nothing that is looked at is written over
                looked.clear()
                ring.release()
        for _ in range(10_000):
            while waiting and ring.try_write([waiting[0]]):
                written.append(waiting.popleft())
            while (view := ring.read()) is not None:
                assert bytes(view) == written.popleft()
            ring.release()
            if not waiting and not written:
                break
        assert not waiting and not written and not ring.ready()
    finally:
        ring_module.FRESH = kept


def test_a_writer_and_a_reader_in_two_processes() -> None:
    many = 4000
    sizes = np.random.default_rng(3).integers(0, 3000, many)

    def writer() -> None:
        for number in range(many):
            while not mesh._rings[0, 1].try_write([record(number, int(sizes[number]))]):
                os.sched_yield()

    with Mesh(2, 4096) as mesh, children(writer):
        ring = mesh._rings[0, 1]
        deadline = time.monotonic() + PATIENCE
        number = 0
        while number < many:
            while (view := ring.read()) is not None:
                assert bytes(view) == record(number, int(sizes[number])), number
                number += 1
            ring.release()
            assert time.monotonic() < deadline


def test_what_the_other_side_says_is_not_trusted() -> None:
    for word, value, match in (
        (0, 1 << 40, "writer says"),
        (0, -64, "writer says"),
        (0, 100, "writer says"),
        (DATA // 8, 1 << 40, "a record of"),
        (DATA // 8, -7, "a record of"),
        (DATA // 8, 900, "a record of"),
        (DATA // 8, -1, "a skip of"),
        (DATA // 8 + 1, 1 << 40, None),  # the first of many fragments; nothing is allocated for the rest
        (DATA // 8 + 1, 3, "a fragment"),
        (DATA // 8 + 2, 8, "a fragment"),
    ):
        memory = memoryview(bytearray(Ring.size(1024)))
        ring = Ring(memory)
        assert ring.try_write([b"12345678"])
        memory.cast("q")[word] = value
        if match is None:
            assert ring.read() is None
            assert ring.try_write([b"other"])
            match = "a fragment"
        with pytest.raises(TransportError, match=match):
            ring.read()


def test_a_reader_that_gives_back_what_was_not_written_is_found_out() -> None:
    memory = memoryview(bytearray(Ring.size(1024)))
    ring = Ring(memory)
    memory.cast("q")[16] = 1 << 40
    with pytest.raises(TransportError, match="gave back"):
        while ring.try_write([bytes(100)]):
            pass


@settings(max_examples=300)
@given(st.data())
def test_a_garbled_ring_gives_records_or_a_named_error(data: st.DataObject) -> None:
    memory = memoryview(bytearray(Ring.size(1024)))
    ring = Ring(memory)
    for size in data.draw(st.lists(st.integers(0, 900), min_size=1, max_size=5)):
        ring.try_write([bytes(size)])
    words = memory.cast("q")
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from([0, 16, *range(DATA // 8, DATA // 8 + 64, 8)])) + data.draw(st.integers(0, 2))
        words[place] = data.draw(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 1200))
    try:
        while (view := ring.read()) is not None:
            assert len(view) <= 1024
        ring.release()
    except TransportError:
        pass


@pytest.mark.parametrize("size", [0, 64, 960, 1025])
def test_a_ring_has_a_size_it_can_work_with(size: int) -> None:
    with pytest.raises(TransportError, match="a ring needs a multiple of 64 bytes"):
        make(size)
