"""The slab: rows are read where they lie, stay as they are for as long as anybody can see them, and come back."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ampnet.errors import TransportError
from ampnet.runtime.transport import Endpoint, Frame, Mesh, wire
from ampnet.runtime.transport import slab as slab_module
from ampnet.runtime.transport.dtypes import BY_DTYPE
from ampnet.runtime.transport.ring import LINE
from ampnet.runtime.transport.slab import LARGE, Slab
from ampnet.wave.slice import Slice
from tests.runtime.transport.contract import PATIENCE, Child, children, piece, receive_all

FLOAT = BY_DTYPE[torch.float32]


def make(capacity: int = 4096) -> Slab:
    return Slab(memoryview(bytearray(capacity)))


def put(slab: Slab, rows: np.ndarray) -> int:  # type: ignore[type-arg]
    place = slab.claim(rows.nbytes)
    if place:
        slab.write(place, rows)
    return place


def look(slab: Slab, place: int, rows: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    return slab.look(place, rows.shape, FLOAT, rows.nbytes)


def floats(number: int, count: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.full(count, number, np.float32)


def rows_of(frames: list[tuple[int, Frame]]) -> list[Tensor]:
    return [f.rows for _, f in frames if isinstance(f, Slice) and f.rows is not None]


def test_rows_are_read_where_they_lie() -> None:
    slab = make()
    place = put(slab, floats(1, 100))
    rows = look(slab, place, floats(1, 100))
    assert place % LINE == 0 and rows.tolist() == [1.0] * 100
    slab._bytes.view(np.float32)[place // 4] = 5.0
    assert rows[0] == 5.0


def test_a_block_comes_back_when_the_last_tensor_over_it_is_gone() -> None:
    slab, some = make(1024), floats(1, 200)
    rows = look(slab, put(slab, some), some)
    view, row, array = rows.view(20, 10), rows.view(20, 10)[3], rows[4:8].numpy()
    for gone in ("rows", "view", "row"):
        assert slab.held() == 1 and not put(slab, some), gone
        if gone == "rows":
            del rows
        elif gone == "view":
            del view
        else:
            del row
    assert slab.held() == 1 and not put(slab, some) and array.tolist() == [1.0] * 4
    del array
    assert slab.held() == 0 and put(slab, some)
    assert slab.overflows == 4


def test_other_dtypes_are_views_of_the_same_memory() -> None:
    slab, coded = make(), BY_DTYPE[torch.bfloat16]
    place = put(slab, np.full(8, 0x3F80, np.int16))
    rows = slab.look(place, (2, 4), coded, 16)
    assert rows.dtype is torch.bfloat16 and rows.tolist() == [[1.0] * 4] * 2 and slab.held() == 1
    del rows
    assert slab.held() == 0


def test_a_block_that_is_held_long_keeps_no_other() -> None:
    """A slab of four blocks:    [ 1 ][ 2 ][ 3 ][ 4 ]  ->  [ 5  ][    ][ 3 ][ 6 ]"""
    slab, some = make(4 * 256), floats(0, 48)
    first, second, third, fourth = (look(slab, put(slab, some), some) for _ in range(4))
    assert not put(slab, some)
    del first, second
    assert not put(slab, floats(0, 120)) and put(slab, floats(0, 80)) == 64
    del fourth
    assert put(slab, some) == 832 and not put(slab, some)
    assert third.sum() == 0 and slab.overflows == 3


def test_a_slab_that_nothing_is_in_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slab_module, "FRESH", 1024)
    slab, some = make(1 << 16), floats(1, 48)
    places = []
    for _ in range(50):
        places.append(put(slab, some))
        look(slab, places[-1], some)
    assert set(places) == {64, 320, 576, 832}


def test_no_slab_takes_nothing() -> None:
    slab = make(0)
    assert not slab.claim(10) and slab.overflows == 1
    slab.close()


@settings(max_examples=200)
@given(
    script=st.lists(st.tuples(st.sampled_from("wwwld"), st.integers(0, 400)), max_size=150),
    fresh=st.sampled_from([64, 1024, 1 << 20]),
    capacity=st.sampled_from([512, 1088, 4096]),
)
def test_any_order_of_calls(script: list[tuple[str, int]], fresh: int, capacity: int) -> None:
    """Nothing that is held, or waits to be looked at, is ever written over; in the end all room is back."""
    kept, slab_module.FRESH = slab_module.FRESH, fresh
    try:
        slab, waiting, held = make(capacity), list[tuple[int, int, int]](), list[tuple[int, Tensor]]()
        for number, (what, size) in enumerate(script):
            if what == "w" and (place := put(slab, floats(number, size + 1))):
                waiting.append((number, place, size + 1))
            elif what == "l" and waiting:
                sent, place, count = waiting.pop(0)
                held.append((sent, look(slab, place, floats(0, count))))
            elif what == "d" and held:
                held.pop(size % len(held))
            assert all((rows == sent).all() for sent, rows in held)
            assert slab.held() == len(held)
        for sent, place, count in waiting:
            assert (look(slab, place, floats(0, count)) == sent).all()
        held.clear()
        assert slab.held() == 0 and slab.claim(capacity - LINE) == LINE
    finally:
        slab_module.FRESH = kept


@pytest.mark.parametrize(
    ("place", "count"), [(0, 8), (32, 8), (64, 7), (64, 9), (-64, 8), (128, 8), (4096, 8), (4032, 8), (1 << 40, 8)]
)
def test_a_place_that_is_none_is_refused(place: int, count: int) -> None:
    slab = make()
    assert put(slab, floats(1, 8)) == 64
    with pytest.raises(TransportError, match="no block is there"):
        look(slab, place, floats(0, count))
    rows = look(slab, 64, floats(0, 8))
    with pytest.raises(TransportError, match="where others are still in use"):
        look(slab, 64, floats(0, 8))
    assert rows.tolist() == [1.0] * 8


def test_a_child_that_is_forked_gives_nothing_back() -> None:
    slab, some = make(1024), floats(1, 200)
    held = [look(slab, put(slab, some), some)]
    assert Child(held.clear).join() == 0
    assert not put(slab, some)


def test_a_closed_slab_may_be_given_back() -> None:
    slab, some = make(), floats(1, 8)
    rows = look(slab, put(slab, some), some)
    slab.close()
    assert rows.tolist() == [1.0] * 8
    del rows
    gc.collect()
    assert slab.held() == 0


# Between endpoints.


def test_large_rows_take_the_slab_and_small_ones_the_ring() -> None:
    with Mesh(2) as mesh:
        a, b = mesh.endpoint(0), mesh.endpoint(1)
        for size in (LARGE - 4, LARGE):
            a.send(1, piece(1, torch.ones(size // 4)))
        small, large = rows_of(b.receive())
        assert b.held() == 1 and a.held() == 0
        del small
        assert b.held() == 1
        del large
        assert b.held() == 0 and a.overflows() == 0


def test_where_the_slab_is_full_rows_go_through_the_ring_in_order() -> None:
    with Mesh(2, 8 << 20, 4 * LARGE) as mesh:
        a, b = mesh.endpoint(0), mesh.endpoint(1)
        for i in range(9):
            a.send(1, piece(i, torch.full((LARGE // 4,), float(i))))
        assert a.overflows() == 6
        assert a.pending() == 0
        rows = rows_of(b.receive())
        assert [float(r[0]) for r in rows] == list(range(9)) and all((r == r[0]).all() for r in rows)
        assert b.held() == 3
        del rows
        a.send(1, piece(9, torch.ones(LARGE // 4)))
        assert a.overflows() == 6


def test_a_header_that_has_to_wait_finds_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE", 64)
    with Mesh(2, 1024, 1 << 20) as mesh:
        a, b = mesh.endpoint(0), mesh.endpoint(1)
        rows, many = torch.empty(500), 50
        for i in range(many):
            rows.fill_(float(i))
            a.send(1, piece(i, rows))
        assert a.pending() > 0 and a.overflows() == 0
        got: list[Tensor] = []
        while len(got) < many:
            got += rows_of(b.receive())
            a.flush()
        assert b.held() == many and all((r == i).all() for i, r in enumerate(got))


def test_two_processes_hold_rows_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random sizes both ways, each party keeping some of what came: nothing changes under anybody's eyes."""
    monkeypatch.setattr(wire, "LARGE", 1000)
    many = 600

    def play(party: int) -> None:
        end: Endpoint = mesh.endpoint(party)
        rng = np.random.default_rng(party)
        kept: list[tuple[int, Tensor]] = []
        sent = seen = 0
        deadline = time.monotonic() + PATIENCE
        while seen < many or sent < many or end.pending():
            assert time.monotonic() < deadline
            if sent < many:
                end.send(1 - party, piece(sent, torch.full((int(rng.integers(1, 3000)),), float(sent))))
                sent += 1
            for _, frame in end.receive():
                assert isinstance(frame, Slice) and frame.rows is not None and frame.wave == seen
                kept.append((seen, frame.rows))
                seen += 1
            while len(kept) > 5:
                number, rows = kept.pop(int(rng.integers(len(kept))))
                assert (rows == number).all()
            end.flush()
            if sent == many:
                end.wait(0.1)
        assert all((rows == number).all() for number, rows in kept)

    with Mesh(2, 64 << 10, 64 << 10) as mesh, children(lambda: play(0), lambda: play(1)):
        pass


