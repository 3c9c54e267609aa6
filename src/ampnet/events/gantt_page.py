"""The Gantt chart as an SVG element for a page, and as a standalone page without external resources.

Without JavaScript the chart shows its window, and the browser shows a box's title under the pointer. With it the chart
can be zoomed (wheel with Ctrl or Shift, buttons) and moved (drag): the script reads start and stop of every box from
the element and repositions it.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

from ampnet.events.boxes import Box, Window, around
from ampnet.events.gantt import COLOURS, LOOKS, PALE, Chart, Room, labels, look_of, named_labels
from ampnet.events.theme import THEME

WIDTH, RIGHT, FOOT = 1160, 52, 40
LETTER, LINE = 5.7, 11.0
"""The approximate width of a letter in a box, and the height of a line."""
CONTEXT = 1_500
"""The number of boxes in a page, including those around the window."""
TICKS = 8


def page(chart: Chart, boxes: Sequence[Box], rows: str = "workers") -> str:
    """Returns a standalone page. ``boxes``: of the whole run; those near the window can be moved into view."""
    body = f"<h1>{escape(chart.title)}</h1>\n{figure(chart, boxes, rows)}"
    return PAGE.format(title=escape(chart.title), style=THEME + STYLE, body=body, script=SCRIPT)


def figure(chart: Chart, boxes: Sequence[Box] = (), rows: str = "workers") -> str:
    """Returns legend, chart and controls, for a page that has `STYLE` and `SCRIPT`."""
    near = around(boxes, chart.window, CONTEXT) if boxes else [b for row in chart.rows for b in row.boxes]
    names = {_row(b, rows) for b in near}
    order = [row.name for row in chart.rows]
    order += sorted(names.difference(order))
    swatches = "".join(
        f'<span class="swatch"><i style="background: {colour}"></i>{LOOKS.get(look, look)}</span>'
        for look, colour in COLOURS.items()
        if any(look_of(b) == look for b in near)
    )
    return (
        f'<figure class="gantt"><figcaption>{swatches}<span class="buttons" hidden>'
        '<button data-do="in">+</button> <button data-do="out">&minus;</button> <button data-do="all">reset</button> '
        "<small>drag to move, Ctrl + wheel to zoom</small></span></figcaption>\n"
        f"{svg(chart, near, order, rows)}</figure>"
    )


def svg(chart: Chart, boxes: Sequence[Box], order: Sequence[str], rows: str = "workers") -> str:
    """Returns the chart as an SVG element, with rows in this ``order``. Boxes outside the window are out of view."""
    window = chart.window
    row = max(24, 64 - 8 * len(order))
    height = row * len(order)
    left = 24 + 6.6 * min(24, max(map(len, order), default=0))
    plot = WIDTH - left - RIGHT
    unit, times = chart.unit
    busy = {line.name: line.busy for line in chart.rows}
    out = [
        f'<svg class="gantt" role="img" aria-label="{escape(chart.title)}" viewBox="0 0 {WIDTH} {height + FOOT}" '
        f'data-from="{window.start:.9f}" data-to="{window.stop:.9f}" data-plot="{plot:.1f}" data-times="{times:g}" '
        f'data-unit="{unit}" data-letter="{LETTER}" data-line="{LINE}" data-high="{row - 6}">'
    ]
    for i, name in enumerate(order):
        if i % 2 == 0:
            out.append(f'<rect class="band" x="0" y="{i * row}" width="{WIDTH}" height="{row}"/>')
        y = (i + 0.5) * row + 4
        short = name if len(name) <= 24 else f"{name[:14]}…{name[-8:]}"
        out.append(f'<text x="{left - 8:.0f}" y="{y:g}" class="name">{escape(short)}</text>')
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y:g}" class="busy">{100 * busy.get(name, 0.0):.0f} %</text>')
    out.append(f'<svg class="plot" x="{left:.1f}" y="0" width="{plot:.1f}" height="{height}">')
    out.append(f'<rect class="ground" width="{plot:.1f}" height="{height}"/>')
    places = {name: i for i, name in enumerate(order)}
    for box in boxes:
        out.append(_box(chart, box, places[_row(box, rows)] * row, row, plot))
    out.append(f'</svg><g class="axis" transform="translate({left:.1f} {height})">{axis(window, plot, times)}</g>')
    out.append(
        f'<text x="{left + plot / 2:.0f}" y="{height + 34}" class="unit">{unit} since {window.start:.6g} s</text>'
    )
    out.append("</svg>")
    return "\n".join(out)


def _row(box: Box, rows: str) -> str:
    return box.worker if rows == "workers" else box.node


def _box(chart: Chart, box: Box, top: float, row: float, plot: float) -> str:
    window = chart.window
    x = (box.start - window.start) / window.seconds * plot
    width = box.seconds / window.seconds * plot
    seen = max(x, 0.0), min(x + width, plot)
    text, upwards = Room(seen[1] - seen[0], row - 6, LETTER, LINE).fit(box, named=chart.named(box))
    pale = f' opacity="{PALE}"' if chart.pale(box) else ""
    names = _lines(named_labels(box)) if chart.named(box) else ""
    middle, down = sum(seen) / 2, top + row / 2
    turned = f' transform="rotate(-90 {middle:.2f} {down:g})"' if upwards else ""
    return (
        f'<g class="box" data-s="{box.start:.9f}" data-d="{box.seconds:.9f}" data-n="{names}" '
        f'data-l="{_lines(labels(box))}"{pale}><title>{escape(describe(box))}</title>'
        f'<rect x="{x:.2f}" y="{top + 3:g}" width="{_gap(width):.2f}" height="{row - 6:g}" '
        f'fill="{COLOURS[look_of(box)]}"/>'
        f'<text x="{middle:.2f}" y="{down + 3.5:g}" data-y="{down:g}"{turned}>{escape(text)}</text></g>'
    )


def _lines(texts: Sequence[str]) -> str:
    """Returns texts as an attribute, one per line. A name of several lines becomes one line."""
    return "&#10;".join(escape(" ".join(text.split())) for text in texts)


def _gap(width: float) -> float:
    """Returns the drawn width: with a gap between adjacent boxes, if there is room, and never zero."""
    return width - 0.5 if width > 3 else max(width, 0.5)


def describe(box: Box) -> str:
    """Returns the details of a box, as lines of text."""
    what = box.kind if box.kind == "layout" else f"{box.kind} {box.node}"
    lines = [f"{what}, {box.worker}{'' if box.train else ' (inference)'}"]
    lines.append(f"{box.seconds * 1e6:,.0f} µs from {box.start:.6f} s")
    if box.kind == "update":
        lines.append(f"update {box.version} of the node, {box.messages:,} gradient{'' if box.messages == 1 else 's'}")
        return "\n".join(lines)
    if box.kind == "sync":
        lines.append(
            f"made equal to the other replicas, after {box.messages:,} update{'' if box.messages == 1 else 's'} of its "
            f"own; version {box.version}"
        )
        return "\n".join(lines)
    if box.kind == "layout":
        lines.append(f"wave {box.wave} of the worker is rehearsed and laid out")
    elif box.wave is not None:
        lines.append(f"wave {box.wave} of the worker, round {box.round}")
    if box.kind != "layout":
        lines.append(f"{box.messages:,} message{'' if box.messages == 1 else 's'}, {box.rows:,} rows")
    if box.instances:
        more = f" and {box.more} more" if box.more else ""
        lines.append(f"instances {', '.join(map(str, box.instances))}{more}")
    if box.version is not None:
        lines.append(f"after {box.version} updates of the node")
    if box.staleness is not None:
        lines.append(f"staleness {box.staleness:.3g}")
    return "\n".join(lines)


def axis(window: Window, plot: float, times: float) -> str:
    """Returns ticks at round numbers, from 0 at the window's start."""
    span = window.seconds * times
    step = round_step(span / TICKS)
    digits = max(0, -floor(log10(step)))
    parts = [f'<line x1="0" x2="{plot:.1f}" y1="0.5" y2="0.5"/>']
    for i in range(int(span / step) + 1):
        x = i * step / span * plot
        parts.append(f'<line x1="{x:.2f}" x2="{x:.2f}" y1="0" y2="5"/>')
        parts.append(f'<text x="{x:.2f}" y="17">{i * step:.{digits}f}</text>')
    return "".join(parts)


