"""Report: one HTML page about a run. It needs no network, no other file, and no JavaScript to be read or printed.

    from ampnet.events import read_run
    from ampnet.events.report import report

    report(read_run("run.json"), "report.html")

Everything comes from the run's own file. A trace (``--trace``) has all of it; an event log (``--log``) lacks the curves
inside epochs, and examples per second.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from ampnet._version import __version__
from ampnet.checkpoint.output import replacing
from ampnet.events.gantt_page import READY
from ampnet.events.gantt_page import SCRIPT as GANTT_SCRIPT
from ampnet.events.gantt_page import STYLE as GANTT_STYLE
from ampnet.events.record import RunRecord
from ampnet.events.report import sections, settings
from ampnet.events.report.drawing import drawing_of
from ampnet.events.report.replicas import replicas
from ampnet.events.theme import THEME

__all__ = ["drawing_of", "page", "report"]

SECTIONS = {
    "run": ("How it ran", settings.how),
    "learning": ("Learning and throughput", sections.learning),
    "workers": ("Workers", sections.workers),
    "timeline": ("Who worked when", sections.timeline),
    "nodes": ("Nodes", sections.nodes),
    "staleness": ("Staleness", sections.staleness),
    "replicas": ("Replicas", replicas),
    "graph": ("The graph", sections.graph),
    "settings": ("Settings", settings.settings),
}
"""By id, in the order of the page. An empty section is omitted, like the one on replicas for a run without any."""


def report(run: RunRecord, path: str | Path) -> None:
    """Write the page, atomically."""
    text = page(run)
    with replacing(Path(path)) as file:
        file.write(text)


def page(run: RunRecord) -> str:
    """Returns the page as text."""
    title = str(run.settings.get("workload", "a run"))
    parts, links = [], []
    for name, (heading, make) in SECTIONS.items():
        body = make(run)
        if body:
            parts.append(f'<section id="{name}">\n<h2>{escape(heading)}</h2>\n{body}\n</section>')
            links.append(f'<a href="#{name}">{escape(heading)}</a>')
    return PAGE.format(
        title=escape(title),
        summary=escape(sections.summary(run)) + _warning(run),
        links=" ".join(links),
        body="\n".join(parts),
        style=THEME + STYLE + GANTT_STYLE,
        script=GANTT_SCRIPT + SORTING + READY,
        version=escape(__version__),
    )


def _warning(run: RunRecord) -> str:
    return f"<br><b>Incomplete:</b> {escape(run.incomplete)}." if run.incomplete else ""


STYLE = """
h1 { font-size: 1.5rem; margin: 0 0 0.2rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 0.6rem; padding-bottom: 0.2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.1rem 0 0.2rem; }
nav a { margin-right: 1rem; color: var(--link); text-decoration: none; display: inline-block; padding: 0.15rem 0; }
p, footer { color: var(--faint); margin: 0.3rem 0 0.7rem; }
.summary { color: var(--ink); font-size: 1.05rem; margin: 0.2rem 0 0.6rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(430px, 100%), 1fr)); gap: 0.8rem 1.6rem; }
.few { display: flex; flex-wrap: wrap; gap: 1rem 2.2rem; }
.beside { display: flex; flex-wrap: wrap; gap: 0.8rem 2.2rem; align-items: flex-start; }
.beside > * { min-width: 0; max-width: 100%; }
.beside figure { flex: 1 1 min(380px, 100%); max-width: 560px; }
figure { margin: 0; break-inside: avoid; min-width: 0; }
figcaption .swatch { margin-left: 0.9rem; color: var(--faint); }
.swatch { white-space: nowrap; }
.swatch i { display: inline-block; width: 1.1em; height: 0.8em; margin-right: 0.4em; border-radius: 2px; }
svg.chart { width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: var(--faint); overflow: visible; }
svg.chart .grid { stroke: var(--hair); }
svg.chart .y { text-anchor: end; }
svg.chart .x { text-anchor: middle; }
svg.bars { font: 9px system-ui, sans-serif; fill: var(--faint); }
svg.bars .end { text-anchor: end; }
svg.bars .slot { fill: transparent; }
svg.bars .base { stroke: var(--rule); }
svg.shares .slot { fill: var(--slot); }
svg.graph { width: 100%; height: auto; display: block; margin: 0 auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 0.22rem 0.7rem; text-align: left; vertical-align: middle; border-bottom: 1px solid var(--hair); }
th { font-weight: 600; border-bottom: 1px solid var(--rule); vertical-align: bottom; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; }
td { white-space: nowrap; }
#settings td, #run td { white-space: normal; }
td small { color: var(--faint); white-space: normal; display: inline-block; max-width: 9rem; }
th[data-sorts] { cursor: pointer; }
tr { break-inside: avoid; }
#run thead { display: none; }
#run td:first-child { color: var(--faint); }
details { margin: 0.5rem 0; }
summary { cursor: pointer; }
@media (max-width: 600px) {
  th, td { padding: 0.22rem 0.45rem; }
  #settings td + td { overflow-wrap: anywhere; }
  svg.chart { font-size: 17px; }
}
@media print {
  nav, .buttons { display: none; }
  body { margin: 0; max-width: none; }
  h2 { break-after: avoid; }
}
"""

SORTING = """
for (const table of document.querySelectorAll("table")) {
  const heads = Array.from(table.tHead.rows[0].cells), body = table.tBodies[0];
  heads.forEach((head, column) => {
    let down = true;
    head.dataset.sorts = "yes";
    head.title = "click to sort";
    head.addEventListener("click", () => {
      const value = row => {
        const text = row.cells[column].textContent.trim(), number = parseFloat(text.replace(/,/g, ""));
        return isNaN(number) ? text : number;
      };
      const rows = Array.from(body.rows).map(row => [value(row), row]);
      rows.sort(([a], [b]) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1));
      if (down) rows.reverse();
      down = !down;
      body.append(...rows.map(pair => pair[1]));
    });
  });
}
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="summary">{summary}</p>
<nav>{links}</nav>
</header>
{body}
<footer><p>Made by AMPNet {version} from the run's own file.</p></footer>
<script>{script}
</script>
</body>
</html>
"""
