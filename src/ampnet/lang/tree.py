"""Tree: the space of a rooted tree, and the arrays that a model compiled for trees reads.

    parents      [2, 2, -1]      node 2 is the root, nodes 0 and 1 are its children
    child        [2, 0, 1]       the root, then the children of node 0, of node 1, ...
    first_child  [1, 1, 1]       where the children of a node begin in it
    rank         [0, 1, 0]       the position of a node among its siblings

Further columns have an entry for every node, or for the leaves or branches alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ampnet.errors import DataError
from ampnet.lang.spaces import Given, Space, integers
from ampnet.state import Ints


class Tree(Space):
    """A rooted tree. ``parents[i]`` is the parent of node i, -1 for the root; children are in the order of their
    numbers.

    Further columns have an entry for every node; those in ``leaves`` or ``branches`` only for such nodes, in the order
    of their numbers.
    """

    _kind = "tree"

    def __init__(
        self,
        parents: ArrayLike,
        *,
        leaves: Mapping[str, Given] | None = None,
        branches: Mapping[str, Given] | None = None,
        **columns: Given,
    ) -> None:
        self._parents = integers("parents", parents, "Tree")
        n = len(self._parents)
        roots = np.flatnonzero(self._parents == -1)
        if n == 0 or len(roots) != 1:
            raise DataError(f"a Tree has one root (parent -1); this one has {len(roots)} among {n} nodes")
        wrong = np.flatnonzero((self._parents < -1) | (self._parents >= n))
        if len(wrong):
            raise DataError(f"a Tree of {n} nodes names {int(self._parents[wrong[0]])} as a parent, at {int(wrong[0])}")
        self._root = int(roots[0])
        self._refuse_cycles()
        self._degree = np.bincount(np.delete(self._parents, self._root), minlength=n)
        self._children = [np.flatnonzero(self._parents == i) for i in range(n)] if n < 64 else self._list_children()
        only = {name: np.flatnonzero(self._degree == 0) for name in leaves or {}}
        only |= {name: np.flatnonzero(self._degree > 0) for name in branches or {}}
        super().__init__(n, {**(leaves or {}), **(branches or {}), **columns}, only)
        self._given = {**dict.fromkeys(leaves or {}, "leaves"), **dict.fromkeys(branches or {}, "branches")}

    def _refuse_cycles(self) -> None:
        n = len(self._parents)
        above = np.where(self._parents < 0, np.arange(n), self._parents)
        reach, hops = above, 1
        while hops < n:
            reach, hops = reach[reach], 2 * hops
        lost = np.flatnonzero(reach != self._root)
        if len(lost):
            raise DataError(f"node {int(lost[0])} of a Tree goes round in a circle instead of leading to the root")

    def _list_children(self) -> list[Ints]:
        order = np.argsort(self._parents, kind="stable")[1:]
        return np.split(order, np.cumsum(self._degree)[:-1])

    def _derived(self, what: str) -> Ints:
        """Returns an array derived from the parents, for `ampnet.lang.symbols`."""
        if what == "parent":
            return self._parents
        if what == "leaf":
            leaf: Ints = (self._degree == 0).astype(np.int64)
            return leaf
        if what == "siblings":
            return np.where(self._parents < 0, 0, self._degree[self._parents])
        if what == "degree":
            return self._degree
        return np.array([self._root]) if what == "root" else self._below[what]

    @cached_property
    def _below(self) -> dict[str, Ints]:
        """Compute ``child``: the root, then the children of node 0, of node 1, ...; ``first_child``: the index of each
        node's first child in it; ``rank``: the position of a node among its siblings."""
        child, first = np.argsort(self._parents, kind="stable"), 1 + np.cumsum(self._degree) - self._degree
        rank = np.empty(len(child), dtype=np.int64)
        rank[child] = np.arange(len(child))
        rank = np.where(self._parents < 0, 0, rank - first[self._parents])
        return {"child": child, "first_child": first, "rank": rank}

    def _parts(self) -> dict[str, Any]:
        return {**super()._parts(), " parents": self._parents}

    def _check_arity(self, wanted: int) -> None:
        wrong = np.flatnonzero((self._degree > 0) & (self._degree != wanted))
        if len(wrong):
            raise DataError(
                f"node {int(wrong[0])} of a Tree has {int(self._degree[wrong[0]])} children; the model's branch "
                f"function takes {wanted}. With children='family' it gets any number of them, as a family"
            )

    def _arity(self) -> int | None:
        """Returns the number of children of every inner node; None if it differs; 0 without inner nodes."""
        inner = self._degree[self._degree > 0]
        if not len(inner):
            return 0
        return int(inner[0]) if (inner == inner[0]).all() else None