def round_step(least: float) -> float:
    """Returns the smallest of 1, 2, 5, 10, ... times a power of ten that is not below ``least``."""
    power: float = 10.0 ** floor(log10(least))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= least * (1 - 1e-9))


STYLE = """
figure.gantt { margin: 0; overflow-x: auto; }
figure.gantt figcaption { display: flex; gap: 0.4rem 1.2rem; align-items: center; margin: 0.4rem 0; flex-wrap: wrap; }
figure.gantt .swatch { margin: 0; }
.swatch i { display: inline-block; width: 1.1em; height: 0.8em; margin-right: 0.4em; border-radius: 2px; }
.buttons button { font: inherit; padding: 0 0.6em; }
.buttons small { color: var(--faint); margin-left: 0.6em; }
svg.gantt { width: 100%; height: auto; font: 12px system-ui, sans-serif; fill: var(--ink); display: block; }
svg.gantt .plot { touch-action: pan-y; }
svg.gantt .band { fill: var(--band); }
svg.gantt .ground { fill: transparent; }
svg.gantt .name { text-anchor: end; }
svg.gantt .busy, svg.gantt .unit, svg.gantt .axis text { fill: var(--faint); font-size: 11px; }
svg.gantt .unit, svg.gantt .axis text, svg.gantt .box text { text-anchor: middle; }
svg.gantt .axis line { stroke: var(--faint); stroke-width: 1; }
svg.gantt .box:hover rect { stroke: var(--ink); stroke-width: 1.2; }
svg.gantt .box text { font-size: 9.5px; fill: #1b1f23; pointer-events: none; }
@media (max-width: 600px) {
  svg.gantt { width: 860px; }
  figure.gantt figcaption { position: sticky; left: 0; }
}
"""

