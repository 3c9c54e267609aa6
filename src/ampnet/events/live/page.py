"""The live page: a frame that is sent once, and the parts of it that change, as JSON.

    shell      head, style, script, the drawing of the graph; an element for every section, and the first parts
    parts      {"version", "state", "facts", "sections": {name: HTML}, "marks": share and colour of each node}

The script polls for the parts, and replaces those that have changed. The sections are those of the report. The graph is
drawn once; its nodes are coloured in the browser.
"""

from __future__ import annotations

import json
from html import escape
from typing import NamedTuple

from ampnet.draw import heat, percent, sketch
from ampnet.errors import DataError
from ampnet.eta import clock_text
from ampnet.events.gantt import chart
from ampnet.events.gantt_page import SCRIPT as GANTT_SCRIPT
from ampnet.events.gantt_page import STYLE as GANTT_STYLE
from ampnet.events.gantt_page import figure
from ampnet.events.live.standing import RunSize, speed
from ampnet.events.live.watch import LiveData
from ampnet.events.record import Point, RunRecord
from ampnet.events.report import STYLE, sections
from ampnet.events.report.drawing import svg_of, without_replicas
from ampnet.events.theme import THEME
from ampnet.graph import Graph

LISTED = 6
"""The number of streams in the table: the last ones."""


def learning(run: RunRecord) -> str:
    """Returns curves, and the last streams."""
    return sections.learning(run, listed=LISTED) if run.streams or run.points else ""


def timeline(run: RunRecord) -> str:
    """Returns the Gantt chart of the last interval."""
    if not run.boxes:
        return ""
    try:
        drawn = chart(run.boxes, start=run.boxes[0].start, stop=max(box.stop for box in run.boxes))
    except DataError as error:
        return f"<p>{escape(str(error))}</p>"
    return f"<p>The latest sampled operations: {escape(drawn.title)}.</p>{figure(drawn)}"


def workers(run: RunRecord) -> str:
    """Returns the busy share of each worker."""
    return sections.workers(run) if run.totals.workers else ""


def nodes(run: RunRecord) -> str:
    """Returns time, batch sizes, updates and staleness of each node."""
    if not run.totals.nodes:
        return ""
    return "<p>From sampled operations; the staleness is that of all gradients.</p>" + sections.nodes(run)


SECTIONS = {
    "learning": ("Learning and throughput", learning),
    "timeline": ("Who works when", timeline),
    "workers": ("Workers", workers),
    "graph": ("The graph", None),
    "nodes": ("Nodes", nodes),
    "staleness": ("Staleness", sections.staleness),
}
"""By id, in the order of the page. The graph is drawn once."""


class Picture(NamedTuple):
    """The drawing of a graph."""

    svg: str
    numbers: dict[str, int]
    """The number of each node's item."""


def picture_of(graph: Graph) -> Picture:
    """Draw a graph, with a mark at every node; replicas of a node are one item."""
    whole = sketch(graph)
    drawn = without_replicas(whole)
    places = {item.name: i for i, item in enumerate(drawn.items) if item.kind != "input"}
    numbers = {item.name: places[item.base or item.name] for item in whole.items if item.kind != "input"}
    return Picture(svg_of(drawn, dict.fromkeys(places, 0.0)), numbers)


def shell(picture: Picture | None, first: bytes, nonce: str) -> str:
    """Returns the page. ``first``: its initial parts."""
    places = []
    for name, (heading, _) in SECTIONS.items():
        if name != "graph":
            places.append(f'<section id="{name}" hidden><h2>{escape(heading)}</h2><div></div></section>')
        elif picture is not None:
            note = "<p>Colour and per cent: share of the time spent in nodes.</p>"
            places.append(f'<section id="graph"><h2>{escape(heading)}</h2>{note}{picture.svg}</section>')
    return PAGE.format(
        style=THEME + STYLE + GANTT_STYLE + LIVE_STYLE,
        body="\n".join(places),
        script=GANTT_SCRIPT + SCRIPT,
        first=first.decode().replace("<", "\\u003c"),
        nonce=escape(nonce),
    )


def parts(watch: LiveData, plan: RunSize, version: int, ended: bool, picture: Picture | None) -> bytes:
    """Returns the JSON of the parts of the page that change."""
    run = watch.record()
    made = {name: make(run) for name, (_, make) in SECTIONS.items() if make is not None}
    state = "ended" if ended else "running" if watch.running else "waiting"
    data = {
        "version": version,
        "state": state,
        "title": str(run.settings.get("workload", "a run")),
        "facts": facts(run, plan, watch.elapsed(), ended),
        "sections": made,
        "marks": _marks(run, picture) if picture is not None else {},
    }
    return json.dumps(data, separators=(",", ":")).encode()


def _marks(run: RunRecord, picture: Picture) -> dict[str, list[str]]:
    """Returns, by item of the drawing, its share of the time and its colours."""
    spent = sum(total.seconds for total in run.totals.nodes.values())
    shares: dict[str, float] = {}
    for name, total in run.totals.nodes.items():
        if name in picture.numbers and spent > 0:
            number = str(picture.numbers[name])
            shares[number] = shares.get(number, 0.0) + total.seconds / spent
    return {i: [percent(s), heat(s), "white" if s > 0.15 else "#1b1f23"] for i, s in shares.items()}


