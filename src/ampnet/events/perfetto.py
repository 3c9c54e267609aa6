"""Perfetto: writes a run as a trace for ui.perfetto.dev and chrome://tracing, which `gantt` and `report` read.

The file is JSON in the trace event format, one event per line:

    ph  what                      from
    M   names of process and rows, settings, totals
    X   a box: a batch or update  Forward, Backward, Updated; args: node, instances (the first few), messages, rows, ...
        or a synchronisation      Synced; args: group, round, drift, ...
        an operation of a wave    Played; args: node, wave, round, instances of the wave (the first few), rows, ...
        the layout of a wave      Wave; args: wave, instances, operations
    C   counters                  instances in flight: Pump, Retire; loss: progress (`turn`) and Epoch
    i   instants, in the controller's row: pump, retire, epoch, begin, rest, turn

Times are microseconds since the first event, whole nanoseconds, so consecutive boxes of a worker never overlap by
rounding: Perfetto shows only boxes that nest.

Cost: a line of about 200 bytes for each box. During a run its events are added up, half a microsecond for each
operation of a wave, and kept (some 200 bytes for an operation); `close` writes them, 3 microseconds for each. Batches
of messages are written at once, because their states take more memory: some 10 microseconds each. After ``most`` boxes
no more are written, nor the pumps and retirements beside them; sums (totals, epochs, loss) continue to the end of the
run. So memory is bounded. The file has a temporary name until `close`. If the disk is full, the lines that had room
are kept, the totals take the place of the last of them, and a line says that the trace is incomplete.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ampnet.events.boxes import KINDS as DIRECTIONS
from ampnet.events.boxes import LAYOUT, Travellers, few, mean_lag
from ampnet.events.log import (
    BACKWARD,
    Backward,
    Begin,
    Epoch,
    Event,
    Forward,
    Played,
    Pump,
    Rest,
    Retire,
    Synced,
    Updated,
    Wave,
)
from ampnet.events.record import KINDS, MOST, Sums, point_of
from ampnet.events.stream_file import StreamFile

if TYPE_CHECKING:
    from ampnet.controller import Progress

HEAD = '{"displayTimeUnit":"ms","traceEvents":['
CONTROLLER = 1
"""The number of the controller's row; workers get 2, 3, ... in order. Perfetto treats thread 0 as idle."""
TOGETHER = 1_000
"""The number of buffered events. Writing each of them between the batches of a run would cost about twice as much."""
SETTINGS, TOTALS, INCOMPLETE = "ampnet_settings", "ampnet_totals", "ampnet_incomplete"
"""Names of ampnet's metadata. Perfetto ignores unknown names."""


