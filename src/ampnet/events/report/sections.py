"""Sections: each function returns its part of the page for a run, or an empty text if the run has no data for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from ampnet.draw import Sketch
from ampnet.errors import DataError
from ampnet.events.gantt import COLOURS, chart, natural
from ampnet.events.gantt_page import figure
from ampnet.events.record import Point, RunRecord, StreamRecord
from ampnet.events.report.charts import BLUE, ORANGE, PALE_BLUE, Curve, curves, lags, shares, sizes
from ampnet.events.report.collapsed import Line, least_mean_most, lines_of, span
from ampnet.events.report.drawing import sketch_from, svg_of, without_replicas
from ampnet.events.report.settings import engine_of, workers_of
from ampnet.events.report.tables import table
from ampnet.events.utilisation import NodeUse
from ampnet.graph import CONTROLLER

HOT = 0.02
"""Nodes with at least this share of the time are marked in the drawing."""
LONG = 200
"""The number of streams in the table: the last ones."""
MOST_CURVES = 8
"""The number of metrics, and losses by name, that have a curve."""
CROWD = 8
"""Up to this number workers are listed alone; for more, the range is added."""


def summary(run: RunRecord) -> str:
    """Returns the line at the top."""
    trained = [s for s in run.streams if s.train]
    parts = []
    last = next((s for s in reversed(run.streams) if not s.train), trained[-1] if trained else None)
    if last is not None:
        values = [f"loss {last.loss:.4g}"] if last.loss is not None else []
        values += [f"{name} {value:.4g}" for name, value in last.metrics.items()]
        parts.append(f"{last.name}: {', '.join(values)}")
    parts.append(f"{len(trained)} training stream{'' if len(trained) == 1 else 's'} in {run.totals.wall:.1f} s")
    if trained:
        count = sum(s.instances for s in trained)
        parts.append(f"{count:,} instances trained, {_rate(count, sum(map(_seconds, trained)))}/s")
    stale = run.totals.staleness
    if stale.messages:
        parts.append(f"staleness {stale.mean:.1f} (max {stale.max})")
    busy = [sum(of.values()) / run.totals.wall for of in workers_of(run).values() if run.totals.wall > 0]
    if busy:
        named = f"{len(busy)} workers" if len(busy) > 1 else "the worker"
        parts.append(f"{named} busy {100 * sum(busy) / len(busy):.0f} % of the time")
    engine = engine_of(run)
    return "; ".join([*parts, *([f"engine: {engine}"] if engine else [])])


def learning(run: RunRecord, listed: int = LONG) -> str:
    """Returns curves of loss, metrics and throughput, and a table of the last ``listed`` streams."""
    reported = [*(s.metrics for s in run.streams), *(p.metrics for p in run.points[-1:])]
    found = dict.fromkeys(name for metrics in reported for name in metrics)
    names = sorted(found, key=lambda name: not name.endswith(".loss"))  # curves of named losses come first
    losses: Callable[[Any], float | None] = lambda of: of.loss  # noqa: E731
    drawn = [_curve("loss", run, losses)]
    for name in names[:MOST_CURVES]:
        drawn.append(_curve(name, run, lambda of, name=name: of.metrics.get(name)))  # type: ignore[misc]
    drawn.append(_throughput(run))
    return f'<div class="grid">{"".join(drawn)}</div>\n{_streams(run, names, listed)}'


def _curve(title: str, run: RunRecord, of: Callable[[Any], float | None]) -> str:
    running = Curve("training, mean so far", PALE_BLUE)
    for piece in _by_stream([p for p in run.points if p.train]):
        running.pieces.append([(p.time, value) for p in piece if (value := of(p)) is not None])
    ends = []
    for name, train, colour in (("training", True, BLUE), ("validation", False, ORANGE)):
        values = [(s.ended, value) for s in run.streams if s.train == train and (value := of(s)) is not None]
        ends.append(Curve(name, colour, [values], dots=True))
    return curves(title, [running, *ends], unit="s since the start")


def _by_stream(points: Sequence[Point]) -> list[list[Point]]:
    pieces: list[list[Point]] = []
    for p in points:
        if pieces and pieces[-1][-1].stream == p.stream and pieces[-1][-1].records <= p.records:
            pieces[-1].append(p)
        else:
            pieces.append([p])
    return pieces


def _throughput(run: RunRecord) -> str:
    """Returns examples per second if progress was recorded; else instances per second of each stream."""
    drawn = []
    for name, train, colour in (("training", True, BLUE), ("validation", False, ORANGE)):
        curve = Curve(name, colour)
        for piece in _by_stream([p for p in run.points if p.train == train]):
            # About a second at a time: over a tenth of one, buckets of examples make the curve jump.
            rates: list[tuple[float, float]] = []
            before = piece[0]
            for p in piece[1:]:
                if p.time - before.time >= 0.99 or (p is piece[-1] and p.time > before.time and not rates):
                    rates.append(((p.time + before.time) / 2, (p.records - before.records) / (p.time - before.time)))
                    before = p
            curve.pieces.append(rates)
        drawn.append(curve)
    if sum(len(c.points) for c in drawn) > 1:
        for curve in drawn:
            curve.dots = len(curve.points) < 40
            if any(len(piece) == 1 for piece in curve.pieces):  # short streams: a point each
                curve.pieces = [curve.points]
        return curves("throughput: examples per second", drawn, from_zero=True, unit="s since the start")
    for curve, train in zip(drawn, (True, False), strict=True):
        ended = [s for s in run.streams if s.train == train and _seconds(s) > 0]
        curve.pieces, curve.dots = [[(s.ended, s.instances / _seconds(s)) for s in ended]], True
    return curves("throughput: instances per second", drawn, from_zero=True, unit="s since the start")


def _seconds(stream: StreamRecord) -> float:
    return stream.ended - stream.began


def _rate(count: float, seconds: float) -> str:
    return f"{count / seconds:,.0f}" if seconds > 0 else "-"


def _streams(run: RunRecord, names: Sequence[str], listed: int) -> str:
    counted = any(s.instances for s in run.streams[-listed:])
    rows = []
    for s in run.streams[-listed:]:
        seen = [p for p in run.points if p.stream == s.name and s.began <= p.time <= s.ended and p.seconds > 0]
        examples = _rate(seen[-1].records, seen[-1].seconds) if seen and seen[-1].records else "-"
        loss = "-" if s.loss is None else f"{s.loss:.4f}"
        values = [f"{s.metrics[n]:.4f}" if n in s.metrics else "-" for n in names]
        instances = [f"{s.instances:,}", _rate(s.instances, _seconds(s))] if counted else []
        cells = [f"{_seconds(s):.2f}", *instances, examples, loss, *values]
        rows.append([s.name, "training" if s.train else "inference", *cells])
    head = ["stream", "what", "seconds", *["instances", "instances/s"] * counted, "examples/s", "loss", *names]
    left = "" if len(run.streams) <= listed else f"<p>The last {listed} of {len(run.streams):,} streams.</p>"
    return left + table(head, [[escape(c) for c in row] for row in rows], words=2) if rows else ""


def workers(run: RunRecord) -> str:
    """Returns the shares of each worker's time."""
    wall, rows = run.totals.wall, []
    kinds = ["forward", "backward", "update"]
    kinds += [kind for kind in ("sync", "layout") if any(kind in of for of in run.totals.workers.values())]
    names = sorted(workers_of(run), key=natural)
    for name in [*names, *(name for name in run.totals.workers if name == CONTROLLER)]:
        of = run.totals.workers[name]
        busy = sum(of.values())
        hosted = sum(total.worker == name for total in run.totals.nodes.values())
        percents = [_percent(of.get(kind, 0.0), wall) for kind in kinds]
        rows.append(
            [escape(name), shares(list(of.items()), wall, wide=420), _percent(busy, wall), *percents, str(hosted)]
        )
    if len(names) > CROWD and wall > 0:
        parts = [workers_of(run)[name] for name in names]
        busy_parts = [100 * sum(of.values()) / wall for of in parts]
        each = [least_mean_most([100 * of.get(kind, 0.0) / wall for of in parts], ".1f") for kind in kinds]
        cells = [least_mean_most(busy_parts, ".1f"), *each]
        first = f"<b>{len(names)} workers</b>"
        rows.insert(0, [first, "least / mean / most, %", *cells, ""])
    note = "<p>Parts of the wall time. The rest went into queues, routing, the controller, recording, or waiting.</p>"
    return note + table(["worker", "", "busy", *kinds, "nodes"], rows, words=2)


