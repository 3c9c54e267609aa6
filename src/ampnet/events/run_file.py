"""Reads the file of a run: a trace that `PerfettoWriter` wrote, or an event log that `LogWriter` wrote.

    run.json   --trace   boxes, streams, progress, totals: everything that pictures and reports need
    run.jsonl  --log     every event; boxes, streams and totals are computed from it; it has no progress

A trace is read line by line as it was written, and as a whole if another program has saved it since. The file is not
trusted: every field has the type of its annotation, or the file is refused (`ampnet.events.typed`), so that nothing in
place of a number gets into a page.

The file of a run whose disk was full, or that was killed, ends early. What is there is read, and
`RunRecord.incomplete` says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ampnet.errors import DataError, StateError
from ampnet.events.boxes import Box, in_order
from ampnet.events.gantt import COLOURS
from ampnet.events.log import Begin, Rest, lines_of, not_an_event, read_log
from ampnet.events.perfetto import HEAD, INCOMPLETE, SETTINGS, TOTALS
from ampnet.events.record import Point, Recorder, RunRecord, StreamRecord, finite
from ampnet.events.totals import Totals
from ampnet.events.typed import Check, Wrong, brief, checker, parsed, read, shown

__all__ = ["read_run", "read_trace"]

R = TypeVar("R", StreamRecord, Point)
COUNTS = {"update": "count", "sync": "updates"}
"""The fields with the count of boxes that are not batches of messages."""
LARGEST = 1 << 30
"""The maximal number of bytes of a trace that is read as a whole."""
_instances, _count, _row = checker(tuple[int, ...]), checker(int), checker(int)
_version, _lag, _settings = checker(int | None), checker(float | None), checker(dict[str, Any])
_moment, _text = checker(float, "seconds"), checker(str)


def read_trace(path: str | Path) -> RunRecord:
    """Returns the run of a trace that `PerfettoWriter` wrote. Raises `DataError` for any other file."""
    path = Path(path)
    workers: dict[int, str] = {}
    boxes: list[Box] = []
    streams: list[StreamRecord] = []
    points: list[Point] = []
    settings: dict[str, Any] = {}
    totals: Totals | None = None
    incomplete = ""
    for number, event in _events(path):
        try:
            if not isinstance(event, Mapping):
                raise ValueError("not an object")
            kind, name, args = event["ph"], event["name"], event.get("args", {})
            if kind == "X":
                boxes.append(_box_from(event, workers))
            elif kind == "i" and name == "epoch":
                streams.append(_drawable(read(StreamRecord, args)))
            elif kind == "i" and name == "turn":
                points.append(_drawable(read(Point, args)))
            elif kind == "M" and name == "thread_name":
                workers[_row(event["tid"])] = _text(args["name"])
            elif kind == "M" and name == SETTINGS:
                settings = settings or _settings(args)
            elif kind == "M" and name == TOTALS:
                totals = Totals.from_json(args)
            elif kind == "M" and name == INCOMPLETE:
                incomplete = _of(args, "reason", _text)
        except KeyError as error:
            raise DataError(f"{path}, line {number}: not an event of a trace of ours (no {brief(error)})") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}, line {number}: not an event of a trace of ours ({brief(error)})") from error
    if totals is None:
        raise DataError(f"{path}: no totals in it; was it written by 'ampnet train ... --trace', and to its end?")
    return RunRecord(settings, in_order(boxes), streams, points, totals, incomplete)


def is_trace(path: str | Path) -> bool:
    """Whether a file begins like a trace. An event log does not."""
    with Path(path).open("rb") as file:
        start = file.read(4096).lstrip()
    return start.startswith(b"[") or (start.startswith(b"{") and b'"event"' not in start.partition(b"\n")[0])


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line, event) of a trace, line by line, so that it is never in memory as a whole."""
    with path.open(encoding="utf-8", errors="replace") as file:
        if file.readline(len(HEAD) + 2).rstrip() == HEAD:
            for number, line in lines_of(path, file, first=2):
                text = line.rstrip().removesuffix(",")
                if text == "]}":
                    return
                try:
                    yield number, parsed(text)
                except ValueError as error:
                    raise DataError(
                        f"{path}, line {number}: not an event of a trace of ours ({brief(error)})"
                    ) from error
            raise DataError(f"{path} ends in the middle")
    if path.stat().st_size > LARGEST:
        raise DataError(f"{path}: larger than {LARGEST:,} bytes, and not as 'ampnet train ... --trace' writes it")
    try:  # saved again by another program
        data = parsed(path.read_text(encoding="utf-8", errors="replace"))
        events = data["traceEvents"] if isinstance(data, dict) else data
        if not isinstance(events, list):
            raise ValueError(f"its events are {shown(events)}")
    except (ValueError, KeyError) as error:
        raise DataError(f"{path}: not a trace ({brief(error)})") from error
    yield from ((1, event) for event in events)


def _box_from(event: Mapping[str, Any], workers: Mapping[int, str]) -> Box:
    args = event["args"]
    if not isinstance(args, Mapping):
        raise ValueError("its args are no object")
    kind, _, inference = _text(event["cat"]).partition(",")
    if kind not in COLOURS:
        raise ValueError(f"a box of kind {shown(kind)}; there are {', '.join(COLOURS)}")
    wave = _of(args, "wave", _version, None)
    return Box(
        workers[_row(event["tid"])],
        _of(args, "node", _text),
        kind,
        _of(event, "ts", _micros) / 1e6,
        _of(event, "dur", _micros) / 1e6,
        not inference,
        instances := _of(args, "instances", _instances, ()),
        _of(args, "more", _count, 0) if instances else 0,
        _of(args, COUNTS.get(kind, "messages"), _count),
        _of(args, "rows", _count, 0),
        _of(args, "version", _version, None),
        _of(args, "staleness", _lag, None),
        wave,
        None if wave is None else _of(args, "round", _version, None),
    )


def _of(holder: Mapping[str, Any], name: str, check: Check, *default: Any) -> Any:
    """Returns a field of the right type, or the default, if there is one."""
    if default and name not in holder:
        return default[0]
    try:
        return check(holder[name])
    except Wrong as error:
        raise error.within(name) from None


def _drawable(found: R) -> R:
    """Returns the record without values that are not finite or too large to be drawn, as `Recorder` does."""
    loss = None if found.loss is None else finite(found.loss)
    metrics = {name: value for name, value in found.metrics.items() if finite(value) is not None}
    return replace(found, loss=loss, metrics=metrics)


def _micros(value: Any) -> float:
    return float(_moment(value))


def read_run(path: str | Path) -> RunRecord:
    """Returns the run of a trace (``ampnet train --trace``) or of an event log (``--log``), by the file's contents."""
    if is_trace(path):
        return read_trace(path)
    recorder, number, rests = Recorder(), 0, False
    for number, event in enumerate(read_log(path), start=1):
        rests = isinstance(event, Rest) or (rests and not isinstance(event, Begin))
        try:
            recorder(event)
        except (StateError, DataError, ArithmeticError) as error:
            raise not_an_event(path, number, error) from error
    if not number:
        raise DataError(f"{path}: no event in it; was it written by 'ampnet train' with --trace or --log?")
    record = recorder.record()
    if not rests:
        record.incomplete = "the log ends before its run does; later events are missing"
    return record
