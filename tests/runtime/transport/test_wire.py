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
from ampnet.message import Messages
from ampnet.runtime.transport import Batch, Note
from ampnet.runtime.transport.dtypes import BY_DTYPE, CODED
from ampnet.runtime.transport.frames import Frame
from ampnet.runtime.transport.ring import LINE, Record, flat
from ampnet.runtime.transport.wire import Arrived, Decoder, Encoder, assemble
from ampnet.state import States
from tests.runtime.transport.contract import content, make_frame

WORDS = 10
KIND, SIZE, FURTHER, TARGET, DIRECTION, FLAGS, FIELDS, MESSAGES, ROWS, DTYPE, WIDTH = range(11)


def joined(record: Record) -> bytearray:
    return bytearray(b"".join(bytes(flat(part)) for part in record))


def records(*frames: Frame) -> list[bytearray]:
    encoder = Encoder()
    return [joined(record) for frame in frames for record in encoder.encode(frame)]


def decode(*given: bytes | bytearray) -> list[Frame]:
    """What a receiver makes of these records."""
    decoder, out = Decoder(), list[Frame]()
    for record in given:
        found = decoder.decode(memoryview(record))
        if isinstance(found, Arrived):
            out.append(Batch(found.target, found.direction, assemble([found])))
        elif found is not None:
            out.append(found)
    return out


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


def sample() -> Batch:
    states = States.of(instance=[3, 4], t=[0, 1])
    return Batch(7, 1, Messages(torch.arange(12.0).reshape(4, 3), states, np.array([0, 1, 4]), train=False))


def test_there_and_back() -> None:
    frames = [make_frame(np.random.default_rng(seed)) for seed in range(200)]
    assert [content(f) for f in decode(*records(*frames))] == [content(f) for f in frames]


def test_the_payload_begins_at_a_multiple_of_64() -> None:
    for fields in (1, 2, 3):
        for count in range(10):
            states = States([f"f{i}" for i in range(fields)], np.zeros((fields, count), dtype=np.int64))
            _, record = Encoder().encode(Batch(0, 0, Messages(torch.ones(count, 3), states)))
            assert sum(len(flat(part)) for part in record[:-1]) % LINE == 0


def test_nothing_is_copied_on_the_way_to_the_ring() -> None:
    frame = sample()
    _, record = Encoder().encode(frame)
    assert frame.messages.payload is not None
    assert np.shares_memory(record[-1], frame.messages.payload.numpy())  # type: ignore[arg-type]
    assert record[1] is frame.messages.states.columns and record[2] is frame.messages.offsets


def test_fields_are_named_once() -> None:
    encoder = Encoder()
    assert [len(encoder.encode(sample())) for _ in range(3)] == [2, 1, 1]


def test_the_layout_is_what_the_file_says() -> None:
    """The wire format is a promise to the other side: this is the record of one batch, word by word."""
    naming, record = records(sample())
    assert bytes(naming[-10:]) == b"instance,t"
    kind, size, further, *rest = struct.unpack_from("<11q", record)
    assert kind == 0x414D504E_0001 and size == len(record) and further == 1
    assert rest == [7, 1, 2 | 4, 0, 2, 4, CODED_FLOAT32, 3]
    assert struct.unpack_from("<q", record, 88)[0] == zlib.crc32(record[:88])
    payload = len(record) - 48
    assert payload % LINE == 0
    assert struct.unpack_from("<7q", record, payload - 56) == (3, 4, 0, 1, 0, 1, 4)
    assert np.frombuffer(record, "<f4", 12, payload).tolist() == list(range(12))


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
        ({"SIZE": 100}, "a batch of 100 bytes in a record of"),
        ({"FURTHER": -1}, "-1 further words"),
        ({"FURTHER": 1 << 40}, "further words"),
        ({"TARGET": -1}, "target -1"),
        ({"DIRECTION": 2}, "direction 2"),
        ({"FLAGS": 16}, "flags 16"),
        ({"FLAGS": -1}, "flags -1"),
        ({"FIELDS": 1}, "fields no. 1; 1 were named"),
        ({"FIELDS": -1}, "fields no. -1"),
        ({"MESSAGES": -1}, "-1 messages"),
        ({"MESSAGES": 9}, "takes 368 bytes, and the record has 240"),
        ({"MESSAGES": 1 << 61}, "and the record has"),
        ({"ROWS": -4}, "-4 rows"),
        ({"ROWS": 1 << 50}, "and the record has"),
        ({"ROWS": 3, "WIDTH": 4}, "offsets do not rise from 0 to 3"),
        ({"DTYPE": 0}, "unknown dtype 0"),
        ({"DTYPE": 99}, "unknown dtype 99"),
        ({"DTYPE": 12}, "and the record has"),
        ({"WIDTH": -3}, "shape (4, -3)"),
        ({"WIDTH": 1 << 62}, "shape (4, 4611686018427387904)"),
        ({"ROWS": 0, "WIDTH": 1 << 62}, "shape (0, 4611686018427387904)"),
        ({"FLAGS": 2}, "without a payload, but with a dtype"),
        ({"FLAGS": 4}, "2 messages and 4 rows"),
    ],
)
def test_a_wrong_word_is_named(words: dict[str, int], match: str) -> None:
    naming, record = records(sample())
    with pytest.raises(TransportError) as error:
        decode(naming, changed(record, **words))
    assert match in str(error.value)