def nodes(run: RunRecord) -> str:
    """Returns time, batches, updates and staleness of each node. Replicas of a node share a line."""
    drawing = None
    with suppress(DataError):  # the section of the graph says it
        drawing = _drawing(run)
    details = {item.name: item.detail for item in drawing.items} if drawing is not None else {}
    lines = sorted(lines_of(run), key=lambda line: -line.total.seconds)
    spent = sum(line.total.seconds for line in lines)
    top = max((line.total.seconds for line in lines), default=0.0)
    several = len(run.totals.workers) > 1
    rows = []
    for line in lines:
        total = line.total
        parts = [("forward", total.forward), ("backward", total.backward), ("update", total.updates)]
        bar = shares([(kind, part.seconds) for kind, part in parts if part is not None], top, wide=110)
        detail = details.get(next(iter(line.members)), "")
        copies = f"<br><small>{line.count} replicas</small>" if line.count > 1 else ""
        row = [f"<b>{escape(line.name)}</b><br><small>{escape(detail)}</small>{copies}"]
        row += [escape(total.worker)] if several else []
        row += [f"{_percent(total.seconds, spent)}<br>{bar}{_each(line)}", *_use(total.forward, "forward")]
        row += [*_use(total.backward, "backward"), *_updates(line)]
        rows.append(row)
    head = ["node", *(["worker"] if several else []), "time", "forward batches", "messages, rows of one", "batch sizes"]
    head += ["backward batches", "messages, rows of one", "batch sizes", "updates", "staleness"]
    note = f"<p>Sorted by time; its bar is {_legend()}. Batch sizes: batches of 1, 2–3, 4–7, … messages."
    note += " In a wave a batch is an operation; to collect a weight's gradient is a backward batch." * bool(
        run.totals.waves
    )
    if any(line.count > 1 for line in lines):
        note += " Replicas of a node share a line, with their sum; the range is that of single replicas."
    return f"{note}</p>" + table(head, rows, words=2 if several else 1)