class PerfettoWriter:
    """A listener that writes a trace. A runtime calls its ``turn`` with the loss during a stream.

    ``clock`` is the run's, for the times of turns.
    """

    kinds = KINDS
    """The events it wants."""

    def __init__(self, path: str | Path, *, most: int = MOST, clock: Callable[[], float] = time.perf_counter) -> None:
        self.path = Path(path)
        self._file = StreamFile(self.path)
        self._most = self._left = self._unwritten = most
        self._clock = clock
        self._since = 0.0
        self._sums = Sums()
        self._waiting: list[Event] = []
        self._turns: list[tuple[float, Progress]] = []
        self._rows: dict[str, int] = {}
        self._openings: dict[tuple[str, str, str, bool], str] = {}
        self._travellers = Travellers()
        self._kept: list[tuple[Event, tuple[int, ...], int]] = []
        """Events that `close` writes, with the instances of their waves."""
        self._file.write(HEAD + "\n" + _dumps(_meta("process_name", CONTROLLER, {"name": "ampnet"})) + ",\n")
        self._write(_meta("thread_name", CONTROLLER, {"name": "controller"}))
        self._write(_meta("thread_sort_index", CONTROLLER, {"sort_index": CONTROLLER}))

    def __call__(self, event: Event) -> None:
        self._waiting.append(event)
        if len(self._waiting) >= TOGETHER:
            self._write_waiting()

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self._write_event(event)
        self._write_turns()

    def _write_event(self, event: Event) -> None:
        ended = self._sums(event)
        if self._sums.since is not None:
            self._since = self._sums.since
        match event:
            case Played():
                self._keep(event, len(event.nodes), *self._travellers.of(event))
            case Wave():
                instances = self._travellers.begin(event)
                self._keep(event, int(event.seconds > 0), *instances)
            case Updated() | Synced():
                self._keep(event, 1)
            case Pump() if event.sent:
                self._keep(replace(event, sent=()), 0)  # states take memory
            case Pump() | Retire():
                self._keep(event, 0)
            case Forward():
                self._batch("forward", event, event.train)
            case Backward():
                lag = mean_lag(event.lags)
                self._batch("backward", event, True, "" if lag is None else f',"staleness":{lag:.4g}')
            case Epoch():
                assert ended is not None
                self._loss(event.time, event.train, ended.loss)
                self._instant("epoch", event.time, asdict(ended))
            case Begin():
                # All settings are in the metadata, which viewers do not show: they include the graph's drawing.
                self._write(_meta(SETTINGS, CONTROLLER, event.settings))
                self._instant("begin", event.time, {})
            case Rest():
                self._instant("rest", event.time, {"held": event.held})
            case _:
                pass

    def _keep(self, event: Event, boxes: int, instances: tuple[int, ...] = (), more: int = 0) -> None:
        """Keep an event until `close`."""
        if self._left > 0:
            self._kept.append((event, instances, more))
            self._spend(boxes, event.time)

    def _write_kept(self, event: Event, instances: tuple[int, ...], more: int) -> None:
        match event:
            case Played():
                self._write_operations(event, instances, more)
            case Wave() if event.seconds > 0:
                about = {"wave": event.wave, "instances": instances, "more": more, "messages": len(event.instances)}
                self._box(LAYOUT, LAYOUT, event, event.train, about | {"operations": event.operations})
            case Updated():
                about = {"version": event.version, "count": event.count, "unit": event.unit, "reason": event.reason}
                self._box("update", event.node, event, True, about)
            case Synced():
                about = {"group": event.group, "round": event.round, "version": event.version}
                about |= {"updates": event.updates, "drift": event.drift, "moved": event.moved}
                self._box("sync", event.node, event, True, about)
            case Pump():
                self._flow("pump", event)
            case Retire():
                self._flow("retire", event)
            case _:
                pass

    def turn(self, progress: Progress) -> None:
        """Record the progress of the run: the loss so far, and the data of a report's curves."""
        self._turns.append((self._clock(), progress))

    def _write_turns(self) -> None:
        """Write the turns up to the latest event: a runtime may pass on its events late."""
        if self._sums.since is not None:
            for now, progress in self._turns:
                point = point_of(progress, now - self._since)
                self._loss(now, point.train, point.loss)
                self._instant("turn", now, asdict(point))
            self._turns.clear()

    def close(self, *, keep: bool = True) -> None:
        """Finish the file; with ``keep=False`` remove it."""
        if self._file.closed:
            return
        if not keep:
            self._file.discard()
            return
        self._write_waiting()
        for event, instances, more in self._kept:
            self._write_kept(event, instances, more)
        self._file.finish(self._tail)

    def _tail(self) -> str:
        """Returns the totals and the end of the file."""
        last = [_meta(TOTALS, CONTROLLER, self._sums.totals().to_json())]
        if self.fault is not None:
            reason = f"the trace could not be written to its end ({self.fault}); the last boxes are missing"
            last.insert(0, _meta(INCOMPLETE, CONTROLLER, {"reason": reason}))
        return ",\n".join(map(_dumps, last)) + "\n]}\n"

    @property
    def fault(self) -> str | None:
        """The error that ended the file early; None without one."""
        return self._file.fault

    def _batch(self, kind: str, event: Forward | Backward, train: bool, lag: str = "") -> None:
        if self._left <= 0:
            return
        listed, more = few(event.received.column("instance"))
        args = f'"instances":{listed},"messages":{len(event.received)},"rows":{event.rows}{lag}'
        if more:
            args += f',"more":{more}'
        if event.version is not None:
            args += f',"version":{event.version}'
        self._unwritten -= 1
        opening = self._opening(kind, event.node, event.worker, train)
        self._file.write(self._line(opening, args, event.time, event.seconds))
        self._spend(1, event.time)

    def _write_operations(self, event: Played, instances: tuple[int, ...], more: int) -> None:
        about = f'"wave":{event.wave},"instances":{list(instances)}' + (f',"more":{more}' if more else "")
        lines = []
        for op in event.operations():
            if self._unwritten <= 0:
                break
            self._unwritten -= 1
            opening = self._opening(DIRECTIONS[op.direction], op.node, event.worker, event.train)
            args = f'{about},"round":{op.round},"port":{op.port},"messages":{op.messages},"rows":{op.rows}'
            if op.version is not None:
                args += f',"version":{op.version}'
                if op.direction == BACKWARD:
                    args += f',"staleness":{op.lag}'
            lines.append(self._line(opening, args, op.start, op.seconds))
        self._file.write("".join(lines))

    def _opening(self, kind: str, node: str, worker: str, train: bool) -> str:
        opening = self._openings.get((kind, node, worker, train))
        return self._open(kind, node, worker, train) if opening is None else opening

    def _line(self, opening: str, args: str, time: float, seconds: float) -> str:
        start = round((time - self._since) * 1e9)
        length = max(0, round((time + seconds - self._since) * 1e9) - start)
        return f'{opening}{args}}},"ts":{_micro(start)},"dur":{_micro(length)}}},\n'

    def _spend(self, boxes: int, now: float) -> None:
        """Count boxes towards the limit."""
        self._left -= boxes
        if boxes and self._left <= 0:
            self._instant(f"no boxes from here on: {self._most:,} are written", now, {})

    def _box(self, kind: str, node: str, event: Wave | Updated | Synced, train: bool, about: Mapping[str, Any]) -> None:
        if self._unwritten > 0:
            self._unwritten -= 1
            opening = self._opening(kind, node, event.worker, train)
            self._file.write(self._line(opening, _dumps(about)[1:-1], event.time, event.seconds))

    def _open(self, kind: str, node: str, worker: str, train: bool) -> str:
        """Returns the common beginning of a node's boxes, up to their arguments."""
        row = self._rows.get(worker)
        if row is None:
            row = self._rows[worker] = CONTROLLER + 1 + len(self._rows)
            self._write(_meta("thread_name", row, {"name": worker}))
            self._write(_meta("thread_sort_index", row, {"sort_index": row}))
        name, where = _dumps(kind if kind == LAYOUT else f"{kind} {node}"), _dumps(node)
        category = kind if train else f"{kind},inference"
        common = f'"ph":"X","pid":1,"tid":{row},"name":{name},"cat":"{category}"'
        opening = f'{{{common},"args":{{"node":{where},'
        self._openings[kind, node, worker, train] = opening
        return opening

    def _flow(self, name: str, event: Pump | Retire) -> None:
        listed, more = few(np.array(event.instances, dtype=np.int64))
        about = {"stream": event.stream, "instances": listed, "more": more, "in flight": event.in_flight}
        self._instant(name, event.time, about)
        self._counter("instances in flight", event.time, "instances", event.in_flight)

    def _loss(self, now: float, train: bool, loss: float | None) -> None:
        if loss is not None:
            self._counter("loss, training" if train else "loss, inference", now, "loss", loss)

    def _counter(self, name: str, now: float, series: str, value: float) -> None:
        self._write(
            {"ph": "C", "pid": 1, "tid": CONTROLLER, "name": name, "ts": self._at(now), "args": {series: value}}
        )

    def _instant(self, name: str, now: float, args: Mapping[str, Any]) -> None:
        self._write(
            {"ph": "i", "pid": 1, "tid": CONTROLLER, "s": "t", "name": name, "ts": self._at(now), "args": dict(args)}
        )

    def _at(self, now: float) -> float:
        return round((now - self._since) * 1e9) / 1e3

    def _write(self, event: Mapping[str, Any]) -> None:
        self._file.write(_dumps(event) + ",\n")


def _meta(name: str, row: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": row, "name": name, "args": dict(args)}


def _micro(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _dumps(value: Any) -> str:
    return json.dumps(_plain(value), separators=(",", ":"), allow_nan=False)


def _plain(value: Any) -> Any:
    """Convert a value for JSON: nan and infinity become null, other objects their text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)