SCRIPT = """
"use strict";
function gantt(figure) {
  const chart = figure.querySelector("svg.gantt"), plot = chart.querySelector("svg.plot");
  const axis = chart.querySelector(".axis"), unit = chart.querySelector(".unit");
  const first = +chart.dataset.from, last = +chart.dataset.to, width = +chart.dataset.plot;
  const times = +chart.dataset.times, letter = +chart.dataset.letter;
  const boxes = Array.from(plot.querySelectorAll(".box"), g => ({
    rect: g.querySelector("rect"), text: g.querySelector("text"),
    start: +g.dataset.s, seconds: +g.dataset.d, y: +g.querySelector("text").dataset.y,
    names: g.dataset.n ? g.dataset.n.split("\\n") : [], labels: g.dataset.l ? g.dataset.l.split("\\n") : [],
  }));
  const line = +chart.dataset.line, high = +chart.dataset.high;
  const takes = (text, wide) => (text.length + 0.3) * letter <= wide;

  function fit(box, wide) {
    if (high < line) return ["", false];
    const across = box.names.find(t => takes(t, wide));
    if (across !== undefined) return [across, false];
    const upwards = wide >= line ? box.names.find(t => takes(t, high)) : undefined;
    if (upwards !== undefined) return [upwards, true];
    return [box.labels.find(t => takes(t, wide)) || "", false];
  }

  const earliest = Math.min(first, ...boxes.map(b => b.start));
  const latest = Math.max(last, ...boxes.map(b => b.start + b.seconds));
  let from = first, to = last;

  function show(a, b) {
    const span = Math.min(Math.max(b - a, 1e-7), latest - earliest);
    from = Math.min(Math.max(a, earliest), latest - span);
    to = from + span;
    for (const box of boxes) {
      const x = (box.start - from) / span * width, wide = box.seconds / span * width;
      box.rect.setAttribute("x", x.toFixed(2));
      box.rect.setAttribute("width", (wide > 3 ? wide - 0.5 : Math.max(wide, 0.5)).toFixed(2));
      const left = Math.max(x, 0), right = Math.min(x + wide, width);
      const middle = ((left + right) / 2).toFixed(2), [text, upwards] = fit(box, right - left);
      box.text.setAttribute("x", middle);
      if (upwards) box.text.setAttribute("transform", `rotate(-90 ${middle} ${box.y})`);
      else box.text.removeAttribute("transform");
      box.text.textContent = text;
    }
    const length = span * times, least = length / 8, power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= least * (1 - 1e-9));
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    let ticks = `<line x1="0" x2="${width}" y1="0.5" y2="0.5"/>`;
    for (let i = 0; i * step <= length * (1 + 1e-9); i++) {
      const x = i * step / length * width;
      ticks += `<line x1="${x}" x2="${x}" y1="0" y2="5"/><text x="${x}" y="17">${(i * step).toFixed(digits)}</text>`;
    }
    axis.innerHTML = ticks;
    unit.textContent = `${chart.dataset.unit} since ${from.toPrecision(6)} s`;
  }

  function zoom(factor, part) {
    const middle = from + (to - from) * part, span = (to - from) * factor;
    show(middle - span * part, middle + span * (1 - part));
  }

  function place(event) {
    const area = plot.querySelector(".ground").getBoundingClientRect();
    return (event.clientX - area.left) / area.width;
  }

  plot.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const turned = event.deltaY || event.deltaX;
    zoom(turned > 0 ? 1.25 : 0.8, place(event));
  }, { passive: false });
  let held = null;
  plot.addEventListener("pointerdown", event => {
    held = [place(event), from, to];
    plot.setPointerCapture(event.pointerId);
  });
  plot.addEventListener("pointerup", () => { held = null; });
  plot.addEventListener("pointercancel", () => { held = null; });
  plot.addEventListener("pointermove", event => {
    if (held === null) return;
    const moved = (held[0] - place(event)) * (held[2] - held[1]);
    show(held[1] + moved, held[2] + moved);
  });
  for (const button of figure.querySelectorAll("button"))
    button.addEventListener("click", () => {
      if (button.dataset.do === "all") show(first, last);
      else zoom(button.dataset.do === "in" ? 0.5 : 2, 0.5);
    });
  figure.querySelector(".buttons").hidden = false;
  show(first, last);
}
document.querySelectorAll("figure.gantt").forEach(gantt);
"""

READY = 'document.body.dataset.ready = "yes";'
"""The last line of a page's script, by which tests see that all of it ran."""

PAGE = (
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}
h1 {{ font-size: 1.15rem; }}
</style>
</head>
<body>
{body}
<script>
{script}
"""
    + READY
    + """
</script>
</body>
</html>
"""
)
