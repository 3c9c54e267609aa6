"""Columns: how a `Played` event is written as one line of a log, quickly, and read again without loss.

Training must not wait for its log, and a wave of 100 operations has 1,100 values. So the line is put together by hand:

    {"event": "Played", "time": 7.25, "worker": "worker0", "wave": 3, "train": true, "count": 4,
     "nodes": ["cell", "loss", "loss", "cell"], "ports": 0, "rounds": 0, "directions": [0, 0, 1, 1],
     "start_ns": [0, 52100, 60400, 75000], "length_ns": [51900, 8200, 14300, 70100], "rows": 20, ...}

    "ports": 0          every entry of the column is 0: written once, without brackets
    "start_ns"          nanoseconds since "time"; with "length_ns" in place of ``starts`` and ``seconds``
    "wanted": [1, 0]    0 and 1 in place of false and true

Clocks count whole nanoseconds and give them in seconds. So a start is n / 1e9 with a whole n, a length is the
difference of two such numbers, and both are found again to the last bit. Times of another clock are written as they
are, as ``starts`` and ``seconds``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ampnet.events.log import Played

NANO = 1e9
FLAGS = ("0", "1")
SMALL = 10_000
"""Numbers below this are kept as text."""
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


class _Texts(dict[Any, str]):
    """Names and small numbers as JSON text: half the time of making it anew."""

    def __missing__(self, value: str | int | None) -> str:
        text = str(value) if isinstance(value, int) else json.dumps(value)
        if isinstance(value, str) or value is None or 0 <= value < SMALL:
            self[value] = text
        return text


text_of = _Texts().__getitem__
"""A name or a number as JSON."""


def line_of(event: Played) -> str:
    """The event as JSON."""
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
    """The fields of `Played` in what `line_of` or `to_json` gave, after a way through JSON."""
    values = dict(data)
    if "start_ns" in values:
        first = round(values["time"] * NANO)
        begins = [first + n for n in values.pop("start_ns")]
        ends = [begin + n for begin, n in zip(begins, values.pop("length_ns"), strict=True)]
        values["starts"] = [begin / NANO for begin in begins]
        values["seconds"] = [end / NANO - begin / NANO for begin, end in zip(begins, ends, strict=True)]
    count = values.pop("count", len(values["nodes"]))
    for name in COLUMNS:
        column = values[name]
        values[name] = tuple(column) if isinstance(column, list | tuple) else (column,) * count
        if len(values[name]) != count:
            raise ValueError(f"column '{name}' has {len(values[name])} entries for {count} operations")
    values["wanted"] = tuple(map(bool, values["wanted"]))
    return values
