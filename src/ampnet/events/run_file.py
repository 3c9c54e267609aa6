"""Reads the file of a run: a trace that `PerfettoWriter` wrote, or an event log that `LogWriter` wrote.

    run.json   --trace   boxes, streams, progress, totals: everything that pictures and reports need
    run.jsonl  --log     every event; boxes, streams and totals are computed from it; it has no progress

A trace is read line by line as it was written, and as a whole if another program has saved it since. The file is not
trusted: a text in place of a number raises an error, so that it cannot be injected into a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ampnet.errors import DataError, StateError
from ampnet.events.boxes import Box, in_order
from ampnet.events.gantt import COLOURS
from ampnet.events.log import not_an_event, read_log
from ampnet.events.perfetto import HEAD, SETTINGS, TOTALS
from ampnet.events.record import Point, Recorder, RunRecord, StreamRecord
from ampnet.events.totals import Totals

__all__ = ["read_run", "read_trace"]

WORDS = frozenset({"name", "stream", "node", "worker", "group", "sync", "route", "unit", "reason"})
"""Fields of a trace that are texts."""
COUNTS = {"update": "count", "sync": "updates"}
"""The fields with the count of boxes that are not batches of messages."""


def read_trace(path: str | Path) -> RunRecord:
    """Returns the run of a trace that `PerfettoWriter` wrote. Raises `DataError` for any other file."""
    path = Path(path)
    workers: dict[int, str] = {}
    boxes: list[Box] = []
    streams: list[StreamRecord] = []
    points: list[Point] = []
    settings: dict[str, Any] = {}
    totals: Totals | None = None
    for number, event in _events(path):
        try:
            kind, name, args = event["ph"], event["name"], event.get("args", {})
            if kind == "X":
                boxes.append(_box_from(event, workers))
            elif kind == "i" and name == "epoch":
                streams.append(StreamRecord(**_numbers(args)))
            elif kind == "i" and name == "turn":
                points.append(Point(**_numbers(args)))
            elif kind == "M" and name == "thread_name":
                workers[event["tid"]] = str(args["name"])
            elif kind == "M" and name == SETTINGS:
                settings = settings or args
            elif kind == "M" and name == TOTALS:
                totals = Totals.from_json(_numbers(args))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise DataError(f"{path}, line {number}: not an event of a trace of ours ({error!r})") from error
    if totals is None:
        raise DataError(f"{path}: no totals in it; was it written by 'ampnet train ... --trace', and to its end?")
    return RunRecord(settings, in_order(boxes), streams, points, totals)


def is_trace(path: str | Path) -> bool:
    """Whether a file begins like a trace. An event log does not."""
    with Path(path).open("rb") as file:
        start = file.read(4096).lstrip()
    return start.startswith(b"[") or (start.startswith(b"{") and b'"event"' not in start.partition(b"\n")[0])


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, event) of a trace, line by line, so that it is never in memory as a whole."""
    with path.open(encoding="utf-8", errors="replace") as file:
        ours = file.readline().rstrip() == HEAD
        if ours:
            for number, line in enumerate(file, start=2):
                text = line.rstrip().removesuffix(",")
                if text == "]}":
                    return
                try:
                    yield number, json.loads(text)
                except ValueError as error:
                    raise DataError(f"{path}, line {number}: not an event of a trace of ours ({error})") from error
            raise DataError(f"{path} ends in the middle")
    try:  # saved again by another program
        data = json.loads(path.read_text(encoding="utf-8", errors="replace"))
        events = data["traceEvents"] if isinstance(data, dict) else data
        yield from ((1, event) for event in events)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a trace ({error!r})") from error


def _box_from(event: Mapping[str, Any], workers: Mapping[int, str]) -> Box:
    args = _numbers(event["args"])
    kind, _, inference = event["cat"].partition(",")
    if kind not in COLOURS:
        raise ValueError(f"a box of kind {kind!r}; there are {', '.join(COLOURS)}")
    return Box(
        workers[event["tid"]],
        str(args["node"]),
        kind,
        float(event["ts"]) / 1e6,
        float(event["dur"]) / 1e6,
        not inference,
        tuple(args.get("instances", ())),
        args.get("more", 0),
        args[COUNTS.get(kind, "messages")],
        args.get("rows", 0),
        args.get("version"),
        args.get("staleness"),
        args.get("wave"),
        args.get("round") if "wave" in args else None,
    )


def _numbers(given: Any, name: str = "") -> Any:
    """Returns the argument. Raises ValueError for a text in it whose name is not in `WORDS`.

    Names of nodes, workers and metrics are keys.
    """
    if isinstance(given, Mapping):
        return {key: _numbers(value, str(key)) for key, value in given.items()}
    if isinstance(given, list):
        return [_numbers(value, name) for value in given]
    if isinstance(given, str) and name not in WORDS:
        raise ValueError(f"{name} is {given!r}; a number was expected")
    return given


def read_run(path: str | Path) -> RunRecord:
    """Returns the run of a trace (``ampnet train --trace``) or of an event log (``--log``), by the file's contents."""
    if is_trace(path):
        return read_trace(path)
    recorder = Recorder()
    number = 0
    for number, event in enumerate(read_log(path), start=1):
        try:
            recorder(event)
        except (TypeError, AttributeError, ValueError, StateError) as error:
            raise not_an_event(path, number, error) from error
    if not number:
        raise DataError(f"{path}: no event in it; was it written by 'ampnet train' with --trace or --log?")
    return recorder.record()