def facts(run: RunRecord, plan: RunSize, elapsed: float, ended: bool) -> str:
    """Returns the numbers at the top, as HTML."""
    rows: list[tuple[str, str]] = []
    point = run.points[-1] if run.points else None
    if point is not None:
        rows += _progress(run, plan, point, ended)
    rows.append(("elapsed", clock_text(elapsed)))
    left = plan.left(run.streams, point, elapsed)
    if left is not None and not ended:
        rows.append(("left, at most", clock_text(left)))
    stale = run.totals.staleness
    if stale.messages:
        rows.append(("staleness", f"{stale.mean:.1f} (max {stale.max})"))
    busy = [sum(of.values()) / run.totals.wall for of in run.totals.workers.values() if run.totals.wall > 0]
    if busy:
        rows.append(("busy", f"{100 * sum(busy) / len(busy):.0f} %"))
    engine = str(run.settings.get("engine", ""))
    rows += [("engine", engine)] if engine else []
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in rows)
    part = plan.share(point) if point is not None and not ended else None
    bar = f'<progress max="1" value="{part:.4f}"></progress>' if part is not None else ""
    return f"<dl>{listed}</dl>{bar}"


def _progress(run: RunRecord, plan: RunSize, point: Point, ended: bool) -> list[tuple[str, str]]:
    name, _, number = point.stream.partition(" ")
    of = f" of {plan.epochs}" if plan.epochs is not None and number.isdecimal() else ""
    rows = [("stream", f"{name} {number}{of}".strip())]
    last = run.streams[-1] if run.streams else None
    values = {"loss": point.loss, **point.metrics}
    if last is not None and last.ended >= point.time:
        rows, values = [("stream", f"{last.name}, done")], {"loss": last.loss, **last.metrics}
        return rows + [(what, f"{value:.4g}") for what, value in values.items() if value is not None]
    if not ended:
        total = plan.records.get(name)
        rows.append(("examples", f"{point.records:,}" + (f" of {total:,}" if total else "")))
        rows.append(("in flight", f"{point.in_flight:,}"))
    rate = speed(run.points)
    rows += [("examples/s", f"{rate:,.0f}")] if rate is not None else []
    return rows + [(what, f"{value:.4g}") for what, value in values.items() if value is not None]


LIVE_STYLE = """
#state { float: right; margin: 0.2rem 0 0 0.8rem; font-weight: 600; }
#state i { display: inline-block; width: 0.65em; height: 0.65em; border-radius: 50%; margin-right: 0.4em; }
#state[data-is=running] i { background: #2f9e5a; }
#state[data-is=waiting] i { background: #c99a12; }
#state[data-is=ended] i, #state[data-is=lost] i { background: var(--faint); }
#pause { float: right; font: inherit; padding: 0.1em 0.8em; margin-left: 0.8rem; }
#facts dl { display: flex; flex-wrap: wrap; gap: 0.5rem 1.6rem; margin: 0.6rem 0; }
#facts dt { color: var(--faint); font-size: 12px; }
#facts dd { margin: 0; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
#facts progress { width: 100%; height: 0.5rem; }
#timeline .buttons small { display: none; }
"""

SCRIPT = """
const find = id => document.getElementById(id);
const WORDS = { running: "running", waiting: "no run under way", ended: "run ended", lost: "run ended: no answer" };
let paused = false;

function tell(state) {
  find("state").dataset.is = state;
  find("state").lastChild.textContent = WORDS[state] || state;
  if (state === "ended" || state === "lost") find("pause").hidden = true;
}

function put(place, html) {
  const scrolled = Array.from(place.querySelectorAll(".wide, figure.gantt"), e => e.scrollLeft);
  place.innerHTML = html;
  place.querySelectorAll(".wide, figure.gantt").forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
  place.querySelectorAll("figure.gantt").forEach(gantt);
}

function show(data) {
  document.title = data.title;
  find("title").textContent = data.title;
  find("facts").innerHTML = data.facts;
  for (const [name, html] of Object.entries(data.sections)) {
    const section = find(name);
    section.hidden = !html;
    if (section.made !== html) {
      section.made = html;
      put(section.lastElementChild, html);
    }
  }
  for (const [number, [text, colour, ink]] of Object.entries(data.marks)) {
    const paint = (id, how, value) => document.querySelectorAll("#" + id + number + " path, #" + id + number + " text")
      .forEach(e => { e.style[how] = value; });
    paint("outline", "stroke", colour);
    paint("heat", "fill", colour);
    paint("share", "fill", ink);
    const share = document.querySelector("#share" + number + " text");
    if (share) share.textContent = text;
  }
  document.body.dataset.version = data.version;
}

find("pause").addEventListener("click", () => {
  paused = !paused;
  find("pause").textContent = paused ? "go on" : "pause";
  if (!paused) show(latest);
});

async function follow(after) {
  let failures = 0;
  for (;;) {
    try {
      const answer = await fetch("/state?after=" + after, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status);
      latest = await answer.json();
      failures = 0;
      after = latest.version;
      if (!paused || latest.state === "ended") show(latest);
      tell(latest.state);
      if (latest.state === "ended") return;
    } catch (error) {
      failures += 1;
      if (failures >= 3) return tell("lost");
      await new Promise(done => setTimeout(done, 300));
    }
  }
}
show(latest);
tell(latest.state);
if (latest.state !== "ended") follow(latest.version);
document.body.dataset.ready = "yes";
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>a run</title>
<style>{style}</style>
</head>
<body>
<header>
<button id="pause" title="keep this picture; the run goes on">pause</button>
<span id="state"><i></i><span></span></span>
<h1 id="title">a run</h1>
<div id="facts"></div>
</header>
<noscript><p>This page needs JavaScript. 'ampnet report' makes one that does not.</p></noscript>
{body}
<script nonce="{nonce}">"use strict";
let latest = {first};
{script}
</script>
</body>
</html>
"""
