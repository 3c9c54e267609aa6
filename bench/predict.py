"""Predictions without labels against inference with labels: ``python -m bench.predict``.

    infer, samples        runtime.infer(graph.instances(samples)): labelled samples, made into instances on the way
    predict, samples      runtime.predict(samples without labels)                                asked for: at least 0.9
    infer, instances      the same instances each time, made beforehand
    predict, instances    likewise, made by graph.prediction                                     asked for: at least 0.9

The rows of a model take turns, by processor time, on generated data and one core; the best turn of each counts. A ratio
is predict to infer from the same kind of data.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ampnet import Inline, Model, Tree, compile
from ampnet.data.generated import molecules, trees
from ampnet.data.list_reduction import generate
from ampnet.lang import Compiled, each, fold_tree, loss
from ampnet.models import Qm9, TreeLstm, list_reduction
from bench.machine import describe


class Tutorial(Model):
    """The model of docs/tutorial.md."""

    def __init__(self, words: int = 60, hidden: int = 24, classes: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.leaf = nn.Linear(hidden, 3 * hidden)
        self.branch = nn.Linear(2 * hidden, 5 * hidden)
        self.classify = nn.Linear(hidden, classes)

    def at_leaf(self, node: Any) -> Any:
        i, o, u = self.leaf(self.embedding(node.word)).chunk(3, -1)
        c = torch.sigmoid(i) * torch.tanh(u)
        return torch.sigmoid(o) * torch.tanh(c), c

    def at_branch(self, left: Any, right: Any) -> Any:
        (lh, lc), (rh, rc) = left, right
        i, o, u, f, g = self.branch(torch.cat((lh, rh), -1)).chunk(5, -1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f) * lc + torch.sigmoid(g) * rc
        return torch.sigmoid(o) * torch.tanh(c), c

    def forward(self, tree: Tree) -> Tensor:
        (h, _), (top, _) = fold_tree(tree, self.at_leaf, self.at_branch)
        each(lambda h, label: loss(self.classify(h), label), h, tree.label)
        scores: Tensor = self.classify(top)
        return scores


def _without(tree: Tree) -> Tree:
    return Tree(tree._parents, leaves={"word": tree._columns["word"]})


def _lists(count: int) -> tuple[Compiled, list[Any], list[Any], int]:
    data = generate(count, 0)
    samples = [list_reduction.arguments(data, i) for i in range(count)]
    return list_reduction.build(), samples, [(tokens,) for tokens, _ in samples], 100


def _trees(model: Model, count: int, words: int) -> tuple[Compiled, list[Any], list[Any], int]:
    samples = list(trees(count, 0, vocabulary=words))
    return compile(model, *samples[0]), samples, [(_without(tree),) for (tree,) in samples], 50


def _molecules(count: int) -> tuple[Compiled, list[Any], list[Any], int]:
    samples = list(molecules(count, 0))
    graph = compile(Qm9(10, 100, 4, 4), *samples[0])
    return graph, samples, [(atoms, bonds) for atoms, bonds, _ in samples], 50


MODELS: dict[str, Callable[[], tuple[Compiled, list[Any], list[Any], int]]] = {
    "list-reduction": lambda: _lists(1500),
    "tree-lstm": lambda: _trees(TreeLstm(1000, 300, 300), 200, 1000),
    "qm9": lambda: _molecules(200),
    "tutorial": lambda: _trees(Tutorial(), 600, 60),
}
"""By name: the graph, labelled samples, the same without labels, instances in flight."""


def measure(name: str, turns: int) -> dict[str, Any]:
    """Best speed of each row."""
    torch.manual_seed(0)
    graph, samples, bare, in_flight = MODELS[name]()
    instances: Sequence[Any] = list(graph.instances(samples))
    own = [graph.prediction.take(one) for one in bare]
    with Inline(graph, max_active_keys=in_flight) as runtime:
        rows: dict[str, Callable[[], object]] = {
            "infer, samples": lambda: runtime.infer(graph.instances(samples)),
            "predict, samples": lambda: runtime.predict(bare),
            "infer, instances": lambda: runtime.infer(instances),
            "predict, instances": lambda: runtime.predict(own),
        }
        best = dict.fromkeys(rows, 0.0)
        for _ in range(turns + 1):
            for row, go in rows.items():
                began = time.process_time()
                go()
                best[row] = max(best[row], len(samples) / (time.process_time() - began))
        assert runtime.stats().engine == "waves", runtime.stats().words()
    ratios = {kind: best[f"predict, {kind}"] / best[f"infer, {kind}"] for kind in ("samples", "instances")}
    return {"instances a second": best, "ratio": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.predict", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(MODELS), help=f"of {', '.join(MODELS)}")
    parser.add_argument("--turns", type=int, default=7, help="of each row; the best counts (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in given.names:
        found[name] = measure(name, given.turns)
        for row, speed in found[name]["instances a second"].items():
            kind = row.partition(", ")[2]
            ratio = f"{found[name]['ratio'][kind]:6.2f}" if row.startswith("predict") else ""
            print(f"{name:16} {row:20} {speed:10,.0f}/s {ratio}", flush=True)
    if given.json:
        given.json.write_text(json.dumps({"machine": describe(), **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