def test_garbled_headers_give_a_slice_or_a_named_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LARGE", 64)
    slab = make()
    record = wire.encode(piece(1, torch.ones(5, 8)), slab)
    head = bytearray(record[0])  # type: ignore[arg-type]
    assert len(record) == 1
    rng = np.random.default_rng(0)
    odd = [0, 1, 63, 64, 128, 4032, 4096, -1, -64, 1 << 62, -(1 << 63), 5, 8, 40, 160]
    refused = 0
    for _ in range(3000):
        words = np.frombuffer(head, np.int64)[:-1].copy()
        for _ in range(int(rng.integers(1, 3))):
            words[int(rng.integers(3, len(words)))] = odd[int(rng.integers(len(odd)))]
        torn = words.tobytes() + wire.zlib.crc32(words.tobytes()).to_bytes(8, "little")
        try:
            frame = wire.decode(memoryview(torn), slab)
        except TransportError:
            refused += 1
        else:
            assert isinstance(frame, Slice)
            assert frame.rows is None or frame.rows.numel() * frame.rows.element_size() <= slab.capacity
        frame = None
    assert refused > 1000 and slab.held() == 0


def test_received_rows_are_aligned() -> None:
    with Mesh(2) as mesh:
        a, b = mesh.endpoint(0), mesh.endpoint(1)
        for i in range(3):
            a.send(1, piece(i, torch.ones(LARGE // 4 + i)))
        assert all(r.data_ptr() % LINE == 0 for r in rows_of(receive_all(b, lambda frames: len(frames) == 3)))