def _each(line: Line) -> str:
    if line.count == 1:
        return ""
    return f"<br><small>{span((total.seconds for total in line.members.values()), '.3g')} s each</small>"


def _use(use: NodeUse | None, kind: str) -> list[str]:
    if use is None:
        return ["", "", ""]
    return [
        f"{use.invocations:,}",
        f"{use.mean_messages:,.1f}, {use.mean_rows:,.0f}",
        sizes(use.histogram, colour=COLOURS[kind]),
    ]


def _updates(line: Line) -> list[str]:
    total, members = line.total, line.members.values()
    updates = "" if total.updates is None else f"{total.updates.updates:,}"
    stale = total.staleness
    found = "" if stale is None else f"{stale.mean:.2f}, max {stale.max}"
    if line.count > 1 and updates:
        updates += f"<br><small>{span((m.updates.updates for m in members if m.updates is not None), ',')} each</small>"
    if line.count > 1 and found:
        means = span((m.staleness.mean for m in members if m.staleness is not None), ".2f")
        found += f"<br><small>mean {means}</small>"
    return [updates, found]


def _legend() -> str:
    return ", ".join(
        f'<span class="swatch"><i style="background: {COLOURS[kind]}"></i>{kind}</span>'
        for kind in ("forward", "backward", "update")
    )


def staleness(run: RunRecord) -> str:
    """Returns a histogram for each node with parameters; replicas of a node share one."""
    parts = []
    for line in lines_of(run):
        stale = line.total.staleness
        if stale is not None and stale.messages:
            copies = f", {line.count} replicas" if line.count > 1 else ""
            parts.append(
                f'<figure class="lags"><figcaption><b>{escape(line.name)}</b>{copies}<br>mean {stale.mean:.2f}, '
                f"max {stale.max}, {stale.messages:,} messages</figcaption>{lags(stale.histogram)}</figure>"
            )
    if not parts:
        return ""
    note = "<p>How many updates a node made between the forward and the backward of a message.</p>"
    return f'{note}<div class="few">{"".join(parts)}</div>'


def graph(run: RunRecord) -> str:
    """Returns the drawing, with the time shares of the hottest nodes; replicas of a node are one item."""
    try:
        drawing = _drawing(run)
    except DataError as error:
        return f"<p>{escape(str(error))}</p>"
    if drawing is None:
        return "<p>The run's file holds no drawing: its settings have no <code>graph</code>.</p>"
    bases = {item.name: item.base or item.name for item in drawing.items}
    drawing = without_replicas(drawing)
    spent = sum(total.seconds for total in run.totals.nodes.values())
    marks: dict[str, float] = {}
    for name, total in run.totals.nodes.items():
        base = bases.get(name, name)
        marks[base] = min(1.0, marks.get(base, 0.0) + total.seconds / spent) if spent > 0 else 0.0
    hot = {name: share for name, share in marks.items() if share >= HOT}
    return f"<p>Per cent: share of all the time spent in nodes, from {100 * HOT:.0f} % on.</p>{svg_of(drawing, hot)}"


def _drawing(run: RunRecord) -> Sketch | None:
    given = run.settings.get("graph")
    return sketch_from(given) if isinstance(given, Mapping) else None


def timeline(run: RunRecord) -> str:
    """Returns the Gantt chart of a typical interval."""
    try:
        drawn = chart(run.boxes)
    except DataError as error:
        return f"<p>{escape(str(error))}</p>"
    kept = ""
    if run.totals.boxes > len(run.boxes):
        kept = f"<p>Of the run's {run.totals.boxes:,} boxes, the first {len(run.boxes):,} were recorded.</p>"
    note = f"<p>{escape(drawn.title)}. In the boxes are names of nodes and numbers of instances, where they fit.</p>"
    return f"{note}{kept}{figure(drawn, run.boxes)}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole > 0 else "-"
