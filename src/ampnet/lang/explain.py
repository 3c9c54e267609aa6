"""Explain: for every value of a compiled model, where it lives, its states and keys, and which line made it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampnet.lang.lower import Note


def explain(title: str, notes: Sequence[Note]) -> str:
    """A table, one row for every node and input."""
    head = ("value", "row", "scope", "state", "key", "made at")
    rows = [head]
    for note in notes:
        key = note.scope.key
        carried = [f for f in note.fields if f not in key]
        state = ", ".join(key) + (f" + {', '.join(carried)}" if carried else "")
        shape = "loss" if note.shape is None else "×".join(map(str, note.shape)) or "number"
        text = f"{note.line}  {note.line.text}" if note.line.text else str(note.line)
        rows.append((note.name, shape, str(note.scope), state, ", ".join(key), text))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
    rule = "  ".join("-" * w for w in [*widths, 40])
    return "\n".join([f"{title}: {len(notes)} values", lines[0], rule, *lines[1:]])
