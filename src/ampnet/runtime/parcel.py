"""Parcel: a note with instances, for the workers of a team.

    instances    their numbers
    places       of each, its index among the instances that workers have from the start (`ampnet.runtime.known`), or -1
    of the rest  for each input the concatenated states, offsets and payload of all of them; and their structures

A worker unpacks it to instances again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ampnet.errors import AmpnetError, DataError, TransportError
from ampnet.graph import Graph
from ampnet.instance import Feed, Instance, merge_feeds
from ampnet.narrow import narrow
from ampnet.runtime.cutting import Sort
from ampnet.runtime.known import Known
from ampnet.runtime.protocol import Kind
from ampnet.runtime.transport import Note
from ampnet.runtime.transport.dtypes import raw
from ampnet.state import Ints
from ampnet.structure import Structure

Fields = Mapping[str, tuple[str, ...]]
"""By input: the fields of its states."""


def inputs_of(graph: Graph) -> Fields:
    """Returns the inputs of a graph, with the fields of their states."""
    return {given.name: ("instance", *given.fields) for given in graph.inputs}


def pack(instances: Mapping[int, Instance], sort: Sort, known: Known, inputs: Fields, **data: Any) -> Note:
    """Returns a note with instances of one sort, by number. ``data``: further data of the note."""
    places = known.places(instances.values())
    numbers = np.fromiter(instances, dtype=np.int64, count=len(instances))
    arrays: dict[str, Any] = {"instances": numbers, "places": np.array(places, dtype=np.int64)}
    if min(places) < 0:
        rest = {n: one for (n, one), place in zip(instances.items(), places, strict=True) if place < 0}
        for name in inputs:
            _pack_input(name, rest, sort.train, arrays)
        structures = {n: one.structure for n, one in rest.items() if one.structure is not None}
        if structures:
            data["structures"] = _pack_structures(structures, arrays)
    return Note(Kind.STAGE, {"train": sort.train, "stream": sort.stream, **data}, arrays)


def _pack_input(name: str, instances: Mapping[int, Instance], train: bool, arrays: dict[str, Any]) -> None:
    given = [(n, one.feeds[name]) for n, one in instances.items() if name in one.feeds and len(one.feeds[name])]
    if not given:
        return
    try:
        (messages,) = merge_feeds([n for n, _ in given], [one for _, one in given], train)
    except AmpnetError as error:
        raise DataError(f"input '{name}', instances {given[0][0]} to {given[-1][0]}: {error}") from error
    arrays[f"{name} states"] = messages.states.columns
    if messages.offsets is not None:
        arrays[f"{name} offsets"] = messages.offsets
    if messages.payload is not None:
        arrays[f"{name} payload"] = messages.payload


def _pack_structures(structures: Mapping[int, Structure], arrays: dict[str, Any]) -> list[str]:
    """Returns the names of their arrays."""
    given = {number: one.arrays for number, one in structures.items()}
    names = list(next(iter(given.values())))
    for number, one in given.items():
        if list(one) != names:
            raise DataError(f"instance {number} has structures ({', '.join(one)}), others have ({', '.join(names)})")
    arrays["structured"] = np.fromiter(structures, dtype=np.int64, count=len(structures))
    for i, name in enumerate(names):
        pieces = [one[name] for one in given.values()]
        arrays[f"sizes {i}"] = np.array([len(piece) for piece in pieces], dtype=np.int64)
        arrays[f"structure {i}"] = np.concatenate(pieces)
    return names


def culprit(note: Note, error: TransportError) -> DataError:
    """Returns the error of a note that could not be sent, with the name of the input."""
    for name, value in note.arrays.items():
        if isinstance(value, Tensor):
            try:
                raw(value)
            except TransportError:
                return DataError(f"input '{name.removesuffix(' payload')}': {error}")
    return DataError(str(error))


def unpack(note: Note, known: Sequence[Instance], inputs: Fields) -> dict[int, Instance]:
    """Returns the instances of a note, by number, in order."""
    numbers, places = (np.asarray(note.arrays[name]).tolist() for name in ("instances", "places"))
    if min(places) >= 0:
        return {number: known[place] for number, place in zip(numbers, places, strict=True)}
    feeds: dict[int, dict[str, Feed]] = {n: {} for n, place in zip(numbers, places, strict=True) if place < 0}
    for name, fields in inputs.items():
        if f"{name} states" in note.arrays:
            _unpack_input(note, name, fields, feeds)
    structures = _unpack_structures(note)
    return {
        n: known[place] if place >= 0 else Instance(feeds[n], structures.get(n))
        for n, place in zip(numbers, places, strict=True)
    }


def _unpack_input(note: Note, name: str, fields: tuple[str, ...], feeds: Mapping[int, dict[str, Feed]]) -> None:
    columns = np.asarray(note.arrays[f"{name} states"])
    offsets = note.arrays.get(f"{name} offsets")
    payload = note.arrays.get(f"{name} payload")
    assert payload is None or isinstance(payload, Tensor)
    owners = columns[0].copy()
    columns[0] = 0
    cuts = [0, *(np.flatnonzero(owners[1:] != owners[:-1]) + 1).tolist(), len(owners)]
    for a, b in itertools.pairwise(cuts):
        starts, first, last = None, a, b
        if offsets is not None:
            starts = np.asarray(offsets[a : b + 1]) - int(offsets[a])
            first, last = int(offsets[a]), int(offsets[b])
            starts = _short(starts)
        rows = None if payload is None else payload[first:last]
        feeds[int(owners[a])][name] = Feed(rows, fields, narrow(columns[:, a:b]), starts)


def _short(starts: Ints) -> Ints | None:
    """Returns offsets; None if each message has one row."""
    return None if len(starts) - 1 == starts[-1] and bool((np.diff(starts) == 1).all()) else starts


def _unpack_structures(note: Note) -> dict[int, Structure]:
    names = note.data.get("structures")
    if not names:
        return {}
    out: dict[int, dict[str, Ints]] = {n: {} for n in np.asarray(note.arrays["structured"]).tolist()}
    for i, name in enumerate(names):
        cuts = np.cumsum(np.asarray(note.arrays[f"sizes {i}"]))[:-1]
        for one, piece in zip(out.values(), np.split(np.asarray(note.arrays[f"structure {i}"]), cuts), strict=True):
            one[name] = piece
    return {n: Structure(**arrays) for n, arrays in out.items()}
