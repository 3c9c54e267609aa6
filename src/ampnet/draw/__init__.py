"""Draw: a graph as Mermaid text or as a picture.

    print(graph.mermaid())                         for a README: GitHub shows it as a diagram
    graph.draw("model.svg")                        or .png, .pdf; .mmd holds the Mermaid text
    graph.draw("hot.svg", marks={"linear1": 0.6})  hot nodes by their share of something

Shape and colour tell the kind of a node, as in the paper's figures:

    input           rounded ends    what the controller pumps; the state fields of its messages below its name
    parameterised   rectangle       has weights and updates itself
    transform       rounded         payload in, payload out
    control         hexagon         reads the state only: Cond, Phi, Isu
    aggregate       trapezoid       one message from many or many from one: Concat, Bcast, Group, Flatmap, ...
    loss            double sides    where the forward run ends and the backward run starts

Edges that close a loop have a colour of their own and are dashed. Nodes named ``base#1``, ``base#2``, ... are replicas
and share an outline. A port is named where its node has several on that side. Below a node's name and make stands its
note (`Graph.notes`): of a compiled model, the scope it works in and the line that it comes from. A graph with faults is
drawn as far as it is wired, for a picture is most needed when something is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ampnet.checkpoint.output import replacing
from ampnet.graph import CONTROLLER, Graph
from ampnet.loops import back_edges

ENDINGS = (".svg", ".png", ".pdf", ".mmd")

LOOP = "#d9480f"
"""Colour of edges that close a loop."""
EDGE = "#4a5560"
"""Colour of all others."""
HEAT = ((0.0, (254, 217, 118)), (0.5, (240, 100, 40)), (1.0, (165, 0, 38)))


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind of node looks."""

    fill: str
    line: str
    opening: str
    closing: str
    """What Mermaid puts around the label to give it its shape."""


KINDS = {
    "input": Kind("#f1f3f5", "#5c6770", '(["', '"])'),
    "parameterised": Kind("#d9e8f7", "#1f5f9e", '["', '"]'),
    "transform": Kind("#e6f2dc", "#55803a", '("', '")'),
    "control": Kind("#fdf0c8", "#a87900", '{{"', '"}}'),
    "aggregate": Kind("#ebe2f5", "#6f4c9b", '[/"', '"\\]'),
    "loss": Kind("#f9dce2", "#a8324a", '[["', '"]]'),
}
OTHER = Kind("#ffffff", "#5c6770", '["', '"]')
"""For kinds that a user has thought up."""


