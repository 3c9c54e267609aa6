"""Frames to bytes and back; and bytes that are no frame give a named error, and nothing else."""

from __future__ import annotations

import json
import pickle
import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampnet.errors import TransportError
from ampnet.runtime.transport import Frame, Note
from ampnet.runtime.transport.dtypes import BY_DTYPE, CODED
from ampnet.runtime.transport.ring import LINE, Record, flat
from ampnet.runtime.transport.wire import decode, encode
from ampnet.wave.slice import Slice
from tests.runtime.transport.contract import content, contents, make_frame

WORDS = 10
KIND, SIZE, FURTHER = range(3)
LENGTH = 4  # of a note's text
# Of a slice:
CROSSING, DIRECTION, DIGEST, DTYPE, PLACE, DIMENSIONS, ROWS, WIDTH = 5, *range(7, 14)


def joined(record: Record) -> bytearray:
    return bytearray(b"".join(bytes(flat(part)) for part in record))


def record_of(frame: Frame) -> bytearray:
    return joined(encode(frame))


def read(record: bytes | bytearray) -> Frame:
    """What a receiver makes of it."""
    return decode(memoryview(record))


def seal(record: bytearray) -> bytearray:
    """Put the right checksum to words that were changed: so the checks behind it are met."""
    (further,) = struct.unpack_from("<q", record, 8 * FURTHER)
    end = 8 * (WORDS + further)
    if further >= 0 and end + 8 <= len(record):
        record[end : end + 8] = zlib.crc32(record[:end]).to_bytes(8, "little")
    return record


def changed(record: bytearray, **words: int) -> bytearray:
    out = bytearray(record)
    for name, value in words.items():
        struct.pack_into("<q", out, 8 * globals()[name], value)
    return seal(out)


def sample() -> Slice:
    return Slice(2, 3, 4, 1, 5, torch.arange(6.0).reshape(3, 2), (7,), era=1)


def test_there_and_back() -> None:
    frames = [make_frame(np.random.default_rng(seed)) for seed in range(200)]
    assert contents(read(record_of(f)) for f in frames) == contents(frames)


def test_rows_begin_at_a_multiple_of_64() -> None:
    for left_out in range(10):
        record = encode(Slice(0, 0, 0, 0, 0, torch.ones(2, 3), tuple(range(left_out))))
        assert len(record) == 2 and len(flat(record[0])) % LINE == 0


def test_nothing_is_copied_on_the_way_to_the_ring() -> None:
    for rows in (torch.ones(4, 3), torch.ones(4, 6)[:, ::2]):
        assert np.shares_memory(encode(Slice(0, 0, 0, 0, 0, rows))[-1], rows.numpy())  # type: ignore[arg-type]
        assert np.shares_memory(encode(Note(0, {}, {"x": rows}))[-1], rows.numpy())  # type: ignore[arg-type]


def test_the_layout_is_what_the_file_says() -> None:
    """The wire format is a promise to the other side: this is the record of one slice, word by word."""
    record = record_of(Slice(2, 3, 4, 1, 5, torch.arange(6.0).reshape(3, 2), (7, 8), era=1))
    words = struct.unpack_from("<17q", record)
    assert words == (0x414D504E_0004, len(record), 6, 1, 2, 3, 4, 1, 5, CODED_FLOAT32, 0, 2, 3, 2, 7, 8, words[16])
    assert words[16] == zlib.crc32(record[:128]) and len(record) == 192 + 24
    assert np.frombuffer(record, "<f4", 6, 192).tolist() == list(range(6))


CODED_FLOAT32 = 11


def test_numbers_of_dtypes_are_for_ever() -> None:
    names = (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 float32 float64 complex64 complex128 bfloat16"
    )
    for code, name in enumerate(names.split(), start=1):
        assert CODED[code].dtype is getattr(torch, name)
    assert BY_DTYPE[torch.float32].code == CODED_FLOAT32


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"KIND": 5}, "unknown kind 0x5"),
        ({"SIZE": 100}, "a slice of 100 bytes in a record of"),
        ({"FURTHER": -1}, "-1 further words"),
        ({"FURTHER": 0}, "a slice of -1 dimensions with 0 further words"),
        ({"FURTHER": 1}, "a slice of -1 dimensions with 1 further words"),
        ({"FURTHER": 1 << 40}, "further words"),
        ({"CROSSING": -1}, "crossing -1"),
        ({"DIRECTION": 2}, "direction 2"),
        ({"DIGEST": -1}, "digest -1"),
        ({"DIMENSIONS": -1}, "-1 dimensions"),
        ({"DIMENSIONS": 4}, "4 dimensions with 5 further words"),
        ({"DIMENSIONS": 1}, "takes 140 bytes, and the record has 152"),
        ({"ROWS": -3}, "shape (-3, 2)"),
        ({"ROWS": 1 << 62}, "shape (4611686018427387904, 2)"),
        ({"ROWS": 0, "WIDTH": 1 << 62}, "shape (0, 4611686018427387904)"),
        ({"WIDTH": 3}, "takes 164 bytes, and the record has 152"),
        ({"DTYPE": 0}, "unknown dtype 0, shape (3, 2)"),
        ({"DTYPE": 99}, "unknown dtype 99"),
        ({"DTYPE": 12}, "takes 176 bytes"),
        ({"PLACE": 64}, "takes 128 bytes, and the record has 152"),
    ],
)
def test_a_wrong_word_is_named(words: dict[str, int], match: str) -> None:
    with pytest.raises(TransportError) as error:
        read(changed(record_of(sample()), **words))
    assert match in str(error.value)


