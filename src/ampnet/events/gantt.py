"""Gantt: a chart of which worker computed which instance when: the paper's Figure 1, drawn from a real run.

    worker 0   [cell 12][12+1][ cell 11 ][u][cell]     [ 11 ][u]     90 %     a row for each worker, or for each node
    worker 1           [ 12 ]  [loss 10][u]    [ 12 ][ 13 ]          71 %     colour: forward, backward, update, ...
               |---------|---------|---------|---------|                      name of the node, where there is room;
               0         2         4         6         8 ms                   numbers: instances in the batch

Colours are those of the paper's figure: orange forward, blue backward, yellow update.

    gantt(EventLog or events, "run.png")              also .svg and .html
    gantt(read_run("run.json"), "run.html", instances=(40, 44))

By default the picture shows 60 to 150 boxes of the steady state (`ampnet.events.boxes.steady`). The page (``.html``)
holds more of the run on either side of it; it can be zoomed with the wheel and moved with the mouse, and shows the
details of the box under the pointer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ampnet.checkpoint.output import replacing
from ampnet.errors import DataError
from ampnet.events.boxes import Box, Window, boxes_of, in_order, of_instances, steady, whole
from ampnet.events.log import Event
from ampnet.events.record import RunRecord

ENDINGS = (".png", ".svg", ".html")
MANY = 5_000
"""The maximal number of boxes in a picture: more would not be distinguishable."""
COLOURS = {
    "forward": "#f4a259",
    "inference": "#fbdcbf",
    "backward": "#86b9ea",
    "collect": "#4f8fd0",
    "update": "#ffd93b",
    "sync": "#9d86cf",
    "layout": "#c3c9d0",
}
LOOKS = {"collect": "collect (weight gradient)", "layout": "layout of a wave", "sync": "sync of replicas"}
"""The legend's texts that differ from the names."""
INK, FAINT = "#1b1f23", "#59636e"
PALE = 0.22
"""The opacity of boxes of other instances, if some were selected."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the chart."""

    name: str
    """A worker or a node."""
    busy: float
    """Its busy share of the window."""
    boxes: list[Box]
    """The boxes that overlap the window, in order."""


@dataclass(frozen=True, slots=True)
class Chart:
    """The contents of a chart."""

    title: str
    """The title, with the busy shares of the workers."""
    window: Window
    """The window that is shown."""
    rows: list[Row]
    """From top to bottom."""
    chosen: tuple[int, int] | None
    """The selected instances; boxes of others are pale."""
    looks: tuple[str, ...]
    """The colours that occur, for the legend."""
    mixed: frozenset[str] = frozenset()
    """Workers whose row shows several nodes: their boxes carry the names of nodes. None if each node has a row."""

    @property
    def unit(self) -> tuple[str, float]:
        """The unit of the axis, and the number of units per second."""
        for name, times in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
            if self.window.seconds * times >= 2:
                return name, times
        return "µs", 1e6

    def named(self, box: Box) -> bool:
        """Whether a box carries the name of its node."""
        return box.worker in self.mixed

    def pale(self, box: Box) -> bool:
        return self.chosen is not None and not box.concerns(*self.chosen)


def gantt(
    run: RunRecord | Iterable[Event] | Iterable[Box],
    path: str | Path,
    *,
    start: float | None = None,
    stop: float | None = None,
    instances: tuple[int, int] | None = None,
    workers: Sequence[str] | None = None,
    rows: Literal["workers", "nodes"] = "workers",
    title: str = "",
) -> Chart:
    """Draw a run to a ``.png``, ``.svg`` or ``.html`` file. Returns the chart.

    ``start`` and ``stop`` are seconds since the first event; ``instances`` (first, last) shows the time in which those
    were in flight, and pales the others. By default a typical interval is picked. ``workers`` restricts the rows to
    these. The file is written atomically.
    """
    path = Path(path)
    form = path.suffix.lower()
    if form not in ENDINGS:
        raise ValueError(f"cannot draw to '{path}': the ending must be one of {', '.join(ENDINGS)}")
    boxes = boxes_from(run)
    drawn = chart(boxes, start=start, stop=stop, instances=instances, workers=workers, rows=rows, title=title)
    if form == ".html":
        from ampnet.events.gantt_page import page

        kept = boxes if workers is None else [b for b in boxes if b.worker in workers]
        text = page(drawn, kept, rows)
        with replacing(path) as out:
            out.write(text)
    else:
        from ampnet.events.gantt_picture import save

        with replacing(path, "wb") as picture:
            save(drawn, picture, form.removeprefix("."))
    return drawn


def boxes_from(run: RunRecord | Iterable[Event] | Iterable[Box]) -> list[Box]:
    """Returns the boxes of a run, of events or of boxes, sorted by start."""
    if isinstance(run, RunRecord):
        return run.boxes
    items = list(run)
    boxes = [item for item in items if isinstance(item, Box)]
    return in_order([*boxes, *boxes_of(item for item in items if isinstance(item, Event))])