def test_offsets_must_rise() -> None:
    naming, record = records(sample())
    place = len(record) - 48 - 16
    for value in (-1, 5):
        struct.pack_into("<q", record, place, value)
        with pytest.raises(TransportError, match="offsets do not rise from 0 to 4"):
            decode(naming, record)


@pytest.mark.parametrize("text", ["a,a", "a b", "columns", "_x", "a,,b", "a,"])
def test_fields_must_be_usable_names(text: str) -> None:
    naming, _ = records(sample())
    body = text.encode()
    naming[8 * (WORDS + 1) :] = body
    with pytest.raises(TransportError, match="cannot be named so"):
        decode(changed(naming, SIZE=len(naming), DIRECTION=len(body)))
    naming[8 * (WORDS + 1) :] = b"\xff\xfe"
    with pytest.raises(TransportError, match="cannot be named so"):
        decode(changed(naming, SIZE=len(naming), DIRECTION=2))


def note_with(text: bytes) -> bytearray:
    (record,) = records(Note(1, {"a": 1}))
    record[8 * (WORDS + 1) :] = text
    return changed(record, SIZE=len(record), DIRECTION=len(text))


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
        decode(note_with(text))


def test_a_notes_text_is_json() -> None:
    (note,) = decode(note_with(json.dumps([{"a": [1, None, "é"]}, []]).encode()))
    assert isinstance(note, Note) and note.data == {"a": [1, None, "é"]}


def test_a_checksum_guards_every_word() -> None:
    for frame in (sample(), Note(3, {"a": 1}, {"x": np.arange(6).reshape(2, 3), "y": torch.ones(2)})):
        *naming, record = records(frame)
        (further,) = struct.unpack_from("<q", record, 8 * FURTHER)
        for word in range(WORDS + 1 + further):
            for bit in (0, 7, 31, 63):
                torn = bytearray(record)
                torn[8 * word + bit // 8] ^= 1 << bit % 8
                with pytest.raises(TransportError):
                    decode(*naming, torn)


def test_a_record_cut_short_or_grown_is_refused() -> None:
    for frame in (sample(), Note(3, {"a": 1}, {"x": np.arange(6)})):
        *naming, record = records(frame)
        for size in range(len(record)):
            with pytest.raises(TransportError):
                decode(*naming, record[:size])
            with pytest.raises(TransportError):
                decode(*naming, changed(record[:size], SIZE=size) if size >= 8 * WORDS else record[:size])
        with pytest.raises(TransportError):
            decode(*naming, record + b"x")
        with pytest.raises(TransportError):
            decode(*naming, changed(record + b"x", SIZE=len(record) + 1))


_ODD = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-3, 300),
    st.sampled_from([1 << n for n in range(63)]),
    st.sampled_from([0x414D504E_0001, 0x414D504E_0002, 0x414D504E_0003]),
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
    *naming, record = records(frame)
    if cut > 50:
        del record[-(cut - 50) * 8 :]
    for word, value in changes:
        if 8 * word + 8 <= len(record):
            struct.pack_into("<q", record, 8 * word, value)
    if len(record) >= 8 * WORDS:
        record = changed(record, SIZE=len(record))
    tracemalloc.start()
    try:
        for found in decode(*naming, record):
            content(found)
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
        decode(garbage)
    if len(garbage) >= 8 * WORDS:
        record = changed(bytearray(garbage), KIND=0x414D504E_0002, SIZE=len(garbage), FURTHER=0)
        with pytest.raises(TransportError):
            decode(record)