def test_a_slice_without_rows_has_nothing_else() -> None:
    record = record_of(Slice(2, 3, 4, 1, 5, None, (7,)))
    for name in ("DTYPE", "PLACE", "DIMENSIONS"):
        with pytest.raises(TransportError, match="a slice"):
            read(changed(record, **{name: 1}))
    with pytest.raises(TransportError, match="in a slab, at 64, and there is none"):
        read(changed(record, DTYPE=CODED_FLOAT32, PLACE=64))


def note_with(text: bytes) -> bytearray:
    record = record_of(Note(1, {"a": 1}))
    record[8 * (WORDS + 1) :] = text
    return changed(record, SIZE=len(record), LENGTH=len(text))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"[1, []]",
        b"[{}, {}]",
        b"[{}, [1]]",
        b'[{}, ["a"]]',
        b"[{}, [], 3]",
        b"\xff\xff",
        b"[" * 100_000,
        b"[" + b"9" * 10_000 + b", []]",
        pickle.dumps(print),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_notes_text_must_be_what_it_is(text: bytes) -> None:
    with pytest.raises(TransportError, match="a note"):
        read(note_with(text))


def test_a_notes_text_is_json() -> None:
    note = read(note_with(json.dumps([{"a": [1, None, "é"]}, []]).encode()))
    assert isinstance(note, Note) and note.data == {"a": [1, None, "é"]}


def test_a_checksum_guards_every_word() -> None:
    note = Note(3, {"a": 1}, {"x": np.arange(6).reshape(2, 3), "y": torch.ones(2)})
    for frame in (sample(), note):
        record = record_of(frame)
        (further,) = struct.unpack_from("<q", record, 8 * FURTHER)
        for word in range(WORDS + 1 + further):
            for bit in (0, 7, 31, 63):
                torn = bytearray(record)
                torn[8 * word + bit // 8] ^= 1 << bit % 8
                with pytest.raises(TransportError):
                    read(torn)


def test_a_record_cut_short_or_grown_is_refused() -> None:
    for frame in (sample(), Note(3, {"a": 1}, {"x": np.arange(6)})):
        record = record_of(frame)
        for size in range(len(record)):
            with pytest.raises(TransportError):
                read(record[:size])
            with pytest.raises(TransportError):
                read(changed(record[:size], SIZE=size) if size >= 8 * WORDS else record[:size])
        with pytest.raises(TransportError):
            read(record + b"x")
        with pytest.raises(TransportError):
            read(changed(record + b"x", SIZE=len(record) + 1))


_ODD = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-3, 300),
    st.sampled_from([1 << n for n in range(63)]),
    st.sampled_from([0x414D504E_0002, 0x414D504E_0004]),
)


@settings(max_examples=500)
@given(
    seed=st.integers(0, 1000),
    changes=st.lists(st.tuples(st.integers(0, 30), _ODD), min_size=1, max_size=4),
    cut=st.integers(0, 60),
)
def test_garbled_words_give_a_frame_or_a_named_error(seed: int, changes: list[tuple[int, int]], cut: int) -> None:
    """With a checksum that is right, and a size that is: the checks behind these two must hold alone."""
    frame: Any = make_frame(np.random.default_rng(seed), 10)
    record = record_of(frame)
    if cut > 50:
        del record[-(cut - 50) * 8 :]
    for word, value in changes:
        if 8 * word + 8 <= len(record):
            struct.pack_into("<q", record, 8 * word, value)
    if len(record) >= 8 * WORDS:
        record = changed(record, SIZE=len(record))
    tracemalloc.start()
    try:
        content(read(record))
    except TransportError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 1 << 20, "memory was allocated for a size that was only told"


@settings(max_examples=200)
@given(st.binary(max_size=400))
def test_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises(TransportError):
        read(garbage)
    for kind in (0x414D504E_0002, 0x414D504E_0004):
        if len(garbage) >= 8 * WORDS:
            record = changed(bytearray(garbage), KIND=kind, SIZE=len(garbage), FURTHER=0)
            with pytest.raises(TransportError):
                read(record)
