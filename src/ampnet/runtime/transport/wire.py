"""The wire format: frames to bytes and back. Explicit, little-endian, and nothing is ever unpickled.

    record  [ 10 words | further words | checksum | ...                                                        ]
    Batch   [ kind size n target direction flags fields messages rows dtype | row shape (n) | checksum | pad |
              columns: fields x messages | row offsets: messages + 1, or nothing | payload: rows x row shape    ]
    Note    [ kind size n note-kind text-size arrays | for each array: of-torch? dtype dimensions shape | checksum |
              text: JSON [data, names] | pad | array | pad | array ...                                         ]
    fields  [ kind size 0 number text-size | checksum | text: names, parted by commas                          ]

A word is an int64. The payload begins at a multiple of 64, as the record does. Names of state fields are sent once on
each way from one party to another, in a record of their own; from then on they are a number.

**Nothing that is read is believed.** All sizes follow from the words; they must add up to the size of the record to
the byte, before anything is looked at or allocated. The words carry a checksum: a record that was torn or overwritten
is not taken for another one. What is wrong is said in a `TransportError`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampnet.errors import StateError, TransportError
from ampnet.message import Messages, offsets_of, row_counts
from ampnet.runtime.transport.dtypes import BY_ARRAY, CODED, Coded, raw
from ampnet.runtime.transport.frames import Batch, Frame, Note
from ampnet.runtime.transport.ring import LINE, Record
from ampnet.state import Ints, States, check_field_names

_BATCH, _NOTE, _FIELDS = 0x414D504E_0001, 0x414D504E_0002, 0x414D504E_0003
_TRAIN, _OFFSETS, _PAYLOAD, _LAST = 1, 2, 4, 8
_WORDS = 10
_MOST_DIMENSIONS = 64
_ZEROS = bytes(LINE)
_INT64 = np.dtype("<i8")
_MOST = 1 << 62


_FIXED = Struct(f"<{_WORDS}q")


@lru_cache(maxsize=256)
def _head(further: int) -> Struct:
    """All words before the checksum."""
    return Struct(f"<{_WORDS + further}q")


@lru_cache(maxsize=256)
def _tail(further: int) -> Struct:
    """The further words and the checksum."""
    return Struct(f"<{further}qQ")


class Encoder:
    """Makes records of the frames that go from one party to another. It remembers which fields were named there."""

    def __init__(self) -> None:
        self._fields: dict[tuple[str, ...], int] = {}

    def encode(self, frame: Frame) -> list[Record]:
        """The frame as one record; or two, where it uses fields that were not named before.

        A record refers to the payload and the columns of the frame, and does not copy them.
        """
        if isinstance(frame, Note):
            return [_encode_note(frame)]
        states = frame.messages.states
        number = self._fields.get(states.fields)
        if number is not None:
            return [_encode_batch(frame, number)]
        number = len(self._fields)
        records = [_encode_fields(states.fields, number), _encode_batch(frame, number)]
        self._fields[states.fields] = number  # not before: a batch that cannot be sent has named nothing
        return records


def _sealed(size: int, *words: int) -> bytes:
    """The words and their checksum. ``words`` begins with the kind; the sizes are put in here."""
    further = len(words) + 2 - _WORDS
    try:
        head = _head(further).pack(words[0], size, further, *words[1:])
    except StructError as error:
        raise TransportError(f"a frame cannot be sent with the numbers {words[1:]}: {error}") from error
    return head + zlib.crc32(head).to_bytes(8, "little")


def _encode_fields(fields: tuple[str, ...], number: int) -> Record:
    text = ",".join(fields).encode()
    return [_sealed(8 * (_WORDS + 1) + len(text), _FIELDS, number, len(text), 0, 0, 0, 0, 0) + text]


def _encode_batch(frame: Batch, number: int) -> Record:
    messages = frame.messages
    payload, offsets, columns = messages.payload, messages.offsets, messages.states.columns
    fields, count = columns.shape
    if frame.target < 0 or frame.direction not in (0, 1):
        raise TransportError(f"a batch cannot be sent to target {frame.target}, direction {frame.direction}")
    flags = (_TRAIN if messages.train else 0) | (_LAST if frame.last else 0)
    before = 8 * (_WORDS + 1 + fields * count)
    rows = count
    if offsets is not None:
        flags |= _OFFSETS
        before += 8 * (count + 1)
        rows = int(offsets[-1])
    if payload is None:
        head = _sealed(before, _BATCH, frame.target, frame.direction, flags, number, count, rows, 0)
        return [head, columns] if offsets is None else [head, columns, offsets]
    coded, array = raw(payload)
    shape = array.shape[1:]
    before += 8 * len(shape)
    pad = -before % LINE
    size = before + pad + array.nbytes
    flags |= _PAYLOAD
    head = _sealed(size, _BATCH, frame.target, frame.direction, flags, number, count, rows, coded.code, *shape)
    if pad:
        head += _ZEROS[:pad]
    return [head, columns, array] if offsets is None else [head, columns, offsets, array]


def _encode_note(note: Note) -> Record:
    arrays: list[NDArray[Any]] = []
    further: list[int] = []
    for name, value in note.arrays.items():
        if isinstance(value, Tensor):
            coded, array = raw(value)
        else:
            array = np.asarray(value)
            found = BY_ARRAY.get(array.dtype)
            if found is None:
                raise TransportError(f"array '{name}' of {array.dtype} cannot be sent in a note")
            coded = found
        further += (int(isinstance(value, Tensor)), coded.code, array.ndim, *array.shape)
        arrays.append(array)
    try:
        text = json.dumps([note.data, list(note.arrays)]).encode()
    except (TypeError, ValueError) as error:
        raise TransportError(f"note {note.kind} cannot be sent: {error}. Arrays go into 'arrays'") from error
    size = 8 * (_WORDS + 1 + len(further)) + len(text)
    sizes = [size]
    for array in arrays:
        size += -size % LINE + array.nbytes
        sizes.append(size)
    out: Record = [_sealed(size, _NOTE, note.kind, len(text), len(arrays), 0, 0, 0, 0, *further) + text]
    for array, place in zip(arrays, sizes, strict=False):
        out += [_ZEROS[: -place % LINE], array]
    return out


@dataclass(slots=True, eq=False)
class Arrived:
    """A batch that was read, its arrays still where they came in: good until the record is given back."""

    key: tuple[object, ...]
    """Batches of one key may be put together: target, direction, flags, fields, dtype and shape of a row."""
    target: int
    direction: int
    train: bool
    last: bool
    fields: tuple[str, ...]
    columns: Ints
    offsets: Ints | None
    payload: NDArray[Any] | None
    coded: Coded | None


class Decoder:
    """Reads the records that come from one party. It remembers the fields that were named."""

    def __init__(self) -> None:
        self._fields: list[tuple[str, ...]] = []

    def decode(self, record: memoryview) -> Arrived | Note | None:
        """A batch where it lies, a note (a copy), or None for a record that only names fields."""
        size = len(record)
        if size < 8 * (_WORDS + 1):
            raise TransportError(f"a record of {size} bytes is too short: its words alone take {8 * (_WORDS + 1)}")
        words = _FIXED.unpack_from(record)
        kind, told, further = words[:3]
        if kind not in _KINDS:
            raise TransportError(f"a record of unknown kind {kind:#x}")
        if told != size:
            raise TransportError(f"a {_KINDS[kind]} of {told} bytes in a record of {size}")
        begin = 8 * (_WORDS + 1 + further)
        if further < 0 or begin > size:
            raise TransportError(f"a {_KINDS[kind]} of {size} bytes with {further} further words")
        *more, checksum = _tail(further).unpack_from(record, 8 * _WORDS)
        if zlib.crc32(record[: begin - 8]) != checksum:
            raise TransportError(f"a {_KINDS[kind]} of {size} bytes whose words do not agree with their checksum")
        if kind == _BATCH:
            return self._batch(record, words, tuple(more), begin)
        if kind == _NOTE:
            return _decode_note(record, words, more, begin)
        self._name(record, words, begin)
        return None

    def _batch(self, record: memoryview, words: tuple[int, ...], shape: tuple[int, ...], begin: int) -> Arrived:
        _, size, _, target, direction, flags, number, count, rows, code = words
        if target < 0 or direction not in (0, 1) or not 0 <= flags <= 15:
            raise TransportError(f"a batch for target {target}, direction {direction}, with flags {flags}")
        if not 0 <= number < len(self._fields):
            raise TransportError(f"a batch with fields no. {number}; {len(self._fields)} were named")
        fields = self._fields[number]
        if count < 0 or rows < 0 or (not flags & _OFFSETS and rows != count):
            raise TransportError(f"a batch of {count} messages and {rows} rows")
        at = begin + 8 * len(fields) * count
        end = at + (8 * (count + 1) if flags & _OFFSETS else 0)
        coded = payload = None
        if flags & _PAYLOAD:
            coded = CODED.get(code)
            if coded is None:
                raise TransportError(f"a batch with a payload of unknown dtype {code}")
            pad = -end % LINE
            begin, at, end = begin + pad, at + pad, end + pad
            last = end + _nbytes((rows, *shape), coded, size)
        else:
            if code or shape:
                raise TransportError(f"a batch without a payload, but with a dtype {code} and a shape {shape}")
            last = end
        if last != size:
            raise TransportError(
                f"a batch of {count} messages of {len(fields)} fields, {rows} rows of {shape} takes {last} bytes, "
                f"and the record has {size}"
            )
        columns: Ints = np.ndarray((len(fields), count), _INT64, record, begin)
        offsets: Ints | None = None
        if flags & _OFFSETS:
            offsets = np.ndarray((count + 1,), _INT64, record, at)
            if offsets[0] != 0 or offsets[-1] != rows or np.count_nonzero(offsets[1:] < offsets[:-1]):
                raise TransportError(f"a batch whose row offsets do not rise from 0 to {rows}")
        if coded is not None:
            payload = np.ndarray((rows, *shape), coded.array, record, end)
        key = (target, direction, flags & ~_OFFSETS, fields, code, shape)
        train, final = bool(flags & _TRAIN), bool(flags & _LAST)
        return Arrived(key, target, direction, train, final, fields, columns, offsets, payload, coded)

    def _name(self, record: memoryview, words: tuple[int, ...], begin: int) -> None:
        number, length = words[3:5]
        if number != len(self._fields) or length != len(record) - begin:
            raise TransportError(
                f"fields no. {number} in {length} bytes; {len(self._fields)} were named, {len(record) - begin} are here"
            )
        try:
            text = str(record[begin:], "utf-8")
            fields = tuple(text.split(",")) if text else ()
            check_field_names(fields)
        except (StateError, ValueError) as error:
            raise TransportError(f"fields no. {number} cannot be named so: {error}") from error
        self._fields.append(fields)


_KINDS = {_BATCH: "batch", _NOTE: "note", _FIELDS: "naming of fields"}


def _nbytes(shape: tuple[int, ...], coded: Coded, most: int) -> int:
    """The bytes of an array of this shape, where they are no more than ``most``."""
    if len(shape) > _MOST_DIMENSIONS or (shape and min(shape) < 0):
        raise TransportError(f"an array of shape {shape}")
    size = math.prod(shape) * coded.array.itemsize
    # What has no row takes no byte, however long a row; but torch and NumPy refuse a stride that is no int64.
    if size > most or (not size and math.prod(n or 1 for n in shape) * coded.array.itemsize > _MOST):
        raise TransportError(f"an array of shape {shape} of {coded.dtype}, and the record has {most} bytes")
    return size


def _decode_note(record: memoryview, words: tuple[int, ...], more: list[int], begin: int) -> Note:
    size, kind, length, count = words[1], *words[3:6]
    place = begin + length
    if length < 0 or place > size or not 0 <= count <= len(more):
        raise TransportError(f"a note of {size} bytes with {length} bytes of text and {count} arrays")
    described = _describe_arrays(more, count, size)
    for _, _, _, taken in described:
        place += -place % LINE + taken
    if place != size:
        raise TransportError(f"a note whose text and {count} arrays take {place} bytes, and the record has {size}")
    try:
        data, names = json.loads(str(record[begin : begin + length], "utf-8"))
    except (ValueError, TypeError, RecursionError) as error:
        raise TransportError(f"a note whose text cannot be read: {error}") from error
    right = isinstance(data, dict) and isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not right or len(set(names)) != len(names) or len(names) != count:
        raise TransportError(f"a note of {count} arrays whose text is no pair of a dictionary and as many names")
    arrays: dict[str, NDArray[Any] | Tensor] = {}
    place = begin + length
    for name, (coded, of_torch, shape, taken) in zip(names, described, strict=True):
        place += -place % LINE
        array: NDArray[Any] = np.ndarray(shape, coded.array, record, place).copy()
        arrays[name] = torch.from_numpy(array).view(coded.dtype) if of_torch else array
        place += taken
    return Note(kind, data, arrays)


def _describe_arrays(words: Sequence[int], count: int, size: int) -> list[tuple[Coded, bool, tuple[int, ...], int]]:
    out = []
    at = 0
    for _ in range(count):
        of_torch, code, dimensions = words[at : at + 3] if at + 3 <= len(words) else (-1, 0, 0)
        coded = CODED.get(code)
        at += 3 + dimensions
        if coded is None or of_torch not in (0, 1) or not 0 <= dimensions <= len(words) or at > len(words):
            raise TransportError(f"a note with an array of unknown dtype {code} and {dimensions} dimensions")
        if not (of_torch or coded.native):
            raise TransportError(f"a note with an array of {coded.dtype}, which NumPy does not know")
        shape = tuple(words[at - dimensions : at])
        out.append((coded, bool(of_torch), shape, _nbytes(shape, coded, size)))
    if at != len(words):
        raise TransportError(f"a note with {len(words) - at} words more than its {count} arrays need")
    return out


def assemble(parts: Sequence[Arrived]) -> Messages:
    """One batch out of those that arrived with one key, in order: the one copy of what lies in the ring."""
    first = parts[0]
    offsets: Ints | None = None
    if len(parts) == 1:
        columns = first.columns.copy()
        rows = first.payload
        if first.offsets is not None:
            offsets = first.offsets.copy()
        if rows is not None:
            rows = rows.copy()
    else:
        columns = np.concatenate([part.columns for part in parts], axis=1)
        if any(part.offsets is not None for part in parts):
            offsets = offsets_of(np.concatenate([row_counts(p.offsets, p.columns.shape[1]) for p in parts]))
        rows = None
        if first.payload is not None:
            rows = np.concatenate([part.payload for part in parts if part.payload is not None])
    payload = None
    if rows is not None and first.coded is not None:  # NumPy copies memory faster than torch, on one thread
        payload = torch.from_numpy(rows)
        if first.coded.carrier is not first.coded.dtype:
            payload = payload.view(first.coded.dtype)
    return Messages.trusted(payload, States.trusted(first.fields, columns), offsets, first.train)
