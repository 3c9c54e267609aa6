"""The graph of a run, as plain data in its settings and as a picture in its report.

A log has only the names of nodes. So ``ampnet train`` puts a sketch of the graph into the run's settings, which are
written to the log and the trace. The picture is drawn later, when the time of each node is known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from ampnet.draw import Edge, Item, Sketch, picture, sketch
from ampnet.draw.layout import Link, layers
from ampnet.errors import DataError
from ampnet.events.typed import read
from ampnet.graph import Graph

MOST = 2_000
"""The maximal number of items of a drawing from a file."""


def drawing_of(graph: Graph) -> dict[str, Any]:
    """Returns a sketch as plain data: ``runtime.settings["graph"] = drawing_of(graph)`` before a run."""
    return asdict(sketch(graph))


def sketch_from(data: Mapping[str, Any]) -> Sketch:
    """Returns the sketch from the decoded JSON of `drawing_of`. Raises `DataError` for invalid data."""
    try:
        found = read(Sketch, data)
        if len(found.items) > MOST or len(found.edges) > 10 * MOST:
            raise ValueError(f"more than {MOST:,} items, or ten times as many edges")
        count = len(found.items)
        for edge in found.edges:
            if max(edge.source, edge.target) >= count:
                raise ValueError("an edge leads nowhere")
            if edge.out >= max(1, len(found.items[edge.source].outputs)):
                raise ValueError("an edge leaves a port that its item does not have")
            if edge.into >= max(1, len(found.items[edge.target].inputs)):
                raise ValueError("an edge arrives at a port that its item does not have")
        layers(count, [Link(edge.source, edge.target, back=edge.back) for edge in found.edges])
        return found
    except ValueError as error:
        known = ", ".join(f.name for f in fields(Sketch))
        raise DataError(f"the run's settings hold a graph that cannot be drawn ({error}); it has {known}") from error


def without_replicas(drawing: Sketch) -> Sketch:
    """Returns the drawing with one item for all replicas of a node, and one edge for all edges to or from them."""
    first: dict[str, int] = {}
    places: list[int] = []
    kept: list[Item] = []
    counts = Counter(item.base for item in drawing.items if item.base)
    for item in drawing.items:
        if item.base in first:
            places.append(first[item.base])
            continue
        if item.base:
            first[item.base] = len(kept)
            item = replace(item, name=item.base, base="", note=(*item.note, f"{counts[item.base]} replicas"))
        places.append(len(kept))
        kept.append(item)
    if not first:
        return drawing
    edges: dict[tuple[int, ...], Edge] = {}
    for edge in drawing.edges:
        source, target = places[edge.source], places[edge.target]
        out, into = edge.out, edge.into
        # One port for all replicas, at the node that distributes messages and at the node that merges them.
        if drawing.items[edge.target].base and not drawing.items[edge.source].base:
            out = -1
        elif drawing.items[edge.source].base and not drawing.items[edge.target].base:
            into = -1
        edges.setdefault((source, out, target, into), replace(edge, source=source, target=target))
    return _used_ports(Sketch(drawing.title, kept, list(edges.values())))


def _used_ports(drawing: Sketch) -> Sketch:
    """Returns the drawing without unconnected ports."""
    outs = [sorted({e.out for e in drawing.edges if e.source == i}) for i in range(len(drawing.items))]
    intos = [sorted({e.into for e in drawing.edges if e.target == i}) for i in range(len(drawing.items))]
    items = [
        replace(
            item,
            outputs=tuple(item.outputs[p] for p in outs[i] if p < len(item.outputs)),
            inputs=tuple(item.inputs[p] for p in intos[i] if p < len(item.inputs)),
        )
        for i, item in enumerate(drawing.items)
    ]
    edges = [replace(e, out=outs[e.source].index(e.out), into=intos[e.target].index(e.into)) for e in drawing.edges]
    return Sketch(drawing.title, items, edges)


def svg_of(drawing: Sketch, marks: Mapping[str, float]) -> str:
    """Returns the picture as an SVG element for a page. ``marks``: the share of each hot node, from 0 to 1."""
    hot = [replace(i, share=None if i.kind == "input" else marks.get(i.name)) for i in drawing.items]
    return picture.svg_of(Sketch(drawing.title, hot, drawing.edges))
