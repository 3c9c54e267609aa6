"""Generated data with the shapes of real data sets, for tests, examples and benchmarks. A seed determines everything.

Each function yields the arguments of a model in `ampnet.models`, one tuple per instance. Labels follow from the input
by a rule, so they can be learnt.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from ampnet.data import babi15
from ampnet.lang.edges import Edges
from ampnet.lang.spaces import Seq
from ampnet.lang.tree import Tree
from ampnet.state import Ints


def images(count: int, seed: int, width: int = 784, classes: int = 10) -> Iterator[tuple[Tensor, Tensor]]:
    """For `Mlp`: noisy copies of a prototype for each class."""
    prototypes = np.random.default_rng(0).random((classes, width)) < 0.2
    rng = np.random.default_rng((seed, 1))
    for _ in range(count):
        label = int(rng.integers(classes))
        pixels = (rng.random(width) < 0.1) ^ prototypes[label]
        yield torch.from_numpy(pixels.astype(np.float32)), torch.tensor(label)


def trees(count: int, seed: int, vocabulary: int = 100, most_leaves: int = 20) -> Iterator[tuple[Tree]]:
    """For `TreeLstm`: random binary trees. A word is positive or negative; a node's label is the sum over its words."""
    rng = np.random.default_rng((seed, 2))
    for _ in range(count):
        parents = random_tree(int(rng.integers(1, most_leaves + 1)), rng)
        n = len(parents)
        leaves = np.flatnonzero(np.bincount(parents[parents >= 0], minlength=n) == 0)
        words = rng.integers(0, vocabulary, len(leaves))
        mood = np.zeros(n)
        mood[leaves] = words % 3 - 1
        for i in range(n - 1):  # children come before parents
            mood[parents[i]] += mood[i]
        label = np.clip(np.rint(mood), -2, 2).astype(np.int64) + 2
        yield (Tree(parents, leaves={"word": torch.from_numpy(words)}, label=torch.from_numpy(label)),)


def random_tree(leaves: int, rng: np.random.Generator) -> Ints:
    """Returns the parents of a random binary tree: neighbours are joined until one is left. Children precede
    parents."""
    parents = np.full(2 * leaves - 1, -1)
    roots = list(range(leaves))
    for new in range(leaves, 2 * leaves - 1):
        at = int(rng.integers(len(roots) - 1))
        parents[roots[at]] = parents[roots[at + 1]] = new
        roots[at : at + 2] = [new]
    return parents


def molecules(
    count: int, seed: int, features: int = 10, kinds: int = 4, most_atoms: int = 20
) -> Iterator[tuple[Seq, Edges, Tensor]]:
    """For `Qm9`: random trees of atoms without rings. Every bond of kind 0 adds the difference of its two atoms."""
    rng = np.random.default_rng((seed, 3))
    for _ in range(count):
        n = int(rng.integers(3, most_atoms + 1))
        atom = rng.integers(0, features, n)
        a = np.arange(1, n)
        b = np.array([int(rng.integers(max(0, i - 3), i)) for i in a.tolist()])
        kind = rng.integers(0, kinds, len(a))
        x = np.zeros((n, features), dtype=np.float32)
        x[np.arange(n), atom] = 1
        atoms = Seq(x=torch.from_numpy(x))
        bonds = Edges(atoms, np.concatenate((a, b)), np.concatenate((b, a)), kind=np.concatenate((kind, kind)))
        value = float((np.abs(atom[a] - atom[b]) * (kind == 0)).sum()) / features
        yield atoms, bonds, torch.tensor([value])


def deductions(
    count: int, seed: int, nodes: int = 54, species: int = 4, hidden: int = 5
) -> Iterator[tuple[Seq, Edges, Tensor]]:
    """For `Babi15`: individuals are of a species, every species is afraid of another. What is one of them afraid of?

    Facts and their reverses are edges of four kinds; the individual in question is marked.
    """
    rng = np.random.default_rng((seed, 4))
    for _ in range(count):
        yield babi15.arguments(babi15.drawn(rng, nodes, species), hidden)


def permutations(
    count: int, seed: int, width: int = 256, layers: int = 8, applied: int = 8, classes: int = 10
) -> Iterator[tuple[Tensor, Seq, Tensor]]:
    """For `PermutedLayers`: a teacher of the same architecture determines the class."""
    fixed = np.random.default_rng(0)
    weights = fixed.standard_normal((layers, width, width)) * np.sqrt(2 / width)
    last = fixed.standard_normal((classes, width))
    rng = np.random.default_rng((seed, 5))
    for _ in range(count):
        x = rng.standard_normal(width)
        order = rng.permutation(layers)[:applied]
        h = x
        for number in order:
            h = np.maximum(weights[number] @ h, 0)
        yield torch.from_numpy(x.astype(np.float32)), Seq(order), torch.tensor(int(np.argmax(last @ h)))


def rotations(count: int, seed: int, most_steps: int = 6) -> Iterator[tuple[Tensor, int, Tensor]]:
    """For `AdaptiveDepth`: a point in the plane, rotated by 20 degrees a number of times (from 0)."""
    rng = np.random.default_rng((seed, 6))
    for _ in range(count):
        angle, steps = rng.random() * 2 * np.pi, int(rng.integers(0, most_steps + 1))
        end = angle + steps * np.pi / 9
        point = torch.tensor([np.cos(angle), np.sin(angle)], dtype=torch.float32)
        yield point, steps, torch.tensor([np.cos(end), np.sin(end)], dtype=torch.float32)
