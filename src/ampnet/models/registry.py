"""Registry: the models that ship with the package, by the name of their workload, each as a graph of its default size.

    graph = registry.build("qm9")             what `ampnet draw` and `ampnet explain` show

A model is compiled on an example; what the example holds does not matter, only its kind and the shape of its rows.
Sizes that depend on the data (features of an atom, words of a vocabulary) are those of the generated data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ampnet.data import generated
from ampnet.graph import Graph
from ampnet.lang import Compiled, Model, compile
from ampnet.models import by_hand, list_reduction
from ampnet.models.adaptive_depth import AdaptiveDepth
from ampnet.models.ggsnn import Babi15, Qm9
from ampnet.models.mlp import Mlp
from ampnet.models.permuted_layers import PermutedLayers
from ampnet.models.tree_lstm import TreeLstm


def _compiled(model: Callable[[], Model], data: Callable[..., Iterator[tuple[Any, ...]]]) -> Callable[[], Compiled]:
    def build() -> Compiled:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return compile(model(), *next(data(1, seed=0)))

    return build


COMPILED: dict[str, Callable[[], Compiled]] = {
    "mnist": _compiled(Mlp, generated.images),
    "list-reduction": list_reduction.build,
    "sentiment": _compiled(lambda: TreeLstm(vocabulary=100), generated.trees),
    "babi15": _compiled(Babi15, generated.deductions),
    "qm9": _compiled(lambda: Qm9(features=10), generated.molecules),
    "permuted-layers": _compiled(PermutedLayers, generated.permutations),
    "adaptive-depth": _compiled(lambda: AdaptiveDepth(features=2, outputs=2), generated.rotations),
}
"""Models written for one instance, by workload."""

GRAPHS: dict[str, Callable[[], Graph]] = {**COMPILED, "by-hand": by_hand.build}
"""These, and the RNN that is wired by hand."""


def build(name: str, cell: list_reduction.Cell | None = None) -> Graph:
    """The graph of a model. ``cell`` is for list reduction, which has a choice of them."""
    return GRAPHS[name]() if cell is None else list_reduction.build(cell=cell)