def chart(
    boxes: Sequence[Box],
    *,
    start: float | None = None,
    stop: float | None = None,
    instances: tuple[int, int] | None = None,
    workers: Sequence[str] | None = None,
    rows: Literal["workers", "nodes"] = "workers",
    title: str = "",
) -> Chart:
    """Returns the chart of boxes sorted by start. Raises `DataError` with the reason if there is nothing to draw."""
    if not boxes:
        raise DataError("the run has no boxes: no node did anything, or its events were not recorded")
    known = sorted({b.worker for b in boxes}, key=natural)
    if workers is not None:
        strange = [w for w in workers if w not in known]
        if strange:
            raise DataError(f"there is no worker '{strange[0]}'; there are {', '.join(known)}")
        boxes = [b for b in boxes if b.worker in workers]
        known = [w for w in known if w in workers]
    window, what = _window(boxes, start, stop, instances)
    shown = window.cut(boxes)
    if not shown:
        span = whole(boxes)
        raise DataError(
            f"nothing was done between {window.start:g} and {window.stop:g} s; the run's boxes are from "
            f"{span.start:.6g} to {span.stop:.6g} s"
        )
    if len(shown) > MANY:
        raise DataError(f"{len(shown):,} boxes are in this window; at most {MANY:,} can be drawn: give a shorter one")
    busy = window.busy(shown)
    names, of = (known, _worker) if rows == "workers" else (sorted({b.node for b in shown}, key=_first(shown)), _node)
    lines = []
    for name in names:
        mine = [b for b in shown if of(b) == name]
        lines.append(Row(name, window.busy(mine).get(name, 0.0) if rows == "workers" else _share(window, mine), mine))
    shares = [f"{w} {100 * busy.get(w, 0.0):.0f} %" for w in known]
    if len(shares) > 4:
        shares = [f"{100 * sum(busy.values()) / len(known):.0f} % on average of {len(known)} workers"]
    about = f"{title}: " if title else ""
    head = f"{about}{what}, {_span(window)}; busy: {', '.join(shares)}"
    looks = tuple(look for look in COLOURS if any(look_of(b) == look for b in shown))
    mixed = frozenset(w for w in known if rows == "workers" and len({b.node for b in shown if b.worker == w}) > 1)
    return Chart(head, window, lines, instances, looks, mixed)


def _window(
    boxes: Sequence[Box], start: float | None, stop: float | None, instances: tuple[int, int] | None
) -> tuple[Window, str]:
    """Returns the window to draw, and its name."""
    if instances is not None:
        window = of_instances(boxes, *instances)
        if not window.seconds > 0:
            numbers = [i for b in boxes for i in b.instances[:1]]
            there = f"those recorded are {min(numbers)} to {max(numbers)}" if numbers else "none is recorded"
            raise DataError(f"no batch holds an instance from {instances[0]} to {instances[1]}; {there}")
        first, last = instances
        return window, f"instance {first}" if first == last else f"instances {first} to {last}"
    if start is None and stop is None:
        return steady(boxes), "steady state"
    span = whole(boxes)
    window = Window(span.start if start is None else start, span.stop if stop is None else stop)
    if not window.seconds > 0:
        raise DataError(
            f"a window from {window.start:g} to {window.stop:g} s is empty; the run ends at {span.stop:.6g} s"
        )
    return window, "interval"


def _worker(box: Box) -> str:
    return box.worker


def _node(box: Box) -> str:
    return box.node


def _first(boxes: Sequence[Box]) -> Callable[[str], int]:
    """Returns a sort key: the order in which nodes first occur."""
    places: dict[str, int] = {}
    for i, box in enumerate(boxes):
        places.setdefault(box.node, i)
    return places.__getitem__


def _share(window: Window, boxes: Sequence[Box]) -> float:
    return sum(window.busy(boxes).values())


def _span(window: Window) -> str:
    digits = max(2, 3 - int(f"{window.seconds:e}".partition("e")[2])) if window.seconds > 0 else 2
    return f"{window.start:.{digits}f} to {window.stop:.{digits}f} s"


def natural(name: str) -> tuple[Any, ...]:
    """Returns a sort key that puts worker 10 after worker 9."""
    parts: list[tuple[int, int, str]] = []
    text = ""
    for c in name + "\0":
        if text and c.isdecimal() != text[-1].isdecimal():
            parts.append((0, int(text), "") if text.isdecimal() else (1, 0, text))
            text = ""
        text += c
    return tuple(parts)


def look_of(box: Box) -> str:
    """Returns the key of a box in `COLOURS`."""
    return "inference" if not box.train and box.kind != "layout" else box.kind


def labels(box: Box) -> list[str]:
    """Returns the texts of a box besides its name: its instances, from the longest text to the shortest."""
    numbers = [str(i) for i in box.instances]
    count = len(numbers) + box.more
    if count <= 1:
        return numbers
    every = [" ".join(numbers)] if not box.more else []
    return [*every, f"{numbers[0]}+{count - 1}"]


def named_labels(box: Box) -> list[str]:
    """Returns the name of the node with its instances, and without."""
    return [*(f"{box.node} {text}" for text in labels(box)[-1:]), box.node]


@dataclass(frozen=True, slots=True)
class Room:
    """The room for text in a box: its width and height, and those of a letter, in the same unit."""

    width: float
    height: float
    letter: float
    line: float

    def fit(self, box: Box, *, named: bool) -> tuple[str, bool]:
        """Returns the text of a box, maybe empty, and whether it is vertical.

        The name of the node is tried first, horizontally and vertically; then the instances.
        """
        if self.height >= self.line:
            names = named_labels(box) if named else []
            across = next((text for text in names if self._takes(text, self.width)), None)
            if across is not None:
                return across, False
            if self.width >= self.line:
                upwards = next((text for text in names if self._takes(text, self.height)), None)
                if upwards is not None:
                    return upwards, True
            return next((text for text in labels(box) if self._takes(text, self.width)), ""), False
        return "", False

    def _takes(self, text: str, width: float) -> bool:
        return (len(text) + 0.3) * self.letter <= width
