"""Explain: a table of every value of a compiled model, with its scope, states, keys, and the line that made it.

    value      does              row     scope              key               made at
    tokens     input             number  instance × tokens  instance, tokens  rnn.py:20  fold(self.step, tokens, ...
    embedding  Embedding 14×128  128     instance × tokens  instance, tokens  rnn.py:14  x = self.embedding(token)
    next       Isu: tokens + 1   128     instance × tokens  instance, tokens  rnn.py:20  fold(self.step, tokens, ...

A message's state has the fields of its key, and scalars that control flow reads, equal for all messages of an instance;
the first line names them. Inputs come first, then nodes in topological order. Operations that passes fused into one
node are listed in the column "does" (``Linear 256→128 + relu``, ``sigmoid·mul``); the line is that of the last
operation of a chain, or of the module's call. A node that was split afterwards is still one value, with one line:
``Linear 784→784 in 4 tiles``, ``Linear 256→128 × 4 replicas``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampnet.graph import Graph
    from ampnet.lang.lower import Note

HEAD = ("value", "does", "row", "scope", "key", "made at")


def explain(graph: Graph, notes: Sequence[Note], width: int | None = 160) -> str:
    """Returns a table of all inputs and nodes. The source text is truncated to lines of this width; None: never."""
    notes = _in_order(graph, notes)
    scalars = [f for f in notes[0].fields if f not in notes[0].scope.fields(())]
    rows = [HEAD, *(_row(graph, note, scalars) for note in notes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD) - 1)]
    room = None if width is None else width - sum(widths) - 2 * len(widths)
    lasts = [HEAD[-1], *(_source(note, room) for note in notes)]
    rule = "  ".join("-" * w for w in [*widths, max(map(len, lasts))])
    lines = [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), last]).rstrip()
        for row, last in zip(rows, lasts, strict=True)
    ]
    title = f"{graph.name}: {len(graph.inputs)} inputs, {len(graph.nodes)} nodes"
    if scalars:
        title += f"; in every state, besides the key: {', '.join(scalars)}"
    return "\n".join([title, lines[0], rule, *lines[1:]])


def noted(notes: Sequence[Note]) -> dict[str, str]:
    """Returns, by node or input, a text for drawings: its remark, its scope, and its lines."""
    lines: dict[str, dict[str, None]] = {}
    for note in notes:
        lines.setdefault(note.name, {})[str(note.line)] = None
    out: dict[str, str] = {}
    for note in sorted(notes, key=lambda note: -len(note.scope.axes)):  # of a loop: what is inside of it
        remark = f"{note.remark}\n" if note.remark else ""
        out.setdefault(note.name, f"{remark}{note.scope}\n{', '.join(lines[note.name])}")
    return out


def _in_order(graph: Graph, notes: Sequence[Note]) -> list[Note]:
    """Sort notes: inputs, then nodes in topological order. A module called in several places has a note for each."""
    inputs = {given.name for given in graph.inputs}
    place = {name: i for i, name in enumerate(graph.order())}
    first = [note for note in notes if note.pumped and note.name in inputs]
    made = [note for note in notes if not note.pumped and _stand_in(graph, note.name) in place]
    return first + sorted(made, key=lambda note: place[_stand_in(graph, note.name)])


def _stand_in(graph: Graph, name: str) -> str:
    """Returns the name of the node; if it was split, that of its first tile or replica."""
    if name in graph.tiled:
        return _stand_in(graph, graph.tiled[name].names[0])
    return name if name in graph.nodes else f"{name}#1"


def _does(graph: Graph, name: str) -> str:
    """Describes the operation of a node, also of one split into tiles or replicas."""
    if name in graph.tiled:
        return graph.tiled[name].describe()
    if name in graph.nodes:
        return graph.nodes[name].describe()
    replicas = sum(other.startswith(f"{name}#") for other in graph.nodes)
    return f"{graph.nodes[f'{name}#1'].describe()} × {replicas} replicas"


def _row(graph: Graph, note: Note, scalars: Sequence[str]) -> tuple[str, ...]:
    does = "input" if note.pumped else _does(graph, note.name)
    if note.remark:
        does = f"{does}: {note.remark}"
    shape = "-" if note.shape is None else "×".join(map(str, note.shape)) or "number"
    key = note.scope.key
    counts = [f for f in note.fields if f not in key and f not in scalars]
    return (note.name, does, shape, str(note.scope), " + ".join([", ".join(key), *counts]), "")


def _source(note: Note, room: int | None) -> str:
    """Returns file and line, and the text truncated to ``room``."""
    place, text = str(note.line), note.line.text
    whole = f"{place}  {text}" if text else place
    if room is None or len(whole) <= room:
        return whole
    return f"{whole[: room - 1]}…" if room > len(place) + 8 else place
