"""A sentence with its tree, in brackets, as a person writes it.

    (3 (2 It) (4 (2 's) (4 great)))         as in the treebank: a label from 0 to 4 before what a node holds
    ((It) ((is) (great)))                   without labels
    (It (is great))                         a word is a leaf, with brackets of its own or without

A node has two parts, or is a word. What begins with a digit from 0 to 4 and holds something more begins with its label:
``(3 good)`` is the word "good", not two words. Nodes are numbered children first, as in `ampnet.data.sst`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ampnet.errors import DataError

PIECE = re.compile(r"[()]|[^\s()]+")
LABELS = tuple("01234")


@dataclass(frozen=True, slots=True)
class Written:
    """A tree as it was written."""

    parents: tuple[int, ...]
    """The parent of each node; -1: the root, which is the last."""
    words: tuple[str, ...]
    """The words of the leaves, in order."""
    spans: tuple[tuple[int, int], ...]
    """The word range of each node: first, and one after the last."""
    depths: tuple[int, ...]
    """The depth of each node."""

    def phrase(self, node: int) -> str:
        """The words under a node."""
        return " ".join(self.words[slice(*self.spans[node])])


def parse(text: str) -> Written:
    """Parse a tree. A fault is a `DataError` that names its position, from 1."""
    pieces = [(found[0], _place(text, found.start())) for found in PIECE.finditer(text)]
    if not pieces:
        raise DataError("there is no tree in it; write one like ((It) ((is) (great)))")
    if "(" not in text:
        raise DataError(
            f"column 1: {text.strip()!r} has no brackets: the model needs the tree of a sentence, like (It (is great))"
        )
    return _Reader(pieces, _place(text, len(text.rstrip()))).read()


def parted(text: str) -> list[str]:
    """Split a text into trees. A tree ends where its brackets are closed, possibly several lines later."""
    out, held = [], ""
    for line in text.splitlines(keepends=True):
        held += line
        if held.strip() and held.count("(") <= held.count(")"):
            out.append(held.rstrip())
            held = ""
    return [*out, held] if held.strip() else out


def _place(text: str, at: int) -> str:
    line, before = text.count("\n", 0, at), text.rfind("\n", 0, at)
    return f"line {line + 1}, column {at - before}" if "\n" in text.strip() else f"column {at + 1}"


class _Reader:
    """Goes through the pieces once. A node that is open is a list of what it holds so far: nodes, and its label."""

    def __init__(self, pieces: Sequence[tuple[str, str]], end: str) -> None:
        self.pieces, self.end = pieces, end
        self.children: list[tuple[int, ...]] = []
        self.words: list[str] = []
        self.spans: list[tuple[int, int]] = []

    def read(self) -> Written:
        opened: list[tuple[str, list[int]]] = []  # the place of each bracket, and the nodes in it
        root: int | None = None
        for i, (piece, place) in enumerate(self.pieces):
            if root is not None:
                raise DataError(f"{place}: {piece!r} after the end of the tree; give one tree at a time")
            if piece == "(":
                opened.append((place, []))
                continue
            if piece != ")":
                if not opened:
                    raise DataError(f"{place}: {piece!r} before the first bracket")
                if not self._is_label(i):
                    opened[-1][1].append(self._leaf(piece))
                continue
            if not opened:
                raise DataError(f"{place}: a bracket is closed that was never opened")
            began, held = opened.pop()
            if len(held) not in (1, 2):
                what = "nothing" if not held else f"{len(held)} parts"
                raise DataError(f"{began}: a node holds {what}; it must be one word or two parts")
            node = held[0] if len(held) == 1 else self._branch(held)
            if opened:
                opened[-1][1].append(node)
            else:
                root = node
        if opened:
            raise DataError(f"{self.end}: the tree ends too early: the bracket of {opened[-1][0]} is open")
        return self._written()

    def _is_label(self, i: int) -> bool:
        """A digit right after a bracket, if something else is in the bracket."""
        before, after = self.pieces[i - 1][0], self.pieces[i + 1][0] if i + 1 < len(self.pieces) else ")"
        return self.pieces[i][0] in LABELS and before == "(" and after != ")"

    def _leaf(self, word: str) -> int:
        self.words.append(word)
        self.children.append(())
        self.spans.append((len(self.words) - 1, len(self.words)))
        return len(self.children) - 1

    def _branch(self, held: Sequence[int]) -> int:
        self.children.append(tuple(held))
        self.spans.append((self.spans[held[0]][0], self.spans[held[1]][1]))
        return len(self.children) - 1

    def _written(self) -> Written:
        count = len(self.children)
        parents, depths = [-1] * count, [0] * count
        for node in reversed(range(count)):  # parents come after their children
            for child in self.children[node]:
                parents[child], depths[child] = node, depths[node] + 1
        return Written(tuple(parents), tuple(self.words), tuple(self.spans), tuple(depths))
