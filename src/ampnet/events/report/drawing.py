"""The graph of a run, as plain data in its settings and as a picture in its report.

A log knows nodes only by name. So ``ampnet train`` puts what there is to draw into the run's settings, and with them it
gets into the log and the trace. It is the sketch, not the picture: which nodes are hot is known afterwards.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ampnet.draw import Edge, Item, Sketch, sketch
from ampnet.errors import DataError
from ampnet.graph import Graph


def drawing_of(graph: Graph) -> dict[str, Any]:
    """What there is to draw, as plain data: ``runtime.settings["graph"] = drawing_of(graph)`` before a run."""
    return asdict(sketch(graph))


def sketch_from(data: Mapping[str, Any]) -> Sketch:
    """What `drawing_of` gave, after a way through JSON. What is none is a `DataError`."""
    try:
        items = [_item(**one) for one in data["items"]]
        edges = [Edge(**edge) for edge in data["edges"]]
        numbers = (n for edge in edges for n in (edge.source, edge.target))
        if not all(0 <= n < len(items) for n in numbers):
            raise ValueError("an edge leads nowhere")
        return Sketch(str(data["title"]), items, edges)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        known = ", ".join(f.name for f in fields(Sketch))
        raise DataError(f"the run's settings hold a graph that cannot be drawn ({error!r}); it has {known}") from error


def _item(**given: Any) -> Item:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return Item(**values)


def svg_of(drawing: Sketch, marks: Mapping[str, float]) -> str:
    """The picture as an SVG element to be put into a page. ``marks``: the share of each hot node, from 0 to 1."""
    from ampnet.draw.picture import save

    hot = [replace(i, share=None if i.kind == "input" else marks.get(i.name)) for i in drawing.items]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graph.svg"
        save(Sketch(drawing.title, hot, drawing.edges), path, "svg")
        text = path.read_text(encoding="utf-8")
    # Without what belongs to a file of its own. Its style sheet would be the whole page's.
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("*{stroke-linejoin", "svg.graph *{stroke-linejoin")
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text).groups()  # type: ignore[union-attr]
    opening = f'<svg class="graph" role="img" aria-label="the graph" viewBox="0 0 {width} {height}" '
    opening += f'style="max-width: {float(width) * 1.25:.0f}px" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return opening + text[text.index(">") + 1 :]