@dataclass(frozen=True, slots=True)
class Item:
    """An input or a node, as drawn."""

    name: str
    detail: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    base: str
    """The original node of a replica; "" for all others."""
    share: float | None
    """Its mark."""
    note: tuple[str, ...] = ()
    """Further lines, in small print."""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge between items, by their positions and those of the ports."""

    source: int
    out: int
    target: int
    into: int
    back: bool


@dataclass(frozen=True, slots=True)
class Sketch:
    """The elements of a drawing of a graph, without positions."""

    title: str
    items: list[Item]
    edges: list[Edge]


def mermaid(graph: Graph, *, marks: Mapping[str, float] | None = None) -> str:
    """The graph as a Mermaid flowchart; see the head of this file. Works for graphs with faults too."""
    return _text(sketch(graph, marks))


def draw(graph: Graph, path: str | Path | None = None, *, marks: Mapping[str, float] | None = None) -> str:
    """The graph as a picture, in the format that the ending of ``path`` names. Returns the Mermaid text.

    ``marks`` gives nodes a share from 0 to 1: they show it in per cent, and the outline of higher ones is hotter. The
    file appears whole or not at all, and one that was there is replaced only by a finished one.
    """
    ending = None if path is None else Path(path).suffix.lower()
    if ending is not None and ending not in ENDINGS:
        raise ValueError(f"cannot draw to '{path}': the ending must be one of {', '.join(ENDINGS)}")
    drawing = sketch(graph, marks)
    text = _text(drawing)
    if path is None:
        return text
    with replacing(Path(path), "wb") as file:
        if ending == ".mmd":
            file.write(text.encode())
        else:
            from ampnet.draw.picture import save

            save(drawing, file, str(ending).removeprefix("."))
    return text


def svg(graph: Graph) -> str:
    """The graph as an SVG element that fits the width of a page or notebook cell."""
    from ampnet.draw.picture import svg_of

    return svg_of(sketch(graph))


def sketch(graph: Graph, marks: Mapping[str, float] | None = None) -> Sketch:
    """Inputs, nodes and edges of the graph, with loops and replicas found."""
    marks = marks or {}
    for name, share in marks.items():
        if name not in graph.nodes:
            raise ValueError(f"marks name '{name}', which is no node; there are {', '.join(graph.nodes) or 'none'}")
        if not -1e-6 <= share <= 1 + 1e-6:  # sums of shares are rounded
            raise ValueError(f"the mark of '{name}' must be a share from 0 to 1, got {share}")
    wiring, _ = graph.resolve()
    bases = [_base(name) for name in graph.nodes]
    notes = {name: tuple(text.splitlines()) for name, text in graph.notes.items()}
    items = [
        Item(i.name, ", ".join(i.fields), "input", (), ("out",), "", None, notes.get(i.name, ())) for i in graph.inputs
    ]
    for (name, node), base in zip(graph.nodes.items(), bases, strict=True):
        replica = base if base and bases.count(base) > 1 else ""
        ports = (node.inputs, node.outputs)
        items.append(Item(name, node.describe(), node.kind, *ports, replica, marks.get(name), notes.get(name, ())))
    number = {name: len(graph.inputs) + i for i, name in enumerate(graph.nodes)}
    back = back_edges(graph.nodes, wiring.forward)
    edges = []
    for source, target in wiring.forward.items():
        start = (source.port, 0) if source.node == CONTROLLER else (number[source.node], source.port)
        edges.append(Edge(*start, number[target.node], target.port, source in back))
    return Sketch(graph.name, items, edges)


def _base(name: str) -> str:
    found = re.fullmatch(r"(.+)#\d+", name, re.DOTALL)
    return found[1] if found else ""


def heat(share: float) -> str:
    """A colour from pale to dark red. The root is taken, as the shares of many nodes are all small."""
    share = min(max(share, 0.0), 1.0) ** 0.5
    (a, low), (b, high) = (HEAT[0], HEAT[1]) if share < HEAT[1][0] else (HEAT[1], HEAT[2])
    part = (share - a) / (b - a)
    return "#" + "".join(f"{round(x + part * (y - x)):02x}" for x, y in zip(low, high, strict=True))


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.1f} %"


def printable(text: str) -> str:
    """Line breaks and control characters would break a line of Mermaid, or an SVG."""
    return "".join(c if c.isprintable() else " " for c in text)


def _text(drawing: Sketch) -> str:
    lines = ["---", f"title: {json.dumps(printable(drawing.title), ensure_ascii=False)}", "---", "flowchart TD"]
    bases = list(dict.fromkeys(item.base for item in drawing.items if item.base))
    for i, item in enumerate(drawing.items):
        if not item.base:
            lines.append(f"    {_shape(i, item)}")
    for r, base in enumerate(bases):
        replicas = [(i, item) for i, item in enumerate(drawing.items) if item.base == base]
        lines.append(f'    subgraph r{r}["{_escaped(base)} × {len(replicas)}"]')
        lines += [f"        {_shape(i, item)}" for i, item in replicas]
        lines.append("    end")
    loops = []
    for k, edge in enumerate(drawing.edges):
        source, target = drawing.items[edge.source], drawing.items[edge.target]
        out = _escaped(source.outputs[edge.out]) if len(source.outputs) > 1 else ""
        into = _escaped(target.inputs[edge.into]) if len(target.inputs) > 1 else ""
        ports = f"{out} → {into}".strip()
        label = f'|"{ports}"|' if out or into else ""
        lines.append(f"    n{edge.source} {'-.->' if edge.back else '-->'}{label} n{edge.target}")
        loops += [str(k)] * edge.back
    kinds = {kind: [i for i, item in enumerate(drawing.items) if item.kind == kind] for kind in KINDS}
    kinds["other"] = [i for i, item in enumerate(drawing.items) if item.kind not in KINDS]
    for name, members in kinds.items():
        if members:
            kind = KINDS.get(name, OTHER)
            lines.append(f"    classDef {name} fill:{kind.fill},stroke:{kind.line},color:#1b1f23")
            lines.append(f"    class {_ids(members)} {name}")
    if bases:
        lines.append(f"    classDef replicas fill:none,stroke:{KINDS['parameterised'].line},stroke-dasharray:4 3")
        lines.append(f"    class {','.join(f'r{r}' for r in range(len(bases)))} replicas")
    for i, item in enumerate(drawing.items):
        if item.share is not None:
            lines.append(f"    style n{i} stroke:{heat(item.share)},stroke-width:4px")
    if loops:
        lines.append(f"    linkStyle {','.join(loops)} stroke:{LOOP},stroke-width:2.5px")
    return "\n".join(lines) + "\n"


def _ids(members: Iterable[int]) -> str:
    return ",".join(f"n{i}" for i in members)


def _shape(i: int, item: Item) -> str:
    kind = KINDS.get(item.kind, OTHER)
    share = "" if item.share is None else percent(item.share)
    label = "<br/>".join(_escaped(part) for part in (item.name, item.detail, share, *item.note) if part)
    return f"n{i}{kind.opening}{label}{kind.closing}"


def _escaped(text: str) -> str:
    """Only words stay as they are: Mermaid reads quotes, tags, Markdown, formulas, colons and #entities in labels."""
    text = printable(text)
    bullet = 1 if text[:1] in ("-", "+") else 0  # at the start it would make a list
    return "".join(c if c.isalnum() or (c in " _-+,×→" and i >= bullet) else f"#{ord(c)};" for i, c in enumerate(text))
