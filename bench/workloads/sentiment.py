"""Sentiment: the binary Tree-LSTM, 300-d words and hidden 300, a loss of five classes at every node; 25 trees, Adagrad.

Word vectors are random and are trained, with a tenth of the learning rate. There is no dropout.

Generated trees have as many leaves as the treebank's: a gamma distribution with mean 19, from 2 to 52. Half of the time
a phrase splits off its first word, else anywhere. Frequent words are more frequent (a draw to the third power), one of
seven has a mood, and the label of a phrase is what the moods of its words add up to.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ampnet import Tree
from ampnet.data import load
from ampnet.data.sst import CLASSES
from ampnet.models import TreeLstm
from bench.batch import Record
from bench.peers import tree_lstm as peers
from bench.peers.deep_graph import TreeDgl
from bench.peers.foreign import Foreign
from bench.workload import Bound, Data, Ours, Target, Wanted, Workload

WORDS = HIDDEN = 300
VOCABULARY = 17_000
TRAIN, VALID = 8_544, 1_101
SHAPE, SCALE, FEWEST, MOST = 4.2, 4.55, 2, 52
MOODY, MOOD = 0.15, 1.5
FIRST = 0.5
"""How often a phrase splits off its first word."""


def generated(count: int, seed: int) -> list[Record]:
    """Trees. All draws have the same moods."""
    fixed = np.random.default_rng(0)
    moods = np.where(fixed.random(VOCABULARY) < MOODY, MOOD * fixed.standard_normal(VOCABULARY), 0)
    rng = np.random.default_rng((seed, 2))
    return [(_tree(rng, moods),) for _ in range(count)]


def _tree(rng: np.random.Generator, moods: np.ndarray) -> Tree:
    leaves = int(np.clip(round(rng.gamma(SHAPE, SCALE)), FEWEST, MOST))
    words = (VOCABULARY * rng.random(leaves) ** 3).astype(np.int64)
    parents, sums = np.full(2 * leaves - 1, -1), np.empty(2 * leaves - 1)
    total = np.concatenate(([0.0], np.cumsum(moods[words])))

    def phrase(begin: int, end: int, free: int) -> int:
        """Number the nodes of a phrase from ``free`` on, children before parents; gives the number of its root."""
        if end - begin == 1:
            node = free
        else:
            middle = begin + 1 if rng.random() < FIRST else int(rng.integers(begin + 1, end))
            left = phrase(begin, middle, free)
            right = phrase(middle, end, left + 1)
            node = right + 1
            parents[left] = parents[right] = node
        sums[node] = total[end] - total[begin]
        return node

    phrase(0, leaves, 0)
    labels = np.clip(np.rint(2 + sums), 0, CLASSES - 1).astype(np.int64)
    return Tree(parents, leaves={"word": torch.from_numpy(words)}, label=torch.from_numpy(labels))


def data(wanted: Wanted) -> Data:
    if wanted.real("sst"):
        found = load("sst", wanted.folder)
        splits = found.train.shuffled(wanted.seed)[: wanted.records(TRAIN)], found.valid[: wanted.records(VALID)]
        train, valid = (list(map(found.arguments, split)) for split in splits)
        kind, vocabulary = "real", len(found.vocabulary)  # type: ignore[attr-defined]
    else:
        train, valid = (generated(wanted.records(n), 2 * wanted.seed + i) for i, n in enumerate((TRAIN, VALID)))
        kind, vocabulary = "generated", VOCABULARY
    leaves = float(np.mean([(len(tree) + 1) / 2 for (tree,) in train]))
    return Data(kind, wanted.batches(train), wanted.batches(valid), {"vocabulary": vocabulary, "leaves": leaves})


def flops(data: Data) -> float:
    n = data.facts["leaves"]
    cells = n * WORDS * 3 * HIDDEN + (n - 1) * 2 * HIDDEN * 5 * HIDDEN
    return 3 * 2 * (cells + (2 * n - 1) * HIDDEN * CLASSES)


SENTIMENT = Workload(
    name="sentiment",
    about=f"binary Tree-LSTM, words {WORDS}, hidden {HIDDEN}, Adagrad, updates of 25 trees",
    unit="trees",
    batch=25,
    data=data,
    model=lambda data: TreeLstm(int(data.facts["vocabulary"]), WORDS, HIDDEN, CLASSES),
    flops=flops,
    optimizer=partial(torch.optim.Adagrad, lr=0.05, fused=True),
    optimizers={"embedding": partial(torch.optim.Adagrad, lr=0.02)},
    ours={"ours": Ours(in_flight=25, every=25)},
    peers={"torch level": peers.Level, "torch recursive": peers.Recursive, "dgl": TreeDgl},
    foreign={"jax": Foreign("bench.peers.jax_tree_lstm:Levels")},
    base="torch level 1 thread",
    each=200,
    target=Target("accuracy", 0.9, batches=40),
    rival="torch level",
    bounds=(Bound("ours 16 replicas", "torch *", 7.0),),
    external="sst_treelstm.py",
)
