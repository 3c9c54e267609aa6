"""Edges: the space of directed edges between the elements of a `Seq`, and the arrays that a compiled model reads.

    source [0, 1]    target [1, 2]       two edges: 0 ──> 1 ──> 2

A node without incoming edges gets a null edge, numbered behind the others: every node has a message to wait for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ampnet.errors import DataError
from ampnet.lang.spaces import Given, Seq, Space, integers
from ampnet.state import Ints


class Edges(Space):
    """Directed edges between the elements of a `Seq`: from ``source[e]`` to ``target[e]``. There may be none."""

    _kind = "edges"

    def __init__(self, nodes: Seq, source: ArrayLike, target: ArrayLike, **columns: Given) -> None:
        if not isinstance(nodes, Space):
            raise DataError(
                f"Edges(nodes, source, target): the first argument is the Seq whose elements they connect; got "
                f"{type(nodes).__name__}"
            )
        self._nodes = nodes
        self._source = integers("source", source, "Edges")
        self._target = integers("target", target, "Edges")
        if len(self._source) != len(self._target):
            raise DataError(f"Edges with {len(self._source)} sources and {len(self._target)} targets")
        for name, ends in (("source", self._source), ("target", self._target)):
            if len(ends) and (ends.min() < 0 or ends.max() >= len(nodes)):
                bad = int(np.flatnonzero((ends < 0) | (ends >= len(nodes)))[0])
                raise DataError(f"the {name} of edge {bad} is {int(ends[bad])}; there are {len(nodes)} elements")
        super().__init__(len(self._source), columns)

    def _derived(self, what: str) -> Ints:
        """Returns an array for `ampnet.lang.symbols`. A node without incoming edges gets a null edge, ``E + node``."""
        n, ends = len(self._nodes), self._target
        degree = np.bincount(ends, minlength=n)
        lonely = np.flatnonzero(degree == 0)
        if what == "target":
            return np.concatenate((ends, np.arange(n))) if len(lonely) else ends
        if what == "degree":
            each = degree[ends]
            return np.concatenate((each, np.ones(n, dtype=np.int64))) if len(lonely) else each
        if what == "arrivals":
            return degree
        if what == "arrival":  # the edges that lead to node 0, those that lead to node 1, ...
            return np.argsort(ends, kind="stable")
        first: Ints = np.cumsum(degree) - degree
        if what == "first_arrival":
            return first
        if what == "rank":  # the place of an edge among those of its target
            rank = np.empty(len(ends), dtype=np.int64)
            rank[np.argsort(ends, kind="stable")] = np.arange(len(ends))
            return rank - first[ends]
        null = np.zeros(len(ends) + (n if len(lonely) else 0), dtype=np.int64)
        null[len(ends) :] = 1
        return null

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), " source": self._source, " target": self._target, " nodes": self._nodes}

    def _lists(self, what: str) -> tuple[Ints, Ints]:
        """Returns the edges of all nodes in order, and the index where each node's edges begin."""
        n = len(self._nodes)
        if what == "in":
            owner, edge = self._target, np.arange(len(self._target))
        else:
            lonely = np.flatnonzero(np.bincount(self._target, minlength=n) == 0)
            owner = np.concatenate((self._source, lonely))
            edge = np.concatenate((np.arange(len(self._source)), len(self._source) + lonely))
        start = np.zeros(n + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=n), out=start[1:])
        return edge[np.argsort(owner, kind="stable")], start
