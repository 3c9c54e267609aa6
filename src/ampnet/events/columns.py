"""Columns: a fast, lossless encoding of a `Played` event as one line of a log.

Training must not wait for its log, and a wave of 100 operations has 1,100 values. So the JSON line is built directly:

    {"event": "Played", "time": 7.25, "worker": "worker0", "wave": 3, "train": true, "count": 4,
     "nodes": ["cell", "loss", "loss", "cell"], "ports": 0, "rounds": 0, "directions": [0, 0, 1, 1],
     "start_ns": [0, 52100, 60400, 75000], "length_ns": [51900, 8200, 14300, 70100], "rows": 20, ...}

    "ports": 0          every entry of the column is 0: written once, without brackets
    "start_ns"          nanoseconds since "time"; with "length_ns" instead of ``starts`` and ``seconds``
    "wanted": [1, 0]    0 and 1 instead of false and true

Clocks count whole nanoseconds and return seconds. So a start is n / 1e9 with an integer n, a length is the difference
of two such numbers, and both are restored to the last bit. Times of another clock are written unchanged, as ``starts``
and ``seconds``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ampnet.events.typed import checker

if TYPE_CHECKING:
    from ampnet.events.log import Played

NANO = 1e9
FLAGS = ("0", "1")
SMALL = 10_000
"""The text of numbers below this is cached."""
COLUMNS = (
    "nodes",
    "ports",
    "rounds",
    "directions",
    "starts",
    "seconds",
    "rows",
    "messages",
    "versions",
    "lags",
    "wanted",
)
"""The fields of `Played` with an entry for each operation."""
_TIME = checker(float, "time")
_STARTS = checker(tuple[int, ...], "start_ns")
_LENGTHS = checker(tuple[int, ...], "length_ns")


class _Texts(dict[Any, str]):
    """A cache of names and small numbers as JSON text: takes half the time of encoding them again."""

    def __missing__(self, value: str | int | None) -> str:
        text = str(value) if isinstance(value, int) else json.dumps(value)
        if isinstance(value, str) or value is None or 0 <= value < SMALL:
            self[value] = text
        return text


text_of = _Texts().__getitem__
"""Returns a name or a number as JSON."""


def line_of(event: Played) -> str:
    """Returns the event as JSON."""
    count = len(event.nodes)
    return (
        f'{{"event": "Played", "time": {event.time!r}, "worker": {text_of(event.worker)}, "wave": {event.wave}, '
        f'"train": {"true" if event.train else "false"}, "count": {count}, "nodes": {_column(event.nodes)}, '
        f'"ports": {_column(event.ports)}, "rounds": {_column(event.rounds)}, '
        f'"directions": {_column(event.directions)}, {_times(event)}, "rows": {_column(event.rows)}, '
        f'"messages": {_column(event.messages)}, "versions": {_column(event.versions)}, '
        f'"lags": {_column(event.lags)}, "wanted": {_flags(event.wanted)}}}'
    )


def _column(column: tuple[str | int | None, ...]) -> str:
    if column and column.count(column[0]) == len(column):
        return text_of(column[0])
    return f"[{', '.join(map(text_of, column))}]"


def _flags(column: tuple[bool, ...]) -> str:
    if column and column.count(column[0]) == len(column):
        return FLAGS[column[0]]
    return f"[{', '.join(map(FLAGS.__getitem__, column))}]"


def _times(event: Played) -> str:
    starts, lengths = np.array(event.starts), np.array(event.seconds)
    first = round(event.time * NANO)
    begins, ends = np.rint(starts * NANO), np.rint((starts + lengths) * NANO)
    exact = (begins / NANO == starts).all() and (ends / NANO - begins / NANO == lengths).all()
    if not exact or first / NANO != event.time:
        return f'"starts": {json.dumps(event.starts)}, "seconds": {json.dumps(event.seconds)}'
    offsets, wide = (begins - first).astype(np.int64).tolist(), (ends - begins).astype(np.int64).tolist()
    return f'"start_ns": {offsets}, "length_ns": {wide}'


def fields_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Played` from the decoded JSON of `line_of` or `to_json`. Their types are unchecked."""
    values = dict(data)
    if "start_ns" in values:
        first = round(_TIME(values.get("time")) * NANO)
        begins = [first + n for n in _STARTS(values.pop("start_ns"))]
        ends = [begin + n for begin, n in zip(begins, _LENGTHS(values.pop("length_ns", None)), strict=True)]
        values["starts"] = [begin / NANO for begin in begins]
        values["seconds"] = [end / NANO - begin / NANO for begin, end in zip(begins, ends, strict=True)]
    starts = values.get("starts")
    if not isinstance(starts, list | tuple):
        raise ValueError("the starts of its operations are no list")
    count = len(starts)
    if values.pop("count", count) != count:
        raise ValueError(f"it has {count} starts, and another count of operations")
    for name in COLUMNS:
        column = values.get(name)
        values[name] = tuple(column) if isinstance(column, list | tuple) else (column,) * count
        if len(values[name]) != count:
            raise ValueError(f"column '{name}' has {len(values[name])} entries for {count} operations")
    if not set(map(type, values["wanted"])) <= {bool, int}:
        raise ValueError("column 'wanted' must be of 0 and 1")
    values["wanted"] = tuple(map(bool, values["wanted"]))
    return values
