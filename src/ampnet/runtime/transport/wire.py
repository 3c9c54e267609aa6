"""The wire format: frames to bytes and back. Explicit, little-endian, and nothing is ever unpickled.

    record  [ 10 words | further words | checksum | ...                                                        ]
    Note    [ kind size n note-kind text-size arrays | for each array: of-torch? dtype dimensions shape | checksum |
              text: JSON [data, names] | pad | array | pad | array ...                                         ]
    Slice   [ kind size n era wave crossing round direction digest dtype | place dimensions shape left-out | checksum |
              pad | rows; nothing if they have a place in the slab, or if dtype is 0: none                      ]

A word is an int64. Rows and arrays begin at a multiple of 64, as the record does. They are copied twice: by the sender
into the ring, by the receiver out of the ring into its own memory. Large rows of a slice are copied once, into a slab
(`ampnet.runtime.transport.slab`), and the record holds their place.

**Everything read is validated.** All sizes follow from the words; they must add up exactly to the size of the record,
before anything is read or allocated. The words carry a checksum: a record that was torn or overwritten is not mistaken
for another one. Faults raise `TransportError`.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ampnet.errors import TransportError
from ampnet.runtime.transport.dtypes import BY_ARRAY, CODED, Coded, raw
from ampnet.runtime.transport.frames import Frame, Note
from ampnet.runtime.transport.ring import LINE, Record
from ampnet.runtime.transport.slab import LARGE, Slab
from ampnet.wave.slice import Slice

_NOTE, _SLICE = 0x414D504E_0002, 0x414D504E_0004
_KINDS = {_NOTE: "note", _SLICE: "slice"}
_WORDS = 10
_MOST_DIMENSIONS = 64
_ZEROS = bytes(LINE)
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


def encode(frame: Frame, slab: Slab | None = None) -> Record:
    """Returns the frame as a record, which refers to the frame's arrays without a copy. Large rows of a slice are
    written to the slab, if it has room.
    """
    return _encode_slice(frame, slab) if isinstance(frame, Slice) else _encode_note(frame)


def _sealed(size: int, *words: int) -> bytes:
    """Returns the words and their checksum. ``words`` begins with the kind; the sizes are added here."""
    further = len(words) + 2 - _WORDS
    try:
        head = _head(further).pack(words[0], size, further, *words[1:])
    except StructError as error:
        raise TransportError(f"a frame cannot be sent with the numbers {words[1:]}: {error}") from error
    return head + zlib.crc32(head).to_bytes(8, "little")


def _encode_slice(piece: Slice, slab: Slab | None) -> Record:
    crossing, direction, digest, left_out = piece.crossing, piece.direction, piece.digest, piece.left_out
    if crossing < 0 or direction not in (0, 1) or digest < 0:
        raise TransportError(f"a slice of crossing {crossing}, direction {direction}, digest {digest} cannot be sent")
    words = (_SLICE, piece.era, piece.wave, crossing, piece.round, direction, digest)
    if piece.rows is None:
        return [_sealed(8 * (_WORDS + 3 + len(left_out)), *words, 0, 0, 0, *left_out)]
    coded, array = raw(piece.rows)
    size = 8 * (_WORDS + 3 + array.ndim + len(left_out))
    if slab is not None and array.nbytes >= LARGE and (place := slab.claim(array.nbytes)):
        head = _sealed(size, *words, coded.code, place, array.ndim, *array.shape, *left_out)
        slab.write(place, array)
        return [head]
    pad = -size % LINE
    head = _sealed(size + pad + array.nbytes, *words, coded.code, 0, array.ndim, *array.shape, *left_out)
    return [head + _ZEROS[:pad], array]


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


def decode(record: memoryview, slab: Slab | None = None) -> Frame:
    """Returns the frame of a record. Its arrays are copied out of the record; rows in the slab stay there."""
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
    if kind == _SLICE:
        return _decode_slice(record, words, more, begin, slab)
    return _decode_note(record, words, more, begin)


def _nbytes(shape: tuple[int, ...], coded: Coded, most: int) -> int:
    """Returns the bytes of an array of this shape; raises `TransportError` if they exceed ``most``."""
    if len(shape) > _MOST_DIMENSIONS or (shape and min(shape) < 0):
        raise TransportError(f"an array of shape {shape}")
    size = math.prod(shape) * coded.array.itemsize
    # An array without rows takes no bytes, however long a row; but torch and NumPy refuse a stride beyond int64.
    if size > most or (not size and math.prod(n or 1 for n in shape) * coded.array.itemsize > _MOST):
        raise TransportError(f"an array of shape {shape} of {coded.dtype}, and the record has {most} bytes")
    return size


def _tensor(shape: tuple[int, ...], coded: Coded, record: memoryview, place: int) -> Tensor:
    """Copy a tensor out of the record. NumPy copies memory faster than torch, on one thread."""
    out = torch.from_numpy(np.ndarray(shape, coded.array, record, place).copy())
    return out if coded.native else out.view(coded.dtype)


def _decode_slice(record: memoryview, words: tuple[int, ...], more: list[int], begin: int, slab: Slab | None) -> Slice:
    size, era, wave, crossing, round_, direction, digest, code = words[1], *words[3:]
    if crossing < 0 or direction not in (0, 1) or digest < 0:
        raise TransportError(f"a slice of crossing {crossing}, direction {direction}, digest {digest}")
    place, dimensions = more[:2] if len(more) >= 2 else (0, -1)
    if not 0 <= dimensions <= len(more) - 2:
        raise TransportError(f"a slice of {dimensions} dimensions with {len(more)} further words")
    shape, left_out = tuple(more[2 : 2 + dimensions]), tuple(more[2 + dimensions :])
    coded, end, rows = CODED.get(code), begin, None
    if coded is None and (code or shape or place):
        raise TransportError(f"a slice with rows of unknown dtype {code}, shape {shape}, place {place}")
    if coded is not None and not place:
        begin += -begin % LINE
        end = begin + _nbytes(shape, coded, size)
    if end != size:
        raise TransportError(f"a slice with rows of {shape} takes {end} bytes, and the record has {size}")
    if coded is not None and place:
        if slab is None:
            raise TransportError(f"a slice with rows in a slab, at {place}, and there is none")
        rows = slab.look(place, shape, coded, _nbytes(shape, coded, slab.capacity))
    elif coded is not None:
        rows = _tensor(shape, coded, record, begin)
    return Slice(wave, crossing, round_, direction, digest, rows, left_out, era)


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
        if of_torch:
            arrays[name] = _tensor(shape, coded, record, place)
        else:
            arrays[name] = np.ndarray(shape, coded.array, record, place).copy()
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
