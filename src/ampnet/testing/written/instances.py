"""Instances of random models: a row, two sequences, edges, two trees, integers and labels.

    x tokens words bonds tree bush kind steps word rare pick target label        the arguments of `WrittenModel`

Elements have a row ``x``, an integer ``kind``, rows of the small and the large embedding, ``word`` and ``rare``, and a
``label``; edges have the first two only. Words have ``letters`` besides, a sequence for each. Inner nodes of ``tree``
have two children, those of ``bush`` one to three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ampnet.data.generated import random_tree
from ampnet.lang import Edges, Seq, Tree
from ampnet.state import Ints

WIDTH = 3
OPTIONS = 3
"""Every integer of an instance is less than this, so that it may choose among as many options."""
FEW, MANY = 4, 200
"""Rows of the two embeddings."""


@dataclass(frozen=True)
class Sizes:
    """How large an instance is, and its integers."""

    tokens: int = 2
    words: int = 2
    edges: int = 2
    leaves: int = 2
    bush: int = 4
    """Nodes of the tree with any number of children."""
    kind: int = 1
    steps: int = 1


LEAST = Sizes(1, 1, 0, 1, 1, 0, 0)
MOST = Sizes(3, 3, 4, 4, 5, OPTIONS - 1, 2)
"""Small, for every program is run eagerly, element by element."""


def example(seed: int = 0) -> tuple[Any, ...]:
    """An instance to compile by: with inner nodes and edges."""
    return instance(np.random.default_rng(seed), Sizes())


def instance(rng: np.random.Generator, sizes: Sizes) -> tuple[Any, ...]:
    """Random numbers for an instance of these sizes."""

    def rows(count: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal((count, WIDTH)))

    def numbers(count: int, below: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, below, count))

    def columns(count: int) -> dict[str, Any]:
        ints: Ints = rng.integers(0, OPTIONS, count)
        looked_up = {"word": numbers(count, FEW), "rare": numbers(count, MANY)}
        return {"x": rows(count), "kind": ints, "label": numbers(count, WIDTH), **looked_up}

    n, edges = sizes.tokens, sizes.edges
    tokens = Seq(**columns(n))
    spelt = [Seq(**columns(count)) for count in rng.integers(1, MOST.tokens + 1, sizes.words).tolist()]
    words = Seq(**columns(sizes.words), letters=spelt)
    ends = rng.integers(0, n, (2, edges))
    bonds = Edges(tokens, ends[0], ends[1], x=rows(edges), kind=rng.integers(0, OPTIONS, edges))
    binary = random_tree(sizes.leaves, rng)
    tree = Tree(binary, leaves={"token": numbers(sizes.leaves, FEW)}, **columns(len(binary)))
    bush = Tree(_any_tree(sizes.bush, rng), **columns(sizes.bush))
    x, target = rows(2)
    word, rare, pick, label = (numbers(1, below)[0] for below in (FEW, MANY, n, WIDTH))
    return x, tokens, words, bonds, tree, bush, sizes.kind, sizes.steps, word, rare, pick, target, label


def _any_tree(nodes: int, rng: np.random.Generator) -> Ints:
    """The parents of a tree whose inner nodes have one to three children. Parents come before children."""
    parents, free = [-1], [0, 0, 0]
    for new in range(1, nodes):
        parents.append(free.pop(int(rng.integers(len(free)))))
        free += [new, new, new]
    return np.array(parents)
